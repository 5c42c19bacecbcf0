"""Smaller images: what one would do without token reduction, as a baseline. Positions are resampled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.nn.functional import interpolate

from foveate.adapters import UnsupportedModel, inspect
from foveate.costs import count, unreduced
from foveate.report.compare.candidates import Candidate, Candidates, distinct
from foveate.report.compare.comparison import Refused
from foveate.report.compare.descent import further
from foveate.report.compare.question import SMALLER_IMAGES

LABEL = "Smaller images (baseline)"


@dataclass(frozen=True)
class Shrink:
    """A forward pre-hook that shrinks images, so that a candidate takes the same images as all others."""

    height: int
    width: int

    def __call__(self, module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        images: Tensor = inputs[0]
        small = interpolate(images, (self.height, self.width), mode="bicubic", antialias=True, align_corners=False)
        return (small, *inputs[1:])


def smaller_images(
    model: nn.Module, budgets: Sequence[float], holds: Callable[[Candidate], bool] | None = None
) -> Candidates:
    """The model with smaller images, at the sizes whose MACs are nearest to each budget.

    Args:
        model: the unreduced model.
        budgets: shares of the MACs.
        holds: goes on to smaller images while this holds, as ``further`` does.
    """
    made = [_shrunk(model, budget) for budget in budgets]
    made += [] if holds is None else further(lambda budget: _shrunk(model, budget), made, holds)
    refused = dict.fromkeys(one for one in made if isinstance(one, Refused))
    return Candidates(tuple(distinct([one for one in made if isinstance(one, Candidate)])), tuple(refused))


def _shrunk(model: nn.Module, budget: float) -> Candidate | Refused:
    family = inspect(model)
    rows, columns = _nearest_grid(model, budget)
    height, width = (
        size // n * m for size, n, m in zip(family.image_size[1:], family.grid, (rows, columns), strict=True)
    )
    try:
        resized = family.at_image_size(height, width).eval()
    except UnsupportedModel as error:
        return Refused(SMALLER_IMAGES, LABEL, None, str(error))
    resized.register_forward_pre_hook(Shrink(height, width))
    code = f"model.set_input_size(img_size=({height}, {width}))  # and images of {height} x {width} pixels"
    return Candidate(SMALLER_IMAGES, LABEL, "none", budget, resized, code)


def _nearest_grid(model: nn.Module, budget: float) -> tuple[int, int]:
    """Rows and columns of patches, in the model's proportion, whose MACs come nearest to a share of the model's."""
    family = inspect(model)
    rows, columns = family.grid
    grids = {(n, max(1, round(n * columns / rows))) for n in range(1, rows)} or {(rows, columns)}
    whole = family.cost().macs

    def macs(grid: tuple[int, int]) -> float:
        shape = family.shape(grid)
        return count(shape, unreduced(shape), None, 0).macs / whole

    return min(sorted(grids), key=lambda grid: abs(macs(grid) - budget))
