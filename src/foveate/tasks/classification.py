"""Classification: one class for each image."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from PIL import Image, ImageDraw
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, kl_div, log_softmax

from foveate.adapters import inspect
from foveate.data import DataError, ImageData, Sample, StreamedData
from foveate.data.labels import imagenet_folders
from foveate.data.open import open_for_evaluation
from foveate.data.preprocessing import Preprocessing
from foveate.data.source import InstanceData
from foveate.data.targets import UNKNOWN, transform_image
from foveate.methods.validation import shown
from foveate.tasks.augmentation import Augmentation, build_mixup, training_transform
from foveate.tasks.base import BatchTransform, Opened, Sums, Task, check_finite, register, task_of


@dataclass
class ClassificationMetrics(Sums):
    """Hits, loss, and agreement with another model."""

    images: int = 0
    labeled: int = 0
    hits: int = 0
    hits5: int = 0
    agreeing: int = 0
    """Images with the same decision as the reference."""
    divergence: float = 0.0
    """Sum of KL(reference || this)."""
    loss: float = 0.0
    """Sum of the cross-entropy over labeled images."""
    compared: int = 0
    """Images with a reference."""

    def update(self, prediction: Tensor, targets: Tensor, reference: Tensor | None = None) -> None:
        known = targets >= 0
        hits = correct(prediction[known], targets[known])
        self.images += len(targets)
        self.labeled += int(known.sum())
        self.hits += int(hits["top1"])
        self.hits5 += int(hits["top5"])
        self.loss += float(cross_entropy(prediction[known], targets[known], reduction="sum"))
        if reference is not None:
            self.compared += len(targets)
            self.agreeing += int((prediction.argmax(dim=1) == reference.argmax(dim=1)).sum())
            self.divergence += float(divergence(reference, prediction))

    def compute(self) -> dict[str, float]:
        found: dict[str, float] = {}
        if self.labeled:
            found["loss"] = self.loss / self.labeled
            found["top1"] = 100 * self.hits / self.labeled
            found["top5"] = 100 * self.hits5 / self.labeled
        if self.compared:
            found["agreement"] = 100 * self.agreeing / self.compared
            found["kl"] = self.divergence / self.compared
        return found

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> ClassificationMetrics:
        found = cls(**state)
        found.check_sums()
        agreeing = 0 <= found.agreeing <= found.compared <= found.images
        if not agreeing or not 0 <= found.hits <= found.labeled <= found.images:
            raise ValueError(f"There are more hits than images in {found}.")
        return found


@register("classification")
@dataclass(frozen=True)
class Classification(Task):
    """Targets are integers, -1 if unknown, or rows of probabilities after Mixup."""

    num_classes: int | None = None
    """None for data without classes."""
    classes: tuple[str, ...] | None = None
    """Class names, by index."""
    smoothing: float = 0.0
    """Label smoothing of the loss."""

    monitor = "top1"
    figures = ("top1", "top5", "agreement")
    comparisons = ("agreement", "kl")

    @classmethod
    def for_data(cls, data: ImageData | StreamedData, **options: Any) -> Classification:
        _check_one_class_each(data)
        return cls(data.num_classes, data.classes, **options)

    @classmethod
    def for_model(cls, model: nn.Module, **options: Any) -> Classification:
        task = task_of(model)
        if task not in (cls.name, "embedding"):
            raise ValueError(f"This {type(model).__name__} is for {task}, not for classification. Use --task {task}.")
        predicted = inspect(model).num_classes
        if predicted is None:
            raise ValueError(
                f"This {type(model).__name__} does not predict classes, so there is nothing to evaluate. Use a model "
                "with a classifier, or train one: foveate train linear-probe."
            )
        return cls(predicted)

    def open_matching(
        self, source: str, split: str | None = None, names: Sequence[str] | None = None, **options: Any
    ) -> Opened:
        """Open the data with the model's class names: a folder numbers its classes only by what it contains."""
        options["allow_empty_classes"] = True
        self.check_names(names)
        mismatch = ""
        try:
            data = open_for_evaluation(source, split, classes=names, **options)
            if names is None and (known := imagenet_folders(data.classes, self.num_classes)) is not None:
                names = known
                data = open_for_evaluation(source, split, classes=names, **options)
            mismatch = self._mismatch(source, data) if names is None else ""
        except DataError as error:
            if names is None:
                raise
            data, mismatch = open_for_evaluation(source, split, **options), str(error)
        _check_one_class_each(data)
        return Opened(data, dataclasses.replace(self, classes=data.classes), mismatch)

    def _mismatch(self, source: str, data: ImageData | StreamedData) -> str:
        if not data.labeled:
            return ""
        if data.classes is not None and len(data.classes) != self.num_classes:
            return (
                f"{source} has {len(data.classes)} named classes, but the model predicts {self.num_classes}. Name the "
                "model's classes, in its order: --classes FILE (classes=[...] in Python)."
            )
        if data.num_classes is not None and self.num_classes is not None and data.num_classes > self.num_classes:
            return f"{source} has {data.num_classes} classes, but the model predicts {self.num_classes}."
        return ""

    def transformed(self, transform: Any, sample: Sample) -> tuple[Tensor, Any]:
        return transform_image(transform, sample), sample.target

    def collate(self, targets: Sequence[Any]) -> Tensor:
        return torch.tensor(list(targets), dtype=torch.int64)

    def training_transform(self, preprocessing: Preprocessing, options: Augmentation) -> Any:
        return training_transform(preprocessing, options)

    def batch_transform(self, options: Augmentation) -> BatchTransform | None:
        return build_mixup(options, self.num_classes, self.smoothing)

    def unknown_like(self, targets: Tensor) -> Tensor:
        return torch.full_like(targets, UNKNOWN)

    def read_targets(self, given: Any, count: int) -> Tensor:
        if given is None:
            return torch.full((count,), UNKNOWN)
        try:
            labels = torch.as_tensor(given)
        except (TypeError, ValueError, RuntimeError) as error:
            raise TypeError(f"Labels must be integers, one for each image; got {shown(given)}.") from error
        if labels.shape != (count,):
            raise ValueError(_wrong_shape(tuple(labels.shape), count))
        if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
            raise ValueError(
                f"Labels must be integers, the index of each image's class; got {labels.dtype}. If they are indices, "
                "convert them: labels.long()."
            )
        if count and int(labels.min()) < UNKNOWN:
            raise ValueError(f"Labels must be at least 0, or {UNKNOWN} for unknown ones; got {int(labels.min())}.")
        return labels.long()

    def why_unusable(self, targets: Tensor) -> str:
        if self.num_classes is None or int(targets.max()) < self.num_classes:
            return ""
        return f"a label is {int(targets.max())}, but the model predicts {self.num_classes} classes"

    def any_known(self, targets: Tensor) -> bool:
        return bool((targets >= 0).any())

    def fit_head_(self, model: nn.Module) -> None:
        if self.num_classes is not None:
            inspect(model).set_classes_(self.num_classes)

    def predict(self, model: nn.Module, images: Tensor) -> Tensor:
        output = model(images)
        return (output if isinstance(output, Tensor) else inspect(model).logits(output)).float()

    def check_prediction(self, prediction: Tensor, reference: Tensor, name: str) -> None:
        check_finite(prediction, name)
        if prediction.shape != reference.shape:
            raise ValueError(
                f"{name} predicts {prediction.shape[1]} classes, but the unreduced model {reference.shape[1]}."
            )

    def loss(self, prediction: Tensor, targets: Tensor) -> Tensor:
        smoothing = self.smoothing if targets.dim() == 1 else 0.0  # soft labels are smoothed already
        return cross_entropy(prediction.float(), targets, label_smoothing=smoothing)

    def imitation_loss(self, prediction: Tensor, teacher: Tensor) -> Tensor:
        """KL(teacher || prediction), averaged over images."""
        ours, theirs = log_softmax(prediction.float(), dim=-1), log_softmax(teacher.float(), dim=-1)
        return kl_div(ours, theirs, reduction="batchmean", log_target=True)

    def metrics(self) -> ClassificationMetrics:
        return ClassificationMetrics()

    def caption(self, target: Any) -> str:
        number = int(target)
        return self.classes[number] if self.classes is not None and 0 <= number < len(self.classes) else ""

    def draw(self, image: Image.Image, prediction: Tensor) -> Image.Image:
        """Write the top class, or its index, and its probability into the upper left corner."""
        best = int(prediction.argmax())
        text = f"{self.caption(best) or best} {float(prediction.softmax(dim=-1)[best]):.0%}"
        drawn = image.convert("RGB")
        canvas = ImageDraw.Draw(drawn)
        canvas.rectangle(canvas.textbbox((2, 2), text), fill="white")
        canvas.text((2, 2), text, fill="black")
        return drawn


