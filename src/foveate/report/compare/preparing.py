"""Preparation of a comparison: the model, the images, and the built-in demonstration."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any, NamedTuple

import torch
from torch import nn

from foveate.adapters import copy_unreduced, inspect
from foveate.data.preprocessing import Preprocessing
from foveate.report.compare.candidates import Candidate, given_candidate, with_shared_weights
from foveate.report.compare.images import FromSource, Images, from_tensors
from foveate.report.compare.settings import Settings
from foveate.tasks import Task

DEMONSTRATION_DATA = "scenes:"
"""The built-in images, used without a model."""


class Reading(NamedTuple):
    """How to open and read the data."""

    split: str | None
    classes: Sequence[str] | None
    workers: int
    max_broken: float
    options: Mapping[str, Any]


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
        return from_tensors(data, settings.batch_size, settings.limit, task)
    opened = task.open_matching(str(data), reading.split, reading.classes, **reading.options)
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


def built_in(data: Any) -> tuple[nn.Module, str, Sequence[str], str]:
    """Return the built-in model, its scenes, its class names, and its name."""
    from foveate.models.demo import demo_classes, demo_model

    source = DEMONSTRATION_DATA if data is None else data
    if not isinstance(source, str) or not source.startswith(DEMONSTRATION_DATA):
        raise ValueError(f"Data were given without a model. The built-in demonstration only takes {DEMONSTRATION_DATA}")
    return demo_model(), source, demo_classes(), "built-in demonstration model"


def name_of(model: Any) -> str:
    """Return the architecture's name, or the name of the class."""
    known = inspect(model).architecture() or {}
    return str(known.get("architecture") or type(model).__name__)
