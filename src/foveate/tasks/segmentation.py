"""Semantic segmentation: one class for each pixel."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_type_hints

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, kl_div, log_softmax

from foveate.adapters import inspect
from foveate.data import DataError, ImageData, Sample, StreamedData
from foveate.data.masks import IGNORED, RULE_NAMES, MaskRules
from foveate.data.open import split_for_evaluation
from foveate.data.open_masks import open_masks
from foveate.data.preprocessing import Preprocessing
from foveate.drawing.segments import draw_segments
from foveate.tasks.augmentation import Augmentation
from foveate.tasks.base import Opened, Task, check_finite, register, task_of
from foveate.tasks.mask_transforms import Evaluation, MaskTransform, Training
from foveate.tasks.segmentation_metrics import SegmentationMetrics, resized
from foveate.tasks.windows import slide

UNUSED = ("color_jitter", "auto_augment", "erase", "mixup", "cutmix")
"""Augmentations that know nothing of masks."""


@register("segmentation")
@dataclass(frozen=True)
class Segmentation(Task):
    """Targets are masks (H, W) of class numbers, 255 where there is none.

    An image is resized for the model; its prediction is judged at the size of its mask.
    """

    num_classes: int | None = None
    classes: tuple[str, ...] | None = None
    smoothing: float = 0.0
    """Label smoothing of the loss."""
    auxiliary: float = 0.4
    """Weight of the auxiliary head's loss, for heads that have one."""
    scale: tuple[float, ...] = (0.5, 2.0)
    """Training: smallest and largest factor of a random scale."""
    cat_max_ratio: float = 0.75
    """Training: largest share of a crop that one class may have; 1 takes any crop."""
    photometric: bool = True
    """Training: whether brightness, contrast, saturation and hue change at random."""
    inference: Literal["whole", "slide"] = "whole"
    """Evaluation: the whole image at once, or windows of the model's size."""
    keep_ratio: bool = False
    """Evaluation: scale by the shorter side instead of to the model's height and width; always with windows."""
    stride: float = 2 / 3
    """Evaluation: distance of windows, as a share of their size."""

    predicts_places = True
    monitor = "miou"
    figures = ("miou", "pixel_accuracy", "boundary_accuracy", "agreement", "boundary_agreement")
    comparisons = ("agreement", "boundary_agreement", "kl")

    def __post_init__(self) -> None:
        low_high = tuple(self.scale)
        if len(low_high) != 2 or not 0 < low_high[0] <= low_high[1]:
            raise ValueError(f"scale must be two factors, 0 < low <= high; got {self.scale}.")
        if not 0 < self.stride <= 1:
            raise ValueError(f"stride is a share of the window, above 0 and at most 1; got {self.stride}.")
        if not 0 < self.cat_max_ratio <= 1:
            raise ValueError(f"cat_max_ratio is a share, above 0 and at most 1; got {self.cat_max_ratio}.")

    @property
    def agreement_of(self) -> str:
        return "pixels"

    @classmethod
    def option_types(cls) -> dict[str, Any]:
        own = {**get_type_hints(MaskRules), **get_type_hints(cls)}
        names = [field.name for owner in (MaskRules, cls) for field in dataclasses.fields(owner)]
        return {name: own[name] for name in names if name not in ("num_classes", "classes", "smoothing")}

    @classmethod
    def for_data(cls, data: ImageData | StreamedData, smoothing: float = 0.0, **options: Any) -> Segmentation:
        return cls(data.num_classes, data.classes, smoothing, **_without(options, RULE_NAMES))

    @classmethod
    def for_model(cls, model: nn.Module, **options: Any) -> Segmentation:
        task = task_of(model)
        if task != cls.name:
            raise ValueError(
                f"This {type(model).__name__} is for {task}, not for segmentation. Give its encoder a head: "
                "ENCODER+linear, +simple-pyramid, +semantic-fpn or +upernet."
            )
        return cls(inspect(model).num_classes, **_without(options, RULE_NAMES))

    # -- data

    @classmethod
    def open(cls, source: str, split: str, own: Mapping[str, Any] | None = None, **options: Any) -> ImageData:
        """Open images with masks; ``own`` are the task's options, among them those of ``MaskRules``."""
        return open_masks(source, split, rules=mask_rules(own), **options)

    def open_matching(
        self,
        source: str,
        split: str | None = None,
        names: Sequence[str] | None = None,
        own: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Opened:
        self.check_names(names)
        data = split_for_evaluation(self.open, source, split, own=own, **options)
        why = ""
        if self.num_classes is None:
            return Opened(data, self, why)
        if data.labeled and data.classes is not None and len(data.classes) != self.num_classes:
            why = f"{source} has {len(data.classes)} classes, but the model predicts {self.num_classes}."
        if data.labeled and data.classes is None and (data.num_classes or 0) > self.num_classes:
            why = f"{source} has {data.num_classes} classes, but the model predicts {self.num_classes}."
        return Opened(data, dataclasses.replace(self, classes=tuple(names) if names else data.classes), why)

    def transformed(self, transform: MaskTransform, sample: Sample) -> tuple[Tensor, Any]:
        if not isinstance(sample.target, np.ndarray) or sample.target.ndim != 2:
            raise DataError(f"{sample.name} has no mask; segmentation takes images with masks (docs/dense.md).")
        return transform(sample.image, sample.target)

    def collate(self, targets: Sequence[Tensor]) -> Any:
        """Masks of one size as (B, H, W), others as a list."""
        alike = len({tuple(target.shape) for target in targets}) == 1
        return torch.stack(list(targets)) if alike else list(targets)

    def evaluation_transform(self, preprocessing: Preprocessing) -> Evaluation:
        return Evaluation(preprocessing, self.keep_ratio or self.inference == "slide")

    def training_transform(self, preprocessing: Preprocessing, options: Augmentation) -> Any:
        default = Augmentation()
        unused = [name for name in UNUSED if getattr(options, name) != getattr(default, name)]
        if unused:
            raise ValueError(f"Segmentation does not use augmentation.{unused[0]}, which knows no masks. Leave it out.")
        if options.kind == "evaluation":
            return Training(preprocessing, (1.0, 1.0), 1.0, 0.0, photometric=False)
        low, high = self.scale
        return Training(preprocessing, (low, high), self.cat_max_ratio, options.flip, self.photometric)

    def unknown_like(self, targets: Any) -> Any:
        if isinstance(targets, Tensor):
            return torch.full_like(targets, IGNORED)
        return [torch.full_like(target, IGNORED) for target in targets]

    def read_targets(self, given: Any, count: int) -> Any:
        if given is None:
            return torch.full((count, 1, 1), IGNORED)  # no mask, whose size is not known
        return torch.as_tensor(given).long()

    def why_unusable(self, targets: Any) -> str:
        for target in targets:
            known = target[target != IGNORED]
            if self.num_classes is not None and len(known) and int(known.max()) >= self.num_classes:
                return f"a mask has the class {int(known.max())}, but the model predicts {self.num_classes} classes"
        return ""

    def any_known(self, targets: Any) -> bool:
        return any(bool((target != IGNORED).any()) for target in targets)

    # -- model

    def fit_head_(self, model: nn.Module) -> None:
        type(self).for_model(model)  # refuses a model without a head for segmentation
        if self.num_classes is not None:
            inspect(model).set_classes_(self.num_classes)

    def predict(self, model: nn.Module, images: Tensor) -> Any:
        """Logits (B, classes, h, w); with windows, at the images' size. In training also those of an auxiliary head."""
        if self.inference == "whole" or model.training:
            return _logits(model, images, upsample=False)
        window = inspect(model).image_size[1:]
        return slide(lambda part: _logits(model, part, upsample=True), images, window, self.stride)

    def check_prediction(self, prediction: Tensor, reference: Tensor, name: str) -> None:
        check_finite(prediction, name)
        if prediction.shape != reference.shape:
            raise ValueError(
                f"{name} predicts {tuple(prediction.shape[1:])} (classes, rows, columns), but the unreduced model "
                f"{tuple(reference.shape[1:])}."
            )

    def loss(self, prediction: Any, targets: Tensor) -> Tensor:
        """Mean cross-entropy of labeled pixels; 0 where there are none. An auxiliary head adds its own, weighted."""
        main = getattr(prediction, "logits", prediction)
        total = self._pixel_loss(main, targets)
        auxiliary = getattr(prediction, "auxiliary", None)
        return total if auxiliary is None else total + self.auxiliary * self._pixel_loss(auxiliary, targets)

    def _pixel_loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        full = nn.functional.interpolate(logits.float(), size=targets.shape[-2:], mode="bilinear")
        total = cross_entropy(
            full, targets.long(), ignore_index=IGNORED, reduction="sum", label_smoothing=self.smoothing
        )
        return total / (targets != IGNORED).sum().clamp(min=1)

    def imitation_loss(self, prediction: Any, teacher: Any) -> Tensor:
        """KL(teacher || prediction), averaged over places."""
        ours, theirs = (getattr(one, "logits", one).float() for one in (prediction, teacher))
        divergence = kl_div(log_softmax(ours, 1), log_softmax(theirs, 1), reduction="sum", log_target=True)
        return divergence / (ours.numel() / ours.shape[1])

    def metrics(self) -> SegmentationMetrics:
        classes = self.num_classes or 1
        return SegmentationMetrics(torch.zeros(classes, classes, dtype=torch.int64))

    # -- display

    def model_input(self, image: Image.Image, preprocessing: Preprocessing) -> Tensor:
        width, height = image.size
        return self.evaluation_transform(preprocessing)(image, np.full((height, width), IGNORED))[0]

    def draw(self, image: Image.Image, prediction: Tensor) -> Image.Image:
        """Tint each pixel by its class, with a legend below."""
        width, height = image.size
        return draw_segments(image, resized(prediction, (height, width)).argmax(dim=0), self.classes)

    def draw_target(self, image: Image.Image, target: Tensor) -> Image.Image:
        """Tint each pixel by its true class."""
        return draw_segments(image, target, self.classes)


def mask_rules(options: Mapping[str, Any] | None) -> MaskRules:
    """The options that say how masks are read."""
    return MaskRules(**{name: value for name, value in (options or {}).items() if name in RULE_NAMES})


def _without(options: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name not in names}


def _logits(model: nn.Module, images: Tensor, upsample: bool) -> Any:
    return model(images, upsample=upsample)
