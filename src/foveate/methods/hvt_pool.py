"""HVT: scalable vision transformers with hierarchical pooling (Pan et al., ICCV 2021)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import avg_pool1d, avg_pool2d, interpolate, max_pool1d, max_pool2d, pad

from foveate.core import Assignment
from foveate.methods.base import BlockView, Kind, Site, StepShape
from foveate.methods.learned import LearnedMethod
from foveate.methods.registry import register

Grid = tuple[int, int]
Pool = Literal["max", "avg", "conv"]


@register
@dataclass(frozen=True)
class HVTPool(LearnedMethod):
    """Pool the sequence after the first block of each stage, and add a new positional embedding.

    A model of L blocks has ``stages`` stages of L / stages blocks. The first block of each stage ends in a pooling of
    kernel 3 and stride 2 over the sequence, without padding: 196 -> 97 -> 48 -> 23 -> 11. Prefix tokens are not pooled.
    Heads that average tokens give all tokens equal weight, as in the original. The method fixes its own counts and
    needs training. The width is unchanged.
    """

    stages: int = 1
    """Number of stages, one pooling each; it must divide the number of blocks."""
    pool: Pool = "max"
    """Maximum, average, or a learned convolution."""
    pool_dim: Literal[1, 2] = 1
    """Pool along the sequence, or over rows and columns (kernel 3, stride 2, padding 1: 28 x 28 -> 14 x 14)."""

    site: ClassVar[Site] = Site.POST_BLOCK
    kind: ClassVar[Kind] = "pool"
    training_free: ClassVar[bool] = False
    heads_weigh_by_size: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.stages < 1:
            raise ValueError(f"HVTPool.stages must be at least 1, got {self.stages}.")

    def own_counts(self, depth: int, grid: Grid) -> tuple[int, ...]:
        self._check_depth(depth)
        shape = grid if self.pool_dim == 2 else (1, grid[0] * grid[1])
        counts = []
        for block in range(depth):
            if block % (depth // self.stages) == 0:
                shape = self._pooled(shape, block)
            counts.append(shape[0] * shape[1])
        return tuple(counts)

    def resize(self, old: nn.Module, new: nn.Module) -> None:
        """Resample positions and copy the convolution."""
        assert isinstance(old, PooledStage)
        assert isinstance(new, PooledStage)
        new.load_state_dict(old.state_dict() | {"pos_embed": old.positions(new.grid).detach()})

    def build(self, step: StepShape, block: int) -> nn.Module:
        assert step.grid is not None
        shapes = self._shapes(step.grid, step.n)
        self._pooled(shapes[-1], block)  # raises if there is too little to pool
        return PooledStage(step.dim, step.grid, len(shapes), self.pool, self.pool_dim)

    def assign(self, view: BlockView, keep: int) -> Assignment:
        """Edges of the average over each window; the maximum and the convolution read the same tokens."""
        windows = self._windows(view)
        inside = windows >= 0
        weight = inside / inside.sum(dim=1, keepdim=True)
        slot = torch.arange(keep, device=windows.device).unsqueeze(1).expand_as(windows)
        batch = view.tokens.shape[0]
        fields = (windows.clamp(min=0), slot, weight, inside)
        src, dst, share, present = (field.flatten().expand(batch, -1) for field in fields)
        padded = present if self.pool_dim == 2 else None
        return Assignment(src, dst, share, view.patches.shape[1], keep, present=padded)

    def combine(self, view: BlockView, assignment: Assignment) -> Tensor:
        assert view.module is not None
        assert view.grid is not None
        pooled = view.module(view.patches, view.grid)
        return torch.cat([view.tokens[:, : view.prefix], pooled], dim=1) if view.prefix else pooled

    def macs(self, step: StepShape) -> int:
        return step.keep * 3**self.pool_dim * step.dim**2 if self.pool == "conv" else 0

    def _check_depth(self, depth: int) -> None:
        stages = f"HVTPool.stages={self.stages}"
        if self.stages > depth:
            raise ValueError(f"{stages} is more than the model's {depth} blocks; every stage needs at least one.")
        if depth % self.stages:
            fitting = ", ".join(str(d) for d in range(1, depth + 1) if depth % d == 0)
            depths = ", ".join(str(self.stages * blocks) for blocks in range(1, 5))
            raise ValueError(
                f"{stages} does not divide {depth} blocks. Use {depths}, ... blocks with this number of stages, "
                f"or {fitting} stages with this depth."
            )

    def _pooled(self, shape: Grid, block: int) -> Grid:
        """Rows and columns after one pooling; raises if there is too little to pool."""
        if min(shape) > 1 if self.pool_dim == 2 else shape[1] >= 3:
            return shape_after(shape, self.pool_dim)
        tokens = "1 token" if shape == (1, 1) else f"{shape[0] * shape[1]} tokens"
        raise ValueError(
            f"HVTPool(stages={self.stages}) has only {tokens} left at block {block}, too few to pool again. "
            "Use fewer stages, larger images or smaller patches."
        )

    def shape_of(self, grid: Grid, n: int) -> Grid:
        """Rows and columns of the n tokens left of ``grid``."""
        return self._shapes(grid, n)[-1]

    def _shapes(self, grid: Grid, n: int) -> list[Grid]:
        """Rows and columns before the first pooling and after each one, down to n tokens."""
        shapes = [grid if self.pool_dim == 2 else (1, grid[0] * grid[1])]
        while shapes[-1][0] * shapes[-1][1] > n:
            shapes.append(self._pooled(shapes[-1], 0))
        return shapes

    def _windows(self, view: BlockView) -> Tensor:
        """The tokens that each slot reads, (K, 3 or 9); -1 for padding."""
        assert view.grid is not None
        n = view.patches.shape[1]
        place = torch.arange(n, device=view.tokens.device)
        if self.pool_dim == 1:
            return place.unfold(0, 3, 2)
        padded = pad(place.view(self.shape_of(view.grid, n)), (1, 1, 1, 1), value=-1)
        return padded.unfold(0, 3, 2).unfold(1, 3, 2).flatten(2).flatten(0, 1)


class PooledStage(nn.Module):
    """The start of a stage: pooling, and the positional embedding of the shorter sequence.

    ``grid`` is the patch grid before the first of the ``poolings`` up to this one. It locates pooled positions in the
    image.
    """

    no_weight_decay = ("pos_embed",)

    def __init__(self, dim: int, grid: Grid, poolings: int, pool: Pool, pool_dim: int) -> None:
        super().__init__()
        self.grid, self.poolings, self.pool, self.pool_dim = grid, poolings, pool, pool_dim
        rows, columns = shapes_after(grid, poolings, pool_dim)[-1]
        self.pos_embed = nn.Parameter(torch.empty(1, rows * columns, dim))
        nn.init.trunc_normal_(self.pos_embed, std=0.02)
        if pool == "conv":
            self.conv = nn.Conv1d(dim, dim, 3, 2) if pool_dim == 1 else nn.Conv2d(dim, dim, 3, 2, padding=1)

    def forward(self, tokens: Tensor, grid: Grid) -> Tensor:
        """Pool tokens (B, N, C) of an image with this patch grid: (B, K, C)."""
        x = tokens.transpose(1, 2)
        if self.pool_dim == 2:
            x = x.unflatten(2, shapes_after(grid, self.poolings - 1, 2)[-1])
        # contiguous, or every following block would copy the transposed stream
        return self._pool(x).flatten(2).transpose(1, 2).contiguous() + self.positions(grid)

    def _pool(self, x: Tensor) -> Tensor:
        if self.pool == "conv":
            return self.conv(x)
        if self.pool_dim == 1:
            return max_pool1d(x, 3, 2) if self.pool == "max" else avg_pool1d(x, 3, 2)
        if self.pool == "max":
            return max_pool2d(x, 3, 2, padding=1)
        return avg_pool2d(x, 3, 2, padding=1, count_include_pad=False)

    def positions(self, grid: Grid) -> Tensor:
        """The embedding, resampled if the image has another patch grid than the model was built for."""
        return resample(self.pos_embed, self.grid, grid, self.poolings, self.pool_dim)


def shape_after(shape: Grid, pool_dim: int) -> Grid:
    """Rows and columns after one pooling; a sequence is one row."""
    return ((shape[0] + 1) // 2, (shape[1] + 1) // 2) if pool_dim == 2 else (1, (shape[1] - 3) // 2 + 1)


def shapes_after(grid: Grid, poolings: int, pool_dim: int) -> list[Grid]:
    """Rows and columns of the patches, and after each of ``poolings`` poolings."""
    shapes = [grid if pool_dim == 2 else (1, grid[0] * grid[1])]
    for _ in range(poolings):
        shapes.append(shape_after(shapes[-1], pool_dim))
    return shapes


def resample(positions: Tensor, old: Grid, new: Grid, poolings: int, pool_dim: int) -> Tensor:
    """Resample the embeddings (1, N, C) of pooled tokens from the patch grid ``old`` to ``new``.

    Neighbors in the sequence may lie at opposite ends of an image row. Positions are therefore spread back to the
    patches, resampled there in rows and columns, and pooled again.
    """
    if old == new:
        return positions
    exact = positions.to(torch.promote_types(positions.dtype, torch.float32))
    patches = _to_patches(exact.transpose(1, 2), old, poolings, pool_dim)
    patches = interpolate(patches, new, mode="bilinear", antialias=True)
    return _averaged(patches, poolings, pool_dim).transpose(1, 2).to(positions.dtype)


CORRECTIONS = 2
"""Rounds that sharpen positions after spreading; without them, positions are blurred along the sequence."""


def _to_patches(pooled: Tensor, grid: Grid, poolings: int, pool_dim: int) -> Tensor:
    """Embeddings (1, C, rows, columns) of patches whose averages over all windows are about ``pooled`` (1, C, N)."""
    patches = _spread(pooled, grid, poolings, pool_dim)
    for _ in range(CORRECTIONS):
        lost = pooled - _averaged(patches, poolings, pool_dim)
        patches = patches + _spread(lost, grid, poolings, pool_dim)
    return patches


def _averaged(patches: Tensor, poolings: int, pool_dim: int) -> Tensor:
    """Means (1, C, N) over the windows of all poolings, of patches (1, C, rows, columns)."""
    if pool_dim == 2:
        for _ in range(poolings):
            patches = avg_pool2d(patches, 3, 2, padding=1, count_include_pad=False)
        return patches.flatten(2)
    pooled = patches.flatten(2)
    for _ in range(poolings):
        pooled = avg_pool1d(pooled, 3, 2)
    return pooled


def _spread(pooled: Tensor, grid: Grid, poolings: int, pool_dim: int) -> Tensor:
    """Undo one pooling after another: every patch becomes the mean of its windows, (1, C, rows, columns)."""
    *before, last = shapes_after(grid, poolings, pool_dim)
    x = pooled.unflatten(2, last)
    for rows, columns in reversed(before):
        x = _stretch(x, columns, 3, pool_dim - 1)
        x = _stretch(x, rows, 2, 1) if pool_dim == 2 else x
    return x.flatten(2).unflatten(2, grid)


def _stretch(x: Tensor, size: int, dim: int, padding: int) -> Tensor:
    """Undo one pooling along ``dim``: each of ``size`` places is the mean of its one or two windows, or of the last."""
    place = torch.arange(size, device=x.device) + padding
    windows = (((place + shift) // 2).clamp(0, x.shape[dim] - 1) for shift in (-1, 0))
    first, second = (x.index_select(dim, window) for window in windows)
    return (first + second) / 2
