"""RetinaNet and Mask R-CNN: torchvision's detectors on the feature maps of any encoder.

Anchors, proposals, sampling, losses and suppression are torchvision's. The layers are those that give ClusTR's printed
parameters (tables 3 and 4): torchvision also predicts a box and a mask for the background, which no loss reads.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import Any

import torch
from torch import Tensor, nn
from torchvision.models.detection import MaskRCNN, RetinaNet
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.faster_rcnn import FastRCNNPredictor
from torchvision.models.detection.image_list import ImageList
from torchvision.models.detection.mask_rcnn import MaskRCNNPredictor
from torchvision.models.detection.roi_heads import paste_masks_in_image
from torchvision.ops.feature_pyramid_network import FeaturePyramidNetwork, LastLevelMaxPool, LastLevelP6P7

from foveate.methods.validation import check_sizes
from foveate.models.dense.head import Head, Levels, register_head, require_pyramid
from foveate.models.dense.plain import PYRAMID, scaled

Detections = list[dict[str, Tensor]]
"""For each image: ``boxes`` (n, 4) in pixels, ``labels`` (n,) from 0, ``scores`` (n,), and ``masks`` (n, 28, 28) where
the model has them."""
Losses = dict[str, Tensor]
RATIOS = (0.5, 1.0, 2.0)
PROPOSALS, POOLED_BOX, POOLED_MASK = 1000, 7, 14


class Anchors(AnchorGenerator):
    """torchvision's anchors at the pyramid's own strides; torchvision guesses them from sizes, wrongly for odd ones."""

    def __init__(self, sizes: tuple[tuple[int, ...], ...], strides: tuple[int, ...]) -> None:
        super().__init__(sizes, (RATIOS,) * len(sizes))
        self.strides = strides

    def forward(self, image_list: ImageList, feature_maps: list[Tensor]) -> list[Tensor]:
        first = feature_maps[0]
        self.set_cell_anchors(first.dtype, first.device)
        steps = [[torch.tensor(stride, device=first.device)] * 2 for stride in self.strides]
        places = self.grid_anchors([list(one.shape[-2:]) for one in feature_maps], steps)
        return [torch.cat(places) for _ in image_list.image_sizes]


class Detector(Head):
    """The base of both detectors: a feature pyramid, and torchvision's parts on it."""

    default_classes = 80
    finest: int
    """Stride of the finest map that it reads."""

    def __init__(
        self,
        levels: Levels,
        num_classes: int,
        channels: int = 256,
        smallest_anchor: int = 32,
        detections: int = 100,
        score: float = 0.05,
    ) -> None:
        options: dict[str, Any] = {
            "channels": channels,
            "smallest_anchor": smallest_anchor,
            "detections": detections,
            "score": score,
        }
        super().__init__(levels, num_classes, **options)
        check_sizes(channels=channels, smallest_anchor=smallest_anchor, detections=detections)
        plain = len(set(levels.strides)) == 1
        self.scales = None
        if plain:  # maps of a plain ViT, as in ViTDet
            ups = (math.log2(levels.strides[-1] / stride) for stride in PYRAMID)
            self.scales = nn.ModuleList(scaled(levels.channels[-1], channels, up) for up in ups)
            levels = Levels((channels,) * len(PYRAMID), PYRAMID)
        require_pyramid(self.name, levels, 3)
        if self.finest not in levels.strides:
            raise ValueError(
                f"{self.name} reads feature maps from stride {self.finest} on; this encoder gives "
                f"{', '.join(map(str, levels.strides))}. Use an encoder with that stride, such as clustr_small."
            )
        self.first = levels.strides.index(self.finest)
        self.read = Levels(levels.channels[self.first :], levels.strides[self.first :])
        self.pyramid = FeaturePyramidNetwork(list(self.read.channels), channels, self.coarser_levels(channels))
        self.make_layers(**options)

    def make_layers(self, channels: int, smallest_anchor: int, detections: int, score: float) -> None:
        """Make the layers that read the pyramid."""
        raise NotImplementedError

    def coarser_levels(self, channels: int) -> Any:
        """What makes the maps beyond the encoder's coarsest one."""
        raise NotImplementedError

    def features(self, maps: list[Tensor]) -> dict[str, Tensor]:
        """The feature pyramid, from fine to coarse."""
        if self.scales is not None:
            maps = [layer(maps[-1]) for layer in self.scales]
        return self.pyramid(OrderedDict((str(i), one) for i, one in enumerate(maps[self.first :])))

    def forward(
        self, maps: list[Tensor], size: tuple[int, int], targets: Detections | None = None, **given: Any
    ) -> Losses | Detections:
        """Losses by name in training, detections otherwise.

        Args:
            maps: the encoder's features.
            size: height and width of the images, padding included.
            targets: in training, for each image ``boxes`` (n, 4) in pixels, ``labels`` (n,) from 0, and ``masks``
                (n, height, width) for Mask R-CNN.
            given: not used.

        Raises:
            ValueError: in training without targets.
        """
        if self.training and targets is None:
            raise ValueError(f"{self.name} computes its loss itself: in training call model(images, targets=...).")
        found = self.features(maps)
        batch = len(maps[0])
        images = ImageList(maps[0].new_zeros(()).expand(batch, 3, *size), [size] * batch)
        return self.losses(images, found, targets) if targets is not None else self.detect(images, found)

    def losses(self, images: ImageList, found: dict[str, Tensor], targets: Detections) -> Losses:
        """The losses of a batch."""
        raise NotImplementedError

    def detect(self, images: ImageList, found: dict[str, Tensor]) -> Detections:
        """The detections of a batch."""
        raise NotImplementedError


