"""Fixed radial patterns, the baseline of "Which Tokens to Use?" (Haurum et al., ICCV workshops 2023)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from foveate.core import Assignment, keep_topk
from foveate.core.graphs import largest_by_position
from foveate.methods.base import BlockView, Kind, Method, Site
from foveate.methods.registry import register


@register
@dataclass(frozen=True)
class RadialSelect(Method):
    """Keep the patches nearest to the center of the image, whatever they show.

    The distance of a patch from the center is |x| + |y| (``l1``), sqrt(x^2 + y^2) (``l2``) or max(|x|, |y|)
    (``linf``), with x and y from -1 to 1. The original keeps whole rings, so that its counts only come near those asked
    for; here counts are exact, and of equally near patches the first stay.
    """

    norm: Literal["l1", "l2", "linf"] = "l2"
    """Shape of the pattern: a diamond, a disk or a square."""

    site: ClassVar[Site] = Site.PRE_BLOCK
    kind: ClassVar[Kind] = "select"
    baseline: ClassVar[bool] = True

    def assign(self, view: BlockView, keep: int) -> Assignment:
        assert view.grid is not None
        batch, n = view.patches.shape[:2]
        near = -self._distance(view.grid, view.tokens.device).unsqueeze(0)
        left = largest_by_position(near, n)  # earlier blocks kept the n nearest
        return keep_topk(near.gather(1, left).expand(batch, n), keep)

    def _distance(self, grid: tuple[int, int], device: torch.device) -> Tensor:
        """(rows * columns,) distance of each patch from the center."""
        # whole numbers on the way, so that patches opposite to each other are equally far in every digit
        rows, columns = (
            (2 * torch.arange(size, device=device) - (size - 1)).abs().float() / max(1, size - 1) for size in grid
        )
        y, x = rows.unsqueeze(1), columns.unsqueeze(0)
        if self.norm == "l1":
            return (x + y).flatten()
        return ((x * x + y * y) if self.norm == "l2" else torch.maximum(x, y)).flatten()
