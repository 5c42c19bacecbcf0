"""Preparation of a comparison: the model, the images, and the built-in demonstration."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from foveate.adapters import copy_unreduced, inspect
from foveate.data.preprocessing import Preprocessing
from foveate.evaluation.progress import Progress
from foveate.evaluation.timing import check_workers
from foveate.files import check_writable
from foveate.methods.validation import shown
from foveate.report.compare.candidates import (
    Candidate,
    Candidates,
    find_candidates,
    given_candidate,
    read_methods,
    with_shared_weights,
)
from foveate.report.compare.descent import PROBE_IMAGES, Probe
from foveate.report.compare.images import FromSource, Images, from_tensors
from foveate.report.compare.settings import Settings
from foveate.report.compare.smaller_images import smaller_images
from foveate.storage import check_saved
from foveate.tasks import Task, read_options
from foveate.tasks.base import Opened

DEMONSTRATION_DATA = "scenes:counting"
"""The built-in images, used without a model."""


class Reading(NamedTuple):
    """How to open and read the data."""

    split: str | None
    classes: Sequence[str] | None
    workers: int
    max_broken: float
    options: Mapping[str, Any]
    own: Mapping[str, Any] = {}
    """Options of the task."""

    def with_task(self, task: type[Task] | None, options: Mapping[str, Any] | None) -> Reading:
        """Return the same with the task's own options, once it is known."""
        return self if task is None else self._replace(own=read_options(task, options or {}))

    def open(self, source: str, task: Task) -> Opened:
        """Open the images at ``source``."""
        own = {"own": self.own} if self.own else {}
        return task.open_matching(source, self.split, self.classes, **self.options, **own)


def check_reading(workers: object, max_broken: object, classes: object) -> None:
    """Raise for a value that says how to read images and cannot be used."""
    check_workers(workers)
    if isinstance(max_broken, bool) or not isinstance(max_broken, int | float) or not 0 <= max_broken <= 1:
        raise ValueError(f"max_broken must be between 0 and 1, got {shown(max_broken)}. For 5 % write 0.05.")
    if classes is not None and not (isinstance(classes, list | tuple) and all(isinstance(c, str) for c in classes)):
        raise TypeError(f"classes must be names in the order of the model's outputs, got {shown(classes)}.")


def prepared(model: nn.Module, device: torch.device) -> tuple[nn.Module, list[Candidate]]:
    """Return the unreduced model, ready to run, and a candidate for the given model if it is already reduced.

    Raises:
        ValueError: If the model cannot be reduced, or has ``unit_qk``.
    """
    family = inspect(model)
    family.require_reducible()
    if family.reduction.unit_qk is not None:
        raise ValueError(
            "This model was trained with unit_qk, and the other candidates would run without it, so a comparison would "
            "mean nothing. Measure the model with foveate speed and foveate eval."
        )
    at_home = next(model.parameters()).device == device
    own = (with_shared_weights if at_home else copy.deepcopy)(model).eval().to(device)
    if family.reduction.is_identity:
        return own, []
    return copy_unreduced(own), [given_candidate(own)]


def open_images(data: Any, model: nn.Module, settings: Settings, task: Task, reading: Reading) -> Images:
    """Open the images of a comparison, preprocessed for ``model``."""
    if not isinstance(data, str | PathLike):
        if reading.options:
            raise ValueError(f"Tensors do not take {next(iter(reading.options))}; data_options are for other sources.")
        if reading.split is not None:
            raise ValueError(f"Tensors have no splits, got split={reading.split!r}. Leave it out.")
        return from_tensors(data, settings.batch_size, settings.limit, task, inspect(model).grid_for_size)
    opened = reading.open(str(data), task)
    note = f"Accuracy is left out: {opened.mismatch}" if opened.mismatch else ""
    if not opened.data.labeled and not note:
        note = f"{data} has no labels, so accuracy cannot be measured."
    return FromSource(
        opened.data,
        str(data),
        opened.task,
        opened.task.evaluation_transform(Preprocessing.of(model)),
        settings.batch_size,
        limit=settings.limit,
        seed=settings.seed,
        note=note,
        workers=reading.workers,
        max_broken=reading.max_broken,
    )


def all_candidates(
    unreduced: nn.Module, settings: Settings, given: Sequence[Candidate], images: Images, progress: Progress
) -> Candidates:
    """Return everything to compare: methods, checkpoints and, if every method is compared, smaller images."""
    holds = None
    if settings.until_broken:
        holds = Probe(unreduced, images.sample(PROBE_IMAGES), images.task, progress).holds
    every = settings.methods == tuple(read_methods(None))
    small = smaller_images(unreduced, settings.budgets, holds) if every else Candidates((), ())
    extra = (*small.all, *given)
    found = find_candidates(unreduced, settings.methods, settings.budgets, settings.checkpoints, extra, holds)
    return replace(found, refused=(*found.refused, *small.refused))


def checked_data(data: Any, demonstration: bool) -> Any:
    """Return the data of a comparison; those of the demonstration are built in.

    Raises:
        ValueError: If there are none, or others than the demonstration's.
    """
    if not demonstration:
        if data is None:
            raise ValueError(
                "A comparison needs images of the kind the model was trained on. Pass data, e.g. a folder."
            )
        return data
    source = DEMONSTRATION_DATA if data is None else data
    if not isinstance(source, str) or not source.startswith(DEMONSTRATION_DATA):
        raise ValueError(f"Data were given without a model. The built-in demonstration only takes {DEMONSTRATION_DATA}")
    return source


def check_places(
    data: Any, task: type[Task] | None, reading: Reading, settings: Settings, store: str | PathLike[str] | None
) -> None:
    """Check everything that is read or written before a model is loaded.

    Raises:
        ValueError: If the data or a checkpoint cannot be read, or ``store`` cannot be written.
    """
    if store is not None:
        check_writable(Path(store))
    for folder in settings.checkpoints:
        check_saved(Path(folder))
    if task is not None and isinstance(data, str | PathLike):
        reading.open(str(data), task())


def built_in() -> tuple[nn.Module, Sequence[str], str]:
    """Return the built-in model, its class names, and its name."""
    from foveate.models.demo import demo_classes, demo_model

    return demo_model(), demo_classes(), "built-in demonstration model"


def name_of(model: Any) -> str:
    """Return the architecture's name, or the name of the class."""
    known = inspect(model).architecture() or {}
    return str(known.get("architecture") or type(model).__name__)
