"""Smaller and smaller budgets, until decisions break: where the front of a comparison ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import nn

from foveate.evaluation.progress import Progress
from foveate.evaluation.side_by_side import Pair
from foveate.report.compare.comparison import Refused
from foveate.tasks import Task

if TYPE_CHECKING:
    from foveate.report.compare.candidates import Candidate  # which imports this file

SMALLER_BUDGETS = (0.4, 0.32, 0.25, 0.19, 0.14, 0.1)
"""Tried one after another below the default budgets; each is about three quarters of the one before."""
HOLDS = 90.0
"""Percent of decisions that must be unchanged to go on: well below the 95 that are ever recommended."""
PROBE_IMAGES = 64
"""Enough to tell 95 from 85 %; all images then measure what was found."""


class Probe:
    """Judges on a few images whether a setting still keeps most decisions."""

    def __init__(self, unreduced: nn.Module, sample: Sequence[Pair], task: Task, progress: Progress) -> None:
        reference = next(unreduced.parameters())
        self.batches = [pair._replace(images=pair.images.to(reference.device, reference.dtype)) for pair in sample]
        self.task, self.progress, self.tried = task, progress, 0
        self.reference = [self._predict(unreduced, pair) for pair in self.batches]

    def holds(self, candidate: Candidate) -> bool:
        """Whether at least ``HOLDS`` percent of the decisions are the unreduced model's."""
        if not self.batches:
            return False
        self.tried += 1
        self.progress("smaller budgets", self.tried, None)
        metrics = self.task.metrics()
        for pair, reference in zip(self.batches, self.reference, strict=True):
            metrics.update(self._predict(candidate.model, pair), pair.targets, reference)
        return metrics.compute().get("agreement", 0.0) >= HOLDS

    @torch.inference_mode()
    def _predict(self, model: nn.Module, pair: Pair) -> object:
        return self.task.predict(model, pair.images)


def further(
    make: Callable[[float], Candidate | Refused],
    made: Sequence[Candidate | Refused],
    holds: Callable[[Candidate], bool],
) -> list[Candidate]:
    """Candidates at smaller budgets than those ``made``, up to the first that breaks decisions.

    Args:
        make: makes a candidate for a budget.
        made: candidates at larger budgets, in falling order.
        holds: whether a candidate keeps most decisions.

    Returns:
        The candidates; none if the last one ``made`` breaks decisions already or cannot be reached.
    """
    found: list[Candidate] = []
    last = made[-1]
    for budget in SMALLER_BUDGETS:
        if isinstance(last, Refused) or not holds(last):
            break
        last = make(budget)
        found += [] if isinstance(last, Refused) else [last]
    return found