class _NoBackbone(nn.Module):
    """Stands where torchvision's detectors have a backbone: they only ask for its width."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.out_channels = channels


@register_head("retinanet")
class RetinaNetHead(Detector):
    """RetinaNet (Lin et al., ICCV 2017): maps of strides 8 to 128, nine anchors at each place, focal loss.

    The map of stride 64 is made from the encoder's coarsest one, that of stride 128 from the former.
    """

    task = "detection"
    finest = 8

    def make_layers(self, channels: int, smallest_anchor: int, detections: int, score: float) -> None:
        strides = (*self.read.strides, *(self.read.strides[-1] * 2 ** (i + 1) for i in range(2)))
        steps = (1, 2 ** (1 / 3), 2 ** (2 / 3))
        sizes = tuple(tuple(int(smallest_anchor * 2**i * step) for step in steps) for i in range(len(strides)))
        self.net = RetinaNet(
            _NoBackbone(channels),
            self.num_classes,
            anchor_generator=Anchors(sizes, strides),
            detections_per_img=detections,
            score_thresh=score,
        )

    def coarser_levels(self, channels: int) -> Any:
        layers = LastLevelP6P7(self.read.channels[-1], channels)
        layers.use_P5 = False  # also where the encoder's coarsest map is as wide as the pyramid
        return layers

    def losses(self, images: ImageList, found: dict[str, Tensor], targets: Detections) -> Losses:
        maps = list(found.values())
        anchors = self.net.anchor_generator(images, maps)
        parts = self.net.compute_loss(targets, self.net.head(maps), anchors)
        return {"classes": parts["classification"], "boxes": parts["bbox_regression"]}

    def detect(self, images: ImageList, found: dict[str, Tensor]) -> Detections:
        maps = list(found.values())
        outputs, anchors = self.net.head(maps), self.net.anchor_generator(images, maps)
        each = [one.shape[-2] * one.shape[-1] * len(RATIOS) * 3 for one in maps]
        by_level = {name: list(values.split(each, dim=1)) for name, values in outputs.items()}
        places = [list(one.split(each)) for one in anchors]
        return self.net.postprocess_detections(by_level, places, images.image_sizes)

    def counted(self, maps: list[Tensor], size: tuple[int, int]) -> None:
        self.net.head(list(self.features(maps).values()))


class BoxPredictor(FastRCNNPredictor):
    """torchvision's predictor of classes and boxes, without a box for the background."""

    def __init__(self, width: int, num_classes: int) -> None:
        super().__init__(width, num_classes + 1)
        self.bbox_pred = nn.Linear(width, 4 * num_classes)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        scores, boxes = super().forward(x)
        return scores, torch.cat([boxes.new_zeros(len(boxes), 4), boxes], dim=1)


