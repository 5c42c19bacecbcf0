"""What every task has: targets, transforms, a loss, metrics, and a way to draw a prediction.

A new task is one file: a subclass of ``Task`` with ``@register("segmentation")``, and its ``Metrics``. The loader, the
training loop, ``foveate eval`` and ``foveate compare`` then know it. Targets are the task's own: an integer, a mask,
boxes, keypoints. Nothing outside the task looks into them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar

import torch
from PIL import Image
from torch import Tensor, nn

from foveate.data import ImageData, Sample, StreamedData, open_data
from foveate.data.open import open_for_evaluation
from foveate.data.preprocessing import Preprocessing
from foveate.tasks.augmentation import Augmentation

Mode = Literal["max", "min"]
BatchTransform = Callable[[Tensor, Any], tuple[Tensor, Any]]
"""Changes a whole batch of images and targets, as Mixup does."""


class Opened(NamedTuple):
    """Data to evaluate a model on."""

    data: ImageData | StreamedData
    task: Task
    """The task with what only the data know, such as names of classes."""
    mismatch: str
    """Why targets of these data do not mean what the model predicts; empty if they do, or if there are none."""


class Metrics(ABC):
    """What one model came to over all images so far. It adds up over batches, and over processes by ``merge``."""

    images: int = 0

    @abstractmethod
    def update(self, prediction: Any, targets: Any, reference: Any = None) -> None:
        """Add one batch.

        Replace values instead of changing them in place: a pass that is interrupted goes back to a shallow copy.

        Args:
            prediction: What ``Task.predict`` returned for the batch.
            targets: The targets of the batch; single ones may be unknown.
            reference: The prediction of another model for the same batch, to agree with.
        """

    @abstractmethod
    def merge(self, other: Any) -> None:
        """Add what another process counted."""

    @abstractmethod
    def compute(self) -> dict[str, float]:
        """Figures by name, in per cent where they are shares; only those of which something is known."""

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """Plain data, ready for JSON; ``from_state`` is its inverse."""

    @classmethod
    @abstractmethod
    def from_state(cls, state: Mapping[str, Any]) -> Metrics: ...

    def get(self, name: str) -> float | None:
        """One figure; None if nothing is known of it."""
        return self.compute().get(name)


class Task(ABC):
    """What is predicted, how it is learned, and how it is judged. Must survive being sent to a worker process."""

    name: ClassVar[str]
    """Set by ``@register``."""
    monitor: ClassVar[str]
    """The metric by which the best model of a training run is chosen."""
    mode: ClassVar[Mode] = "max"
    """Whether more or less of ``monitor`` is better."""
    figures: ClassVar[tuple[str, ...]]
    """Names of the metrics that are shown, each with an entry in ``evaluation/columns.py``."""
    comparisons: ClassVar[tuple[str, ...]] = ()
    """Names of the metrics that compare with another model, and need no targets."""
    num_classes: int | None = None
    """Classes that a model's head predicts; None if the task does not need a head of a certain size."""

    @classmethod
    @abstractmethod
    def for_data(cls, data: ImageData | StreamedData, **options: Any) -> Task:
        """The task that ``data`` pose; ``options`` are the task's own, such as ``smoothing``."""

    @classmethod
    @abstractmethod
    def for_model(cls, model: nn.Module) -> Task:
        """The task that ``model`` was made for; a ValueError if it predicts nothing of this kind."""

    # -- data

    @classmethod
    def open(cls, source: str, split: str, **options: Any) -> ImageData | StreamedData:
        """The data behind ``source``, whose samples have targets of this task."""
        return open_data(source, split, **options)

    def open_matching(
        self, source: str, split: str | None = None, names: Sequence[str] | None = None, **options: Any
    ) -> Opened:
        """Data to evaluate a model on that this task is ``for_model`` of.

        Args:
            source: A folder, a file or a data set; see docs/data.md.
            split: The part of it; default: validation images, or all of data that are not divided.
            names: The model's classes in its order.
            options: For ``open_data``.
        """
        return Opened(open_for_evaluation(source, split, **options), self, "")

    @abstractmethod
    def transformed(self, transform: Any, sample: Sample) -> tuple[Tensor, Any]:
        """Image and target after one of this task's transforms; geometry must change both alike."""

    @abstractmethod
    def collate(self, targets: Sequence[Any]) -> Any:
        """The targets of a batch."""

    def evaluation_transform(self, preprocessing: Preprocessing) -> Any:
        """What happens to an image before it is evaluated."""
        return preprocessing.evaluation()

    @abstractmethod
    def training_transform(self, preprocessing: Preprocessing, options: Augmentation) -> Any:
        """What happens to an image, and to its target with it, before it is trained on."""

    def batch_transform(self, options: Augmentation) -> BatchTransform | None:
        """What happens to a whole training batch; None for nothing."""
        return None

    @abstractmethod
    def unknown_like(self, targets: Any) -> Any:
        """As many unknown targets."""

    def read_targets(self, given: Any, count: int) -> Any:
        """Targets of ``count`` images as a caller gives them with tensors; None for none."""
        return given

    def why_unusable(self, targets: Any) -> str:
        """Why a batch of targets cannot be those of this task; empty if they can."""
        return ""

    def any_known(self, targets: Any) -> bool:
        """Whether any of the targets is known."""
        return True

    # -- model

    def fit_head_(self, model: nn.Module) -> None:
        """Give ``model`` the head that the task needs, a new one only if its own does not fit."""
        return

    @abstractmethod
    def predict(self, model: nn.Module, images: Tensor) -> Any:
        """The part of the model's output that the task reads."""

    def check_prediction(self, prediction: Any, reference: Any, name: str) -> None:
        """Raise a ValueError if a prediction is not finite or not comparable with ``reference``."""
        return

    @abstractmethod
    def loss(self, prediction: Any, targets: Any) -> Tensor:
        """Mean over the images of a batch."""

    @abstractmethod
    def metrics(self) -> Metrics:
        """Metrics that have seen nothing yet."""

    # -- people

    def caption(self, target: Any) -> str:
        """A target in words; empty if there are none for it."""
        return ""

    def draw(self, image: Image.Image, prediction: Any) -> Image.Image:
        """A copy of ``image`` that shows what was predicted for it."""
        return image.copy()


