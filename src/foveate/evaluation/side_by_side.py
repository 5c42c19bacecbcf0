"""One pass over images in which several models predict side by side.

``foveate eval``, comparisons and the validation of a training run use it. Every model sees every
batch, in rotating order, so that times are comparable too.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from foveate.evaluation.timing import rotated, timed
from foveate.tasks import Metrics
from foveate.tasks.base import first, to_device


class Judge(Protocol):
    """Defines what is predicted and measured: a task, or the objective of a training run."""

    def predict(self, model: nn.Module, images: Tensor) -> Any: ...

    def metrics(self) -> Metrics: ...

    def check_prediction(self, prediction: Any, reference: Any, name: str) -> None: ...


class Labeled(Protocol):
    """A batch of images with their targets."""

    @property
    def images(self) -> Tensor: ...

    @property
    def targets(self) -> Any: ...


class Pair(NamedTuple):
    """Images with their targets."""

    images: Tensor
    targets: Any


def first_images(batches: Iterable[Labeled], limit: int | None) -> Iterator[Pair]:
    """Yield the first ``limit`` images of ``batches``; all of them if it is None."""
    seen = 0
    for batch in batches:
        left = len(batch.images) if limit is None else min(len(batch.images), limit - seen)
        seen += left
        yield Pair(batch.images[:left], first(batch.targets, left))
        if limit is not None and seen >= limit:
            return


@dataclass(frozen=True)
class Predicted:
    """The predictions of every model for one batch."""

    predictions: dict[str, Any]
    targets: Any
    seconds: dict[str, float]
    """Time in each model alone."""


@dataclass
class Evaluation:
    """The metrics of several models so far, and the time that each took."""

    metrics: dict[str, Metrics]
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def images(self) -> int:
        """Number of images so far."""
        return next(iter(self.metrics.values())).images

    def per_second(self, name: str) -> float:
        """Return the images per second of one model."""
        return self.metrics[name].images / self.seconds[name]


def predict_side_by_side(
    models: Mapping[str, nn.Module],
    batches: Iterable[Labeled],
    predict: Callable[[nn.Module, Tensor], Any],
    device: torch.device,
    *,
    dtype: torch.dtype | None = None,
    autocast: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> Iterator[Predicted]:
    """Yield the predictions of every model for every batch.

    Args:
        models: Models by name. The caller puts them on ``device`` and into evaluation mode.
        batches: Images with their targets.
        predict: Runs a model on images, e.g. ``Task.predict``.
        device: Where images and targets are moved.
        dtype: Precision of the images. Default: unchanged.
        autocast: Makes the context to predict in.
    """
    for turn, batch in enumerate(batches):
        images, targets = batch.images.to(device, dtype), to_device(batch.targets, device)
        predictions, seconds = {}, {}
        for name in rotated(list(models), turn):
            with torch.no_grad(), autocast():
                predictions[name], seconds[name] = timed(partial(predict, models[name], images), device)
        yield Predicted({name: predictions[name] for name in models}, targets, seconds)


def evaluate(
    models: Mapping[str, nn.Module],
    batches: Iterable[Labeled],
    judge: Judge,
    device: torch.device,
    *,
    dtype: torch.dtype | None = None,
    autocast: Callable[[], AbstractContextManager[Any]] = nullcontext,
    compare: bool = False,
    so_far: Evaluation | None = None,
    after_batch: Callable[[Evaluation], None] | None = None,
) -> Evaluation:
    """Compute the metrics of every model over all batches.

    A batch counts for all models or for none, even if the pass is interrupted.

    Args:
        models: Models by name.
        batches: Images with their targets.
        judge: A task, or a training objective.
        device: Where images and targets are moved.
        dtype: Precision of the images. Default: unchanged.
        autocast: Makes the context to predict in.
        compare: Whether to compare predictions with those of the first model.
        so_far: Metrics of earlier batches. They are updated and returned.
        after_batch: Called after each batch with the metrics so far.

    Returns:
        The metrics and times of all models.

    Raises:
        ValueError: If a prediction is not finite or, with ``compare``, cannot be compared.
    """
    found = Evaluation({name: judge.metrics() for name in models}) if so_far is None else so_far
    first = next(iter(models))
    for batch in predict_side_by_side(models, batches, judge.predict, device, dtype=dtype, autocast=autocast):
        reference = batch.predictions[first] if compare else None
        added = {name: copy.copy(found.metrics[name]) for name in models}
        for name, prediction in batch.predictions.items():
            if reference is not None:
                judge.check_prediction(prediction, reference, name)
            added[name].update(prediction, batch.targets, reference)
        found.seconds = {name: found.seconds.get(name, 0.0) + batch.seconds[name] for name in models}
        found.metrics = added
        if after_batch is not None:
            after_batch(found)
    return found


def over_processes(metrics: Metrics) -> Metrics:
    """Merge the metrics of all processes of a distributed run; ``metrics`` itself if there is only one."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return metrics
    states: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(states, metrics.state())
    first, *others = [type(metrics).from_state(state) for state in states]
    for other in others:
        first.merge(other)
    return first
