"""Detection: boxes, and boxes with instance masks."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, get_type_hints

import torch
from PIL import Image
from torch import Tensor, nn
from torchvision.tv_tensors import Image as TvImage

from foveate.adapters import inspect
from foveate.data import DataError, ImageData, Sample, StreamedData
from foveate.data.instances import Instances
from foveate.data.open import open_instances, split_for_evaluation
from foveate.data.preprocessing import Preprocessing
from foveate.drawing.objects import draw_objects
from foveate.tasks.augmentation import Augmentation
from foveate.tasks.base import Metrics, Opened, Task, register, task_of
from foveate.tasks.detection_metrics import DetectionMetrics, Truth, restored, truth_of
from foveate.tasks.instance_transforms import Evaluation, Training, resized, resized_size, sides

MULTIPLE = 32
"""Batches are padded to a multiple of the coarsest stride of the encoder."""
SHOWN = 0.3
"""Least score of a detection that is drawn."""
UNUSED = ("color_jitter", "auto_augment", "erase", "mixup", "cutmix")
"""Augmentations that know nothing of boxes."""


@register("detection")
@dataclass(frozen=True)
class Detection(Task):
    """Targets are the objects of an image; predictions are boxes with classes and scores.

    Images keep their proportions; a batch is padded to its largest image.
    """

    num_classes: int | None = None
    classes: tuple[str, ...] | None = None
    short_sides: tuple[int, ...] = ()
    """Training: smallest and largest length of the short side, in pixels; empty for the model's."""
    jitter: tuple[float, ...] = ()
    """Training: large-scale jitter, the smallest and largest factor of the size; then a crop of the model's size."""

    monitor = "box_ap"
    figures = ("box_ap", "box_ap50", "box_ap75", "box_ap_small", "box_ap_medium", "box_ap_large")
    heads: ClassVar[str] = "ENCODER+retinanet"
    with_masks: ClassVar[bool] = False

    def __post_init__(self) -> None:
        for name in ("short_sides", "jitter"):
            values = getattr(self, name)
            if values and (len(values) != 2 or not 0 < values[0] <= values[1]):
                raise ValueError(f"{name} must be two numbers, 0 < low <= high, or empty; got {values}.")
        if self.short_sides and self.jitter:
            raise ValueError("short_sides and jitter both choose the size of a training image. Set one of them.")

    @classmethod
    def option_types(cls) -> dict[str, Any]:
        """Return the options of its own by name, with their types."""
        kinds = get_type_hints(cls)
        return {f.name: kinds[f.name] for f in dataclasses.fields(cls) if f.name not in ("num_classes", "classes")}

    @classmethod
    def for_data(cls, data: ImageData | StreamedData, smoothing: float = 0.0, **options: Any) -> Detection:
        if smoothing:
            raise ValueError(f"{cls.name} has no label smoothing. Set objective.smoothing=0.")
        return cls(data.num_classes, data.classes, **options)

    @classmethod
    def for_model(cls, model: nn.Module, **options: Any) -> Detection:
        task = task_of(model)
        if task != cls.name:
            raise ValueError(
                f"This {type(model).__name__} is for {task}, not for {cls.name}. Give its encoder a head: {cls.heads}."
            )
        return cls(inspect(model).num_classes, **options)

    # -- data

    @classmethod
    def open(cls, source: str, split: str, own: Mapping[str, Any] | None = None, **options: Any) -> ImageData:
        return open_instances(source, split, "instances", with_masks=cls.with_masks, **options)

    def open_matching(
        self,
        source: str,
        split: str | None = None,
        names: Sequence[str] | None = None,
        own: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Opened:
        self.check_names(names)
        data = split_for_evaluation(self.open, source, split, classes=names, **options)
        why = ""
        if self.num_classes is not None and data.num_classes != self.num_classes:
            why = f"{source} has {data.num_classes} classes, but the model predicts {self.num_classes}."
        return Opened(data, dataclasses.replace(self, classes=data.classes), why)

    def transformed(self, transform: Any, sample: Sample) -> tuple[Tensor, Any]:
        if not isinstance(sample.target, Instances):
            raise DataError(f"{sample.name} has no boxes; {self.name} takes COCO data or scenes:objects.")
        image, changed = transform(sample.image, sample.target)
        if min(image.shape[-2:]) < 1:
            raise DataError(f"{sample.name} is too small: {sample.image.size[0]} x {sample.image.size[1]} pixels.")
        return image, changed if isinstance(transform, Training) else truth_of(sample.target, changed)

    def stack(self, images: Sequence[Tensor]) -> Tensor:
        """Pad below and to the right, to a multiple of 32 pixels."""
        rows, columns = (-(-max(image.shape[axis] for image in images) // MULTIPLE) * MULTIPLE for axis in (-2, -1))
        batch = images[0].new_zeros(len(images), images[0].shape[0], rows, columns)
        for place, image in zip(batch, images, strict=True):
            place[:, : image.shape[-2], : image.shape[-1]] = image
        return batch

    def collate(self, targets: Sequence[Any]) -> list[Any]:
        return list(targets)

    def evaluation_transform(self, preprocessing: Preprocessing) -> Evaluation:
        return Evaluation(preprocessing)

    def training_transform(self, preprocessing: Preprocessing, options: Augmentation) -> Training:
        default = Augmentation()
        unused = [name for name in UNUSED if getattr(options, name) != getattr(default, name)]
        if unused:
            raise ValueError(f"{self.name} does not use augmentation.{unused[0]}, which knows no boxes. Leave it out.")
        if options.kind == "evaluation":
            return Training(preprocessing)
        return Training(preprocessing, options.flip, self.short_sides, self.jitter)

    def unknown_like(self, targets: Sequence[Truth]) -> list[Truth]:
        return [dataclasses.replace(truth, rows=None) for truth in targets]

    def any_known(self, targets: Sequence[Truth]) -> bool:
        return any(truth.rows is not None for truth in targets)

    # -- model

    def fit_head_(self, model: nn.Module) -> None:
        type(self).for_model(model)  # refuses a model without a detector
        if self.num_classes is not None:
            inspect(model).set_classes_(self.num_classes)

    def predict(self, model: nn.Module, images: Tensor) -> Any:
        """Return for each image its boxes in pixels of the padded batch, labels, scores, and masks in their boxes.

        ``canvas`` is the height and width of the batch.
        """
        canvas = torch.tensor(images.shape[-2:])
        return [one | {"canvas": canvas} for one in model(images)]

    def check_prediction(self, prediction: Any, reference: Any, name: str) -> None:
        if not all(bool(one["boxes"].isfinite().all()) for one in prediction):
            raise ValueError(f"{name}: boxes are NaN or infinite on these images. Check its weights and precision.")

    def loss(self, prediction: dict[str, Tensor], targets: Any) -> Tensor:
        """Return the sum of the losses that the detector computed."""
        return torch.stack(list(prediction.values())).sum()

    def losses(self, model: nn.Module, images: Tensor, targets: Any) -> dict[str, Tensor]:
        return model(images, targets=self._padded(targets, (int(images.shape[-2]), int(images.shape[-1]))))

    def _padded(self, targets: Sequence[dict[str, Tensor]], size: tuple[int, int]) -> list[dict[str, Tensor]]:
        """Masks at the size of the padded batch, which the detector pools them from."""
        padded = []
        for target in targets:
            masks = target.get("masks")
            if masks is not None:
                rows, columns = size[0] - masks.shape[-2], size[1] - masks.shape[-1]
                target = target | {"masks": nn.functional.pad(masks, (0, columns, 0, rows))}
            padded.append(target)
        return padded

    def metrics(self) -> Metrics:
        return DetectionMetrics(self.with_masks)

    # -- display

    def model_input(self, image: Image.Image, preprocessing: Preprocessing) -> Tensor:
        rows, columns = resized_size((image.height, image.width), *sides(preprocessing))
        if min(rows, columns) < MULTIPLE:
            raise ValueError(
                f"An image of {image.width} x {image.height} pixels becomes {columns} x {rows}, but the model needs "
                f"{MULTIPLE} on each side."
            )
        return preprocessing.normalize(resized([TvImage(image)], (rows, columns))[0].as_subclass(Tensor))

    def with_classes(self, names: Sequence[str]) -> Detection:
        return dataclasses.replace(self, classes=tuple(names))

    def draw(self, image: Image.Image, prediction: Mapping[str, Tensor]) -> Image.Image:
        """Draw boxes with classes and scores, and masks; ``prediction`` is of this image alone."""
        rows, columns = prediction["canvas"].tolist()
        found = restored(prediction, (image.height, image.width), (columns / image.width, rows / image.height))
        shown = found["scores"] >= SHOWN
        return draw_objects(
            image,
            found["boxes"][shown],
            [
                self._named(label, score)
                for label, score in zip(found["labels"][shown], found["scores"][shown], strict=True)
            ],
            found["labels"][shown].tolist(),
            found["masks"][shown] if "masks" in found else None,
        )

    def _named(self, label: Tensor, score: Tensor) -> str:
        name = self.classes[int(label)] if self.classes is not None else str(int(label))
        return f"{name} {float(score):.0%}"


@register("instance-segmentation")
@dataclass(frozen=True)
class InstanceSegmentation(Detection):
    """Detection with a mask for each object."""

    figures = (*("box_ap", "box_ap50", "box_ap75"), *("mask_ap", "mask_ap50", "mask_ap75"))
    heads = "ENCODER+mask-rcnn"
    with_masks = True