def _check_one_class_each(data: ImageData | StreamedData) -> None:
    if isinstance(data, InstanceData):
        raise DataError(
            f"{data.pictures.name(0)} has several objects and no class of its own, so it cannot be classified. "
            "Use these data with --task detection, pose or segmentation."
        )


def _wrong_shape(shape: tuple[int, ...], count: int) -> str:
    if len(shape) == 1:
        return f"There are {shape[0]} labels for a batch of {count} images. Pass one label for each image."
    advice = " Turn one-hot labels or probabilities into indices: labels.argmax(dim=1)." if len(shape) == 2 else ""
    return f"Labels must be integers of shape ({count},), one for each image; got shape {shape}.{advice}"


def correct(logits: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """Count the images whose label is the top prediction, and among the top five."""
    best = logits.topk(min(5, logits.shape[1]), dim=1).indices
    hit = best == labels[:, None]
    return {"top1": hit[:, 0].sum().float(), "top5": hit.sum().float()}


def divergence(reference: Tensor, logits: Tensor) -> Tensor:
    """Sum KL(p || q) over a batch: KL = sum_c p_c (log p_c - log q_c), p from ``reference``, q from ``logits``."""
    log_p, log_q = reference.double().log_softmax(dim=1), logits.double().log_softmax(dim=1)
    return (log_p.exp() * (log_p - log_q)).sum()
