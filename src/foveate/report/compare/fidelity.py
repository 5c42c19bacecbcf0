"""Agreement with the unreduced model: one pass over the images, in which all candidates share its predictions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from foveate.evaluation.plain_data import checked_value
from foveate.evaluation.side_by_side import Evaluation, evaluate
from foveate.report.compare.images import Images
from foveate.tasks import Task


@dataclass
class Fidelity(Evaluation):
    """The metrics of every candidate after some batches, which can be stored and resumed."""

    broken: int = 0
    finished: bool = False

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for JSON; ``from_dict`` is its inverse."""
        sums = {key: metrics.state() for key, metrics in self.metrics.items()}
        return {"sums": sums, "broken": self.broken, "finished": self.finished}

    @staticmethod
    def from_dict(data: Mapping[str, Any], task: Task) -> Fidelity:
        """Return the fidelity that ``as_dict`` described."""
        read = type(task.metrics()).from_state
        metrics = {key: read(state) for key, state in data["sums"].items()}
        broken: int = checked_value(data["broken"], int, "broken")
        finished: bool = checked_value(data["finished"], bool, "finished")
        if broken < 0:
            raise ValueError(f"broken is a count; got {broken}.")
        return Fidelity(metrics, broken=broken, finished=finished)


@torch.inference_mode()
def measure_fidelity(
    models: Mapping[str, nn.Module],
    images: Images,
    device: torch.device,
    so_far: Fidelity,
    after_batch: Callable[[Fidelity], None],
) -> None:
    """Add all remaining batches to ``so_far``; the first of ``models`` is the unreduced one."""
    dtype = next(next(iter(models.values())).parameters()).dtype
    evaluate(
        models,
        images.batches(so_far.images, so_far.broken),
        images.task,
        device,
        dtype=dtype,
        compare=True,
        so_far=so_far,
        after_batch=lambda _: after_batch(so_far),
    )
    if not so_far.images:
        raise ValueError(f"{images.source} has no images.")
    so_far.finished = True
