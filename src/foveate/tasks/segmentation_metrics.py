"""Metrics of masks: a confusion matrix, pixels near boundaries apart, and agreement with another model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import interpolate, log_softmax, max_pool2d

from foveate.data.masks import IGNORED
from foveate.methods.validation import shown
from foveate.tasks.base import Sums

BOUNDARY = 3
"""Pixels from the border between two classes that count as near it."""


@dataclass
class SegmentationMetrics(Sums):
    """What a model predicts for pixels against what they are, and against another model's prediction.

    torchmetrics' JaccardIndex has the same numbers (a test compares them); a matrix by hand adds up over processes,
    and is stored in JSON, as it is.
    """

    confusion: Tensor  # (classes, classes) int64: true class, predicted class
    images: int = 0
    loss: float = 0.0
    """Sum of the cross-entropy over labeled pixels."""
    near: int = 0
    """Labeled pixels near a boundary of the target."""
    near_hits: int = 0
    compared: int = 0
    """Pixels with a reference."""
    agreeing: int = 0
    near_compared: int = 0
    """Pixels near a boundary of the reference."""
    near_agreeing: int = 0
    divergence: float = 0.0
    """Sum of KL(reference || this) over places of the prediction, which may be coarser than pixels."""
    places: int = 0

    def update(self, prediction: Tensor, targets: Any, reference: Tensor | None = None) -> None:
        for number, target in enumerate(targets):
            if target.numel() == 1:  # an image without a mask is judged at the prediction's own size
                target = target.expand(prediction.shape[-2:])
            logits = resized(prediction[number], target.shape[-2:])
            other = None if reference is None else resized(reference[number], target.shape[-2:])
            self._add(logits, target.long(), other)
        self.images += len(targets)
        if reference is not None:
            self.places += prediction[:, 0].numel()
            log_p, log_q = (log_softmax(values.float(), dim=1) for values in (reference, prediction))
            self.divergence += float((log_p.exp() * (log_p - log_q)).sum(dtype=torch.float64))

    def _add(self, logits: Tensor, target: Tensor, reference: Tensor | None) -> None:
        """Count one image: logits and reference (classes, H, W), target (H, W)."""
        decided, known = logits.argmax(dim=0), target != IGNORED
        hit = decided[known] == target[known]
        pairs = target[known] * len(self.confusion) + decided[known]
        counts = torch.bincount(pairs, minlength=self.confusion.numel())
        self.confusion = self.confusion + counts.view_as(self.confusion).cpu()
        self.loss += _cross_entropy_sum(logits, target, known)
        near = near_boundary(target)[known]
        self.near += int(near.sum())
        self.near_hits += int((hit & near).sum())
        if reference is not None:
            theirs = reference.argmax(dim=0)
            same, border = decided == theirs, near_boundary(theirs)
            self.compared += same.numel()
            self.agreeing += int(same.sum())
            self.near_compared += int(border.sum())
            self.near_agreeing += int((same & border).sum())

    def compute(self) -> dict[str, float]:
        found: dict[str, float] = {}
        labeled = int(self.confusion.sum())
        if labeled:
            found["miou"] = 100 * float(per_class_iou(self.confusion).nanmean())
            found["pixel_accuracy"] = 100 * int(self.confusion.diagonal().sum()) / labeled
            found["loss"] = self.loss / labeled
        if self.near:
            found["boundary_accuracy"] = 100 * self.near_hits / self.near
        if self.compared:
            found["agreement"] = 100 * self.agreeing / self.compared
            found["kl"] = self.divergence / self.places
        if self.near_compared:
            found["boundary_agreement"] = 100 * self.near_agreeing / self.near_compared
        return found

    def state(self) -> dict[str, Any]:
        return super().state() | {"confusion": self.confusion.tolist()}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> SegmentationMetrics:
        rows = state["confusion"]
        square = isinstance(rows, list) and all(isinstance(row, list) and len(row) == len(rows) for row in rows)
        if not square or not all(type(value) is int and value >= 0 for row in rows for value in row):
            raise ValueError(f"confusion is a square table of counts; got {shown(rows)}.")
        found = cls(**{**state, "confusion": torch.tensor(rows, dtype=torch.int64)})
        found.check_sums()
        if not (0 <= found.agreeing <= found.compared and 0 <= found.near_hits <= found.near):
            raise ValueError("There are more hits than pixels.")
        return found

    def per_class(self) -> list[float]:
        """IoU of each class in percent; NaN for a class that neither target nor prediction has."""
        return (100 * per_class_iou(self.confusion)).tolist()


def per_class_iou(confusion: Tensor) -> Tensor:
    """Intersection over union of each class; NaN where both are empty."""
    both = confusion.diagonal().double()
    return both / (confusion.sum(dim=0) + confusion.sum(dim=1) - confusion.diagonal()).double()


def near_boundary(mask: Tensor, radius: int = BOUNDARY) -> Tensor:
    """Pixels (H, W) with two classes in the square of ``radius`` pixels around them; ignored pixels have none."""
    values = mask.float()[None, None]
    known = (mask != IGNORED)[None, None]
    largest = max_pool2d(torch.where(known, values, -1.0), 2 * radius + 1, 1, radius)
    smallest = -max_pool2d(torch.where(known, -values, -float(IGNORED)), 2 * radius + 1, 1, radius)
    return ((largest > smallest) & (largest >= 0))[0, 0]


def resized(logits: Tensor, size: Sequence[int]) -> Tensor:
    """Logits (classes, h, w) at another size."""
    if tuple(logits.shape[-2:]) == tuple(size):
        return logits
    return interpolate(logits[None].float(), size=tuple(size), mode="bilinear")[0]


def _cross_entropy_sum(logits: Tensor, target: Tensor, known: Tensor) -> float:
    log_p = log_softmax(logits.float(), dim=0)
    picked = log_p.gather(0, torch.where(known, target, 0)[None])[0]
    return -float(picked[known].sum(dtype=torch.float64))
