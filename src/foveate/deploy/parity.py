"""Is the exported model the one that was exported: outputs compared with eager PyTorch, image by image."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from foveate.deploy.targets import Run

BATCH = 16
FLIPS = 0.05
"""Share of images on which a reduced model may choose other tokens: scores that are equal up to rounding."""


@dataclass(frozen=True)
class Parity:
    """How far an exported model is from eager PyTorch."""

    images: int
    tolerance: float
    """Largest difference that counts as rounding, relative to an image's largest output, at least 1."""
    largest_difference: float
    """Relative to the same, over all images within the tolerance."""
    flipped: int
    """Images beyond the tolerance. In a reduced model rounding may change which tokens are chosen."""
    agreement: float
    """Share of images with the same largest output."""

    @property
    def holds(self) -> bool:
        return self.flipped <= FLIPS * self.images


def outputs_of(run: Run | Callable[[Tensor], Sequence[Tensor]], images: Tensor) -> list[Tensor]:
    """All outputs over ``images``, in batches; the last batch may have another size."""
    with torch.no_grad():
        parts = [list(run(images[start : start + BATCH])) for start in range(0, len(images), BATCH)]
    return [torch.cat(found) for found in zip(*parts, strict=True)]


def compare(expected: Sequence[Tensor], found: Sequence[Tensor], tolerance: float, may_flip: bool) -> Parity:
    """Compare all outputs of two runs over the same images."""
    worst = torch.stack([_difference(*pair) for pair in zip(expected, found, strict=True)]).amax(dim=0)
    within = worst <= tolerance
    if not may_flip and not bool(within.all()):
        within = torch.zeros_like(within)
    largest = float(worst[within].max()) if bool(within.any()) else float(worst.max())
    return Parity(len(worst), tolerance, largest, int((~within).sum()), agreement(expected[0], found[0]))


def agreement(expected: Tensor, found: Tensor) -> float:
    """Share of images with the same largest output."""
    return float((expected.flatten(1).argmax(1) == found.flatten(1).argmax(1)).float().mean())


def first_differing(expected: Sequence[Tensor], found: Sequence[Tensor], tolerance: float) -> int | None:
    """The first of several outputs, such as blocks, that differs on any image; None if none does."""
    for number, pair in enumerate(zip(expected, found, strict=True)):
        if pair[0].shape != pair[1].shape or bool((_difference(*pair) > tolerance).any()):
            return number
    return None


def _difference(expected: Tensor, found: Tensor) -> Tensor:
    """(B,) the largest difference of each image, relative to its largest value, at least 1; inf for NaN."""
    if expected.shape != found.shape:
        return torch.full((len(expected),), torch.inf)
    one, other = (value.float().flatten(1) for value in (expected, found))
    return ((one - other).abs().amax(1) / one.abs().amax(1).clamp_min(1)).nan_to_num(torch.inf)
