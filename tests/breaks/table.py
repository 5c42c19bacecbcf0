"""All breaks. Where the source changes, change its entries too: ``python -m tests.breaks --stale`` names them."""

from __future__ import annotations

from . import adapters, core, costs, evaluation, methods, training, values
from .entry import Break

BREAKS: list[Break] = [
    *core.BREAKS,
    *methods.BREAKS,
    *costs.BREAKS,
    *values.BREAKS,
    *adapters.BREAKS,
    *evaluation.BREAKS,
    *training.BREAKS,
]
