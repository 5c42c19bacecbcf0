"""The interface of a task: targets, transforms, a loss, metrics, and a way to draw a prediction.

A new task is one file: a subclass of ``Task`` with ``@register("segmentation")``, and its ``Metrics``. The loader, the
training loop, ``foveate eval`` and ``foveate compare`` then know it. Targets are the task's own: an integer, a mask,
boxes, keypoints. Nothing outside the task looks into them.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from PIL import Image
from torch import Tensor, nn

from foveate.adapters import inspect
from foveate.data import ImageData, Sample, StreamedData, open_data
from foveate.data.open import open_for_evaluation
from foveate.data.preprocessing import Preprocessing
from foveate.data.targets import stack_equal
from foveate.methods.validation import shown
from foveate.registries import Registry
from foveate.tasks.augmentation import Augmentation

Mode = Literal["max", "min"]
BatchTransform = Callable[[Tensor, Any], tuple[Tensor, Any]]
"""Transforms a whole batch of images and targets, as Mixup does."""


class Opened(NamedTuple):
    """Data to evaluate a model on."""

    data: ImageData | StreamedData
    task: Task
    """The task, completed with what only the data provide, such as class names."""
    mismatch: str
    """Why the targets of these data do not match what the model predicts; empty if they do, or without targets."""


class Metrics(ABC):
    """Running metrics of one model. ``update`` adds a batch, ``merge`` adds what another process counted."""

    images: int = 0

    @abstractmethod
    def update(self, prediction: Any, targets: Any, reference: Any = None) -> None:
        """Add one batch.

        Replace values instead of changing them in place: an interrupted pass goes back to a shallow copy.

        Args:
            prediction: The result of ``Task.predict`` for the batch.
            targets: The targets of the batch; some may be unknown.
            reference: The prediction of another model for the same batch, to compare with.
        """

    @abstractmethod
    def merge(self, other: Any) -> None:
        """Add what another process counted."""

    @abstractmethod
    def compute(self) -> dict[str, float]:
        """Return the metrics by name, shares in percent. Metrics without data are left out."""

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """Return plain data for JSON; ``from_state`` is its inverse."""

    @classmethod
    @abstractmethod
    def from_state(cls, state: Mapping[str, Any]) -> Metrics:
        """Return the metrics that ``state`` described."""

    def get(self, name: str) -> float | None:
        """Return one metric; None if it has no data."""
        return self.compute().get(name)


class Sums(Metrics):
    """Metrics of a dataclass whose fields are sums, so that those of two processes add up field by field."""

    def merge(self, other: Sums) -> None:
        for field in fields(self):  # type: ignore[arg-type]
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))

    def state(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]

    def check_sums(self) -> None:
        """Raise a ValueError for a field that is neither a tensor nor a finite number, or a count that is not whole."""
        for field in fields(self):  # type: ignore[arg-type]
            value, whole = getattr(self, field.name), field.type in (int, "int")
            number = isinstance(value, int if whole else int | float) and not isinstance(value, bool)
            if not isinstance(value, Tensor) and not (number and math.isfinite(value)):
                raise ValueError(f"{field.name} is a {'count' if whole else 'sum'}; got {shown(value)}.")


class Task(ABC):
    """What is predicted, how it is learned, and how it is evaluated. Must be picklable for worker processes."""

    name: ClassVar[str]
    """Set by ``@register``."""
    monitor: ClassVar[str]
    """The metric by which the best model of a training run is chosen."""
    mode: ClassVar[Mode] = "max"
    """Whether a higher or a lower ``monitor`` is better."""
    figures: ClassVar[tuple[str, ...]]
    """Names of the metrics to show, each with an entry in ``evaluation/columns.py``."""
    comparisons: ClassVar[tuple[str, ...]] = ()
    """Names of the metrics that compare with another model and need no targets."""
    predicts_places: ClassVar[bool] = False
    """Whether a report shows predictions drawn over images, beside those of the unreduced model."""
    num_classes: int | None = None
    """Classes that the model's head predicts; None if the task does not need a head of a certain size."""

    @property
    def agreement_of(self) -> str:
        """What ``agreement`` counts: so many percent of these are unchanged."""
        return "decisions"

    @classmethod
    @abstractmethod
    def for_data(cls, data: ImageData | StreamedData, **options: Any) -> Task:
        """Return the task for ``data``; ``options`` are the task's own, such as ``smoothing``."""

    @classmethod
    @abstractmethod
    def for_model(cls, model: nn.Module, **options: Any) -> Task:
        """Return the task that ``model`` was made for; ``options`` are the task's own.

        Raises:
            ValueError: If the model does not predict what this task needs.
        """

    # -- data

    def check_names(self, names: Sequence[str] | None) -> None:
        """Raise a ValueError for another number of class names than the model predicts, as far as both are known."""
        if names is not None and self.num_classes is not None and len(names) != self.num_classes:
            raise ValueError(f"There are {len(names)} class names, but the model predicts {self.num_classes} classes.")

    @classmethod
    def option_types(cls) -> dict[str, Any]:
        """Return the options of its own by name, with their types; recipes set them as ``data.options``."""
        return {}

    @classmethod
    def open(cls, source: str, split: str, **options: Any) -> ImageData | StreamedData:
        """Open the data at ``source``, whose samples have targets of this task.

        A task with options of its own takes them as ``own``, by name.
        """
        return open_data(source, split, **options)

    def open_matching(
        self, source: str, split: str | None = None, names: Sequence[str] | None = None, **options: Any
    ) -> Opened:
        """Open data to evaluate a model on; this task came from ``for_model``.

        Args:
            source: A folder, a file or a dataset; see docs/data.md.
            split: The split to open. Default: the validation images, or everything if the data have no splits.
            names: The names of the model's classes, in its order.
            options: Passed to ``open_data``.
        """
        return Opened(open_for_evaluation(source, split, **options), self, "")

    @abstractmethod
    def transformed(self, transform: Any, sample: Sample) -> tuple[Tensor, Any]:
        """Apply one of this task's transforms to an image and its target; geometry must change both alike."""

    @abstractmethod
    def collate(self, targets: Sequence[Any]) -> Any:
        """Combine the targets of a batch."""

    def stack(self, images: Sequence[Tensor]) -> Tensor:
        """Combine the images of a batch; a task whose images differ in size pads them here."""
        return stack_equal(images)

    def evaluation_transform(self, preprocessing: Preprocessing) -> Any:
        """Return the transform for evaluation images."""
        return preprocessing.evaluation()

    @abstractmethod
    def training_transform(self, preprocessing: Preprocessing, options: Augmentation) -> Any:
        """Return the transform for training images and their targets."""

    def batch_transform(self, options: Augmentation) -> BatchTransform | None:
        """Return the transform for whole training batches; None for none."""
        return None

    @abstractmethod
    def unknown_like(self, targets: Any) -> Any:
        """Return as many unknown targets."""

    def read_targets(self, given: Any, count: int) -> Any:
        """Convert targets that a caller passed with ``count`` image tensors; ``given`` may be None."""
        return given

    def why_unusable(self, targets: Any) -> str:
        """Return why a batch of targets does not fit this task; empty if it does."""
        return ""

    def any_known(self, targets: Any) -> bool:
        """Return whether any of the targets is known."""
        return True

    # -- model

    def fit_head_(self, model: nn.Module) -> None:
        """Give ``model`` a head for the task; its own stays if it fits."""
        return

    @abstractmethod
    def predict(self, model: nn.Module, images: Tensor) -> Any:
        """Run the model and return the part of its output that the task reads."""

    def check_prediction(self, prediction: Any, reference: Any, name: str) -> None:
        """Raise a ValueError if a prediction is not finite or cannot be compared with ``reference``."""
        return

    @abstractmethod
    def loss(self, prediction: Any, targets: Any) -> Tensor:
        """Return the mean loss over the images of a batch."""

    def losses(self, model: nn.Module, images: Tensor, targets: Any) -> dict[str, Tensor]:
        """Return the parts of the training loss by name; they are summed.

        A task whose model computes its loss itself, as detectors do, overrides this.
        """
        return {"loss": self.loss(self.predict(model, images), targets)}

    def imitation_loss(self, prediction: Any, teacher: Any) -> Tensor:
        """Return how far a prediction is from a teacher's, averaged over images.

        Raises:
            ValueError: If the task has no such loss.
        """
        raise ValueError(f"{self.name} has no loss that compares predictions. Set objective.self_kl=0.")

    @abstractmethod
    def metrics(self) -> Metrics:
        """Return empty metrics."""

    # -- display

    def model_input(self, image: Image.Image, preprocessing: Preprocessing) -> Tensor:
        """Return an image without a target as the model reads it."""
        return preprocessing.evaluation()(image)

    def with_classes(self, names: Sequence[str]) -> Task:
        """Return the task with the names of its model's classes."""
        return replace(self, classes=tuple(names))  # type: ignore[type-var]

    def caption(self, target: Any) -> str:
        """Return a target in words; empty if it has no name."""
        return ""

    def draw(self, image: Image.Image, prediction: Any) -> Image.Image:
        """Return a copy of ``image`` with the prediction drawn on it."""
        return image.copy()