_TASKS: dict[str, type[Task]] = {}
AnyTask = TypeVar("AnyTask", bound=type[Task])


def register(name: str) -> Callable[[AnyTask], AnyTask]:
    """Make a task known by ``name``, on the command line and in recipes."""

    def note(cls: AnyTask) -> AnyTask:
        if name in _TASKS:
            raise ValueError(f"There is a task {name!r} already: {_TASKS[name].__name__}.")
        cls.name = name
        _TASKS[name] = cls
        return cls

    return note


def find_task(name: str) -> type[Task]:
    """The task registered by ``name``."""
    if name not in _TASKS:
        raise ValueError(f"There is no task {name!r}. Known: {', '.join(task_names())}.")
    return _TASKS[name]


def task_names() -> list[str]:
    return sorted(_TASKS)


def to_device(targets: Any, device: torch.device) -> Any:
    """Targets on ``device``: tensors, and tensors inside lists, tuples and dictionaries."""
    if isinstance(targets, Tensor):
        return targets.to(device)
    if isinstance(targets, Mapping):
        return {key: to_device(value, device) for key, value in targets.items()}
    if isinstance(targets, list | tuple):
        return type(targets)(to_device(value, device) for value in targets)
    return targets


def chunk(targets: Any, parts: int) -> list[Any]:
    """The targets of a batch in ``parts`` equal parts, as ``Tensor.chunk`` divides its images."""
    if isinstance(targets, Tensor):
        return list(targets.chunk(parts))
    if isinstance(targets, Mapping):
        divided = {key: chunk(value, parts) for key, value in targets.items()}
        return [{key: values[number] for key, values in divided.items()} for number in range(parts)]
    size = -(-len(targets) // parts)
    return [targets[start : start + size] for start in range(0, len(targets), size)]


def first(targets: Any, count: int) -> Any:
    """The targets of the first ``count`` images of a batch."""
    if isinstance(targets, Mapping):
        return {key: first(value, count) for key, value in targets.items()}
    return targets[:count]