class MaskPredictor(MaskRCNNPredictor):
    """torchvision's predictor of masks, without one for the background."""

    def forward(self, x: Tensor) -> Tensor:
        masks = super().forward(x)
        return torch.cat([torch.zeros_like(masks[:, :1]), masks], dim=1)


@register_head("mask-rcnn")
class MaskRCNNHead(Detector):
    """Mask R-CNN (He et al., ICCV 2017): proposals on maps of strides 4 to 64, then a box and a mask for each.

    The map of stride 64 is pooled from that of stride 32.
    """

    task = "instance-segmentation"
    finest = 4

    def __init__(
        self,
        levels: Levels,
        num_classes: int,
        channels: int = 256,
        smallest_anchor: int = 32,
        detections: int = 100,
        score: float = 0.05,
        sampled: int = 512,
    ) -> None:
        super().__init__(levels, num_classes, channels, smallest_anchor, detections, score)
        check_sizes(sampled=sampled)
        self.options["sampled"] = sampled
        self.roi_heads.fg_bg_sampler.batch_size_per_image = sampled

    def make_layers(self, channels: int, smallest_anchor: int, detections: int, score: float) -> None:
        strides = (*self.read.strides, self.read.strides[-1] * 2)
        net = MaskRCNN(
            _NoBackbone(channels),
            rpn_anchor_generator=Anchors(tuple((smallest_anchor * 2**i,) for i in range(len(strides))), strides),
            box_predictor=BoxPredictor(1024, self.num_classes),
            mask_predictor=MaskPredictor(256, 256, self.num_classes),
            box_detections_per_img=detections,
            box_score_thresh=score,
        )
        self.rpn, self.roi_heads = net.rpn, net.roi_heads

    def coarser_levels(self, channels: int) -> Any:
        return LastLevelMaxPool()

    def losses(self, images: ImageList, found: dict[str, Tensor], targets: Detections) -> Losses:
        shifted = [{**one, "labels": one["labels"] + 1} for one in targets]  # 0 is torchvision's background
        proposals, first = self.rpn(images, found, shifted)
        _, second = self.roi_heads(found, proposals, images.image_sizes, shifted)
        return {
            "objects": first["loss_objectness"],
            "proposals": first["loss_rpn_box_reg"],
            "classes": second["loss_classifier"],
            "boxes": second["loss_box_reg"],
            "masks": second["loss_mask"],
        }

    def detect(self, images: ImageList, found: dict[str, Tensor]) -> Detections:
        proposals, _ = self.rpn(images, found)
        detections, _ = self.roi_heads(found, proposals, images.image_sizes)
        return [one | {"labels": one["labels"] - 1, "masks": one["masks"][:, 0]} for one in detections]

    def counted(self, maps: list[Tensor], size: tuple[int, int]) -> None:
        """Run the layers for 1,000 proposals and all detections that are kept, whatever an image shows."""
        found = self.features(maps)
        self.rpn.head(list(found.values()))
        heads, channels = self.roi_heads, self.options["channels"]
        heads.box_predictor(heads.box_head(maps[0].new_empty(PROPOSALS, channels, POOLED_BOX, POOLED_BOX)))
        pooled = maps[0].new_empty(self.options["detections"], channels, POOLED_MASK, POOLED_MASK)
        heads.mask_predictor(heads.mask_head(pooled))


def pasted_masks(masks: Tensor, boxes: Tensor, size: tuple[int, int]) -> Tensor:
    """Masks (n, height, width), true or false, from those of a detector (n, 28, 28) in their boxes (n, 4)."""
    return paste_masks_in_image(masks[:, None].float(), boxes, size)[:, 0] > 0.5
