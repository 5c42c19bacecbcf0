"""All breaks. Where the source changes, change its entries too: ``python -m tests.breaks --stale`` names them."""

from __future__ import annotations

from . import (
    adapters,
    bounds,
    core,
    costs,
    dense,
    deploy,
    evaluation,
    instances,
    methods,
    mixtures,
    positions,
    scale,
    systems,
    training,
    values,
    whole_files,
)
from .entry import Break

BREAKS: list[Break] = [
    *core.BREAKS,
    *methods.BREAKS,
    *mixtures.BREAKS,
    *costs.BREAKS,
    *values.BREAKS,
    *bounds.BREAKS,
    *whole_files.BREAKS,
    *adapters.BREAKS,
    *dense.BREAKS,
    *instances.BREAKS,
    *positions.BREAKS,
    *systems.BREAKS,
    *evaluation.BREAKS,
    *training.BREAKS,
    *scale.BREAKS,
    *deploy.BREAKS,
]
