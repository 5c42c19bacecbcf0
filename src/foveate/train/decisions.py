"""What a model decides about images, counted next to what another one decides."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from foveate.train.objectives import correct


@dataclass
class Decisions:
    """Over all images so far."""

    images: int = 0
    labelled: int = 0
    hits: int = 0
    hits5: int = 0
    agreeing: int = 0
    """Images on which it decides as the other model does."""

    def add(self, logits: Tensor, others: Tensor, labels: Tensor) -> None:
        """Count one batch; ``others`` are the other model's logits, and labels below zero are not known."""
        known = labels >= 0
        hits = correct(logits[known], labels[known])
        self.images += len(labels)
        self.labelled += int(known.sum())
        self.hits += int(hits["top1"])
        self.hits5 += int(hits["top5"])
        self.agreeing += int((logits.argmax(dim=1) == others.argmax(dim=1)).sum())

    @property
    def top1(self) -> float | None:
        return 100 * self.hits / self.labelled if self.labelled else None

    @property
    def top5(self) -> float | None:
        return 100 * self.hits5 / self.labelled if self.labelled else None

    @property
    def agreement(self) -> float:
        return 100 * self.agreeing / self.images