register: Registry[type[Task]] = Registry("task", "foveate.tasks")
"""Class decorator that registers a task by name, for the command line and recipes."""
find_task = register.find
task_names = register.names


def task_of(model: nn.Module) -> str:
    """Return the name of the task that the model's head is for; without a head, what it gives is an embedding."""
    family = inspect(model)
    return getattr(family, "task", "embedding" if family.num_classes is None else "classification")


def check_finite(prediction: Tensor, name: str) -> None:
    """Raise a ValueError if the prediction of the model called ``name`` has NaN or infinite values."""
    if not bool(prediction.isfinite().all()):
        raise ValueError(
            f"{name}: the model's outputs are NaN or infinite on these images. Check its weights and precision."
        )


def to_device(targets: Any, device: torch.device) -> Any:
    """Move targets to ``device``: tensors, also inside lists, tuples and dictionaries."""
    if isinstance(targets, Tensor):
        return targets.to(device)
    if isinstance(targets, Mapping):
        return {key: to_device(value, device) for key, value in targets.items()}
    if isinstance(targets, list | tuple):
        return type(targets)(to_device(value, device) for value in targets)
    return targets


def chunk(targets: Any, parts: int) -> list[Any]:
    """Split the targets of a batch into ``parts`` parts, as ``Tensor.chunk`` splits its images."""
    if isinstance(targets, Tensor):
        return list(targets.chunk(parts))
    if isinstance(targets, Mapping):
        divided = {key: chunk(value, parts) for key, value in targets.items()}
        return [{key: values[number] for key, values in divided.items()} for number in range(parts)]
    size = -(-len(targets) // parts)
    return [targets[start : start + size] for start in range(0, len(targets), size)]


def first(targets: Any, count: int) -> Any:
    """Return the targets of the first ``count`` images of a batch."""
    if isinstance(targets, Mapping):
        return {key: first(value, count) for key, value in targets.items()}
    return targets[:count]
