"""Strided convolution between blocks, a baseline of Token Pooling (Marin et al., appendix D)."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import ClassVar

import torch
from torch import Tensor, nn

from foveate.core import Assignment, take
from foveate.methods.base import BlockView, Kind, Site, StepShape
from foveate.methods.learned import LearnedMethod
from foveate.methods.registry import register

Grid = tuple[int, int]


@register
@dataclass(frozen=True)
class StridedConv(LearnedMethod):
    """Turn every 2 x 2 window of tokens into one by a learned convolution of stride 2 that keeps the width.

    The convolution is computed as one linear layer on the four concatenated tokens of a window. The method fixes its
    own counts: 196 tokens become 49, 9 and 1, because the convolution has no padding and an odd last row or column is
    dropped. The convolution starts as the average of each window (the paper does not specify this) and needs training.
    """

    blocks: tuple[int, ...] = ()
    """Blocks with a convolution, counted from 0, at most three on a 14 x 14 grid; empty: the middle block."""

    site: ClassVar[Site] = Site.POST_ATTN
    kind: ClassVar[Kind] = "pool"
    training_free: ClassVar[bool] = False

    def own_counts(self, depth: int, grid: Grid) -> tuple[int, ...]:
        blocks = self.blocks or (depth // 2,)
        if list(blocks) != sorted(set(blocks)) or not all(0 <= block < depth for block in blocks):
            raise ValueError(f"StridedConv.blocks must rise, within 0..{depth - 1} on this model; got {blocks}.")
        counts = []
        for block in range(depth):
            if block in blocks:
                if min(grid) < 2:
                    raise ValueError(
                        f"StridedConv.blocks={blocks}: {grid[0]} x {grid[1]} tokens at block {block} are too few. "
                        "Use fewer blocks or larger images."
                    )
                grid = halved(grid)
            counts.append(grid[0] * grid[1])
        return tuple(counts)

    def build(self, step: StepShape, block: int) -> nn.Module:
        layer = nn.Linear(4 * step.dim, step.dim)
        with torch.no_grad():
            layer.weight.copy_(torch.eye(step.dim).repeat(1, 4) / 4)
            layer.bias.zero_()
        return layer

    def assign(self, view: BlockView, keep: int) -> Assignment:
        """Edges of an average over each window, which the convolution generalizes."""
        windows = self._windows(view).expand(view.tokens.shape[0], -1)
        slot = torch.arange(keep, device=windows.device).repeat_interleave(4).expand(windows.shape)
        quarter = torch.full(windows.shape, 0.25, device=windows.device)
        return Assignment(windows, slot, quarter, view.patches.shape[1], keep)

    def combine(self, view: BlockView, assignment: Assignment) -> Tensor:
        assert view.module is not None
        assert assignment.src is not None
        rows = take(view.patches, assignment.src).unflatten(1, (assignment.num_out, 4)).flatten(2)
        return torch.cat([view.tokens[:, : view.prefix], view.module(rows)], dim=1)

    def macs(self, step: StepShape) -> int:
        return step.keep * 4 * step.dim**2

    def _windows(self, view: BlockView) -> Tensor:
        """The four tokens of each window, one window after another: (1, 4 K)."""
        assert view.grid is not None
        rows, columns = current_grid(view.grid, view.patches.shape[1])
        place = torch.arange(rows * columns, device=view.tokens.device).view(rows, columns)
        place = place[: rows // 2 * 2, : columns // 2 * 2].unflatten(0, (-1, 2)).unflatten(2, (-1, 2))
        return place.transpose(1, 2).reshape(1, -1)


def halved(grid: Grid) -> Grid:
    """The grid after a 2 x 2 convolution of stride 2 without padding."""
    return grid[0] // 2, grid[1] // 2


def current_grid(grid: Grid, n: int) -> Grid:
    """Halve ``grid`` until it has n tokens."""
    while grid[0] * grid[1] > n:
        grid = halved(grid)
    return grid


def placements(depth: int = 12, grid: Grid = (14, 14)) -> list[tuple[int, ...]]:
    """All ways to place one, two or three evenly spaced layers (l2 - l1 = l3 - l2); appendix D.

    There are fewer layers if the grid cannot be halved three times.
    """
    layers = 0
    while min(grid) >= 2 and layers < 3:
        grid, layers = halved(grid), layers + 1
    chosen = [blocks for number in range(1, layers + 1) for blocks in combinations(range(depth), number)]
    return [b for b in chosen if len(b) < 3 or b[1] - b[0] == b[2] - b[1]]
