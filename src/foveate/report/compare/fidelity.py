"""Agreement with the unreduced model: one pass over the images, in which all candidates share its predictions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from foveate.evaluation.side_by_side import Evaluation, evaluate, start
from foveate.report.compare.images import Images
from foveate.tasks import Metrics, Task


@dataclass
class Fidelity:
    """The metrics of every candidate after some batches, which can be stored and resumed."""

    evaluation: Evaluation
    broken: int = 0
    finished: bool = False

    @staticmethod
    def empty(names: list[str], task: Task) -> Fidelity:
        """Return metrics before the first batch."""
        return Fidelity(start(names, task))

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for JSON; ``from_dict`` is its inverse."""
        sums = {key: metrics.state() for key, metrics in self.evaluation.metrics.items()}
        return {"sums": sums, "broken": self.broken, "finished": self.finished}

    @staticmethod
    def from_dict(data: Mapping[str, Any], task: Task) -> Fidelity:
        """Return the fidelity that ``as_dict`` described."""
        read = type(task.metrics()).from_state
        metrics = {key: read(state) for key, state in data["sums"].items()}
        return Fidelity(Evaluation(metrics), data["broken"], data["finished"])

    def metrics(self, key: str) -> Metrics:
        """Return the metrics of one candidate."""
        return self.evaluation.metrics[key]

    @property
    def images(self) -> int:
        """Number of images so far."""
        return self.evaluation.images


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
        so_far=so_far.evaluation,
        after_batch=lambda _: after_batch(so_far),
    )
    if not so_far.images:
        raise ValueError(f"{images.source} has no images.")
    so_far.finished = True
