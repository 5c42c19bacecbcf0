"""Figures over a data set: every image counted once, however many processes share it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from foveate.data import Batch
from foveate.train.decisions import Decisions
from foveate.train.objectives import Objective, logits_of

Sums = dict[str, Tensor]


@torch.no_grad()
def evaluate(
    objective: Objective, model: nn.Module, batches: Iterable[Batch], accelerator: Accelerator, reporter: Any = None
) -> dict[str, float]:
    """Means of what ``objective`` measures on ``model``; accuracies in per cent."""
    objective.eval()
    model.eval()
    sums: Sums = {}
    count = torch.zeros((), device=accelerator.device)
    for batch in batches:
        images, labels = batch.images.to(accelerator.device), batch.labels.to(accelerator.device)
        with accelerator.autocast():
            found = objective.measure(model, images, labels)
        sums = {name: sums.get(name, torch.zeros_like(value)) + value for name, value in found.items()}
        count += len(batch)
        if reporter is not None:
            reporter.evaluated(int(count))
    return _means(sums, count, accelerator)


def _means(sums: Sums, count: Tensor, accelerator: Accelerator) -> dict[str, float]:
    names = names_everywhere(sums, accelerator)
    zero = torch.zeros((), device=accelerator.device)
    total = accelerator.reduce(count, "sum").item()
    if not total:
        raise ValueError("The evaluation has no images.")
    means = {name: accelerator.reduce(sums.get(name, zero).double(), "sum").item() / total for name in names}
    return {name: 100 * mean if name.startswith("top") else mean for name, mean in means.items()} | {"images": total}


def names_everywhere(sums: Sums, accelerator: Accelerator) -> list[str]:
    """The names of the sums; a process that had no image at all learns them from the others."""
    if accelerator.num_processes == 1:
        return list(sums)
    gathered: list[Any] = [None] * accelerator.num_processes
    torch.distributed.all_gather_object(gathered, list(sums))
    return max(gathered, key=len)


@dataclass
class Figures(Decisions):
    """What one model came to on a data set, next to the first one."""

    seconds: float = 0.0
    """Time in the model alone."""

    @property
    def per_second(self) -> float:
        return self.images / self.seconds


@torch.no_grad()
def evaluate_side_by_side(
    models: Mapping[str, nn.Module], batches: Iterable[Batch], device: torch.device, progress: Any = None
) -> dict[str, Figures]:
    """Accuracy of each model and its agreement with the first; they take turns at every batch, in turning order."""
    found = {name: Figures() for name in models}
    names = list(models)
    for model in models.values():
        model.to(device).eval()
    for number, batch in enumerate(batches):
        images, labels = batch.images.to(device), batch.labels.to(device)
        turn = number % len(names)
        logits = {name: _timed(models[name], images, found[name]) for name in names[turn:] + names[:turn]}
        for name, scores in logits.items():
            found[name].add(scores, logits[names[0]], labels)
        if progress is not None:
            progress(len(batch))
    if not found[names[0]].images:
        raise ValueError("The evaluation has no images.")
    return found


def _timed(model: nn.Module, images: Tensor, figures: Figures) -> Tensor:
    start = time.perf_counter()
    logits = logits_of(model(images)).float()
    if images.device.type != "cpu":
        torch.accelerator.synchronize(images.device)
    figures.seconds += time.perf_counter() - start
    return logits
