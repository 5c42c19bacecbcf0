"""HVT: scalable vision transformers with hierarchical pooling (Pan et al., ICCV 2021)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import avg_pool1d, avg_pool2d, interpolate, max_pool1d, max_pool2d

from foveate.core import Assignment
from foveate.methods.base import BlockView, Method, Site, StepShape, register

Grid = tuple[int, int]
Pool = Literal["max", "avg", "conv"]


@register("hvt")
@dataclass(frozen=True)
class HVTPool(Method):
    """Pool the sequence after the first block of each stage, and add a new positional embedding.

    A model of L blocks has ``stages`` stages of L / stages blocks; the first block of each ends in a pooling of kernel
    3 and stride 2 over the sequence, without padding: 196 -> 97 -> 48 -> 23 -> 11. Prefix tokens are not pooled. Heads
    that average tokens average them plainly here, as the original does, whatever number of patches they stand for. It
    fixes its own counts and is meant to be trained. Width stays.
    """

    stages: int = 1
    """Number of stages, which is the number of poolings; it divides the number of blocks."""
    pool: Pool = "max"
    """Maximum, average, or a learned convolution."""
    pool_dim: Literal[1, 2] = 1
    """Pool along the sequence, or over rows and columns (kernel 3, stride 2, padding 1: 28 x 28 -> 14 x 14)."""

    site: ClassVar[Site] = Site.POST_BLOCK
    training_free: ClassVar[bool] = False
    heads_weigh_by_size: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.stages < 1:
            raise ValueError(f"HVTPool.stages is 1 or more; got {self.stages}.")

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
        """Positions are resampled, a convolution stays as it is."""
        assert isinstance(old, PooledStage)
        assert isinstance(new, PooledStage)
        new.load_state_dict(old.state_dict() | {"pos_embed": resample(old.pos_embed.data, old.shape, new.shape)})

    def build(self, step: StepShape, block: int) -> nn.Module:
        assert step.grid is not None
        shape = self._pooled(self.shape_of(step.grid, step.n), block)
        return PooledStage(step.dim, shape, self.pool, self.pool_dim)

    def assign(self, view: BlockView, keep: int) -> Assignment:
        """Edges of the average over each window; the maximum and the convolution read the same tokens."""
        windows, inside = self._windows(view)
        batch, (slots, reach) = view.tokens.shape[0], windows.shape
        weight = inside / inside.sum(dim=1, keepdim=True)
        slot = torch.arange(slots, device=windows.device).repeat_interleave(reach)
        src, dst, share = (edge.flatten().expand(batch, -1) for edge in (windows, slot, weight))
        return Assignment(src, dst, share, view.patches.shape[1], keep)

    def combine(self, view: BlockView, assignment: Assignment) -> Tensor:
        assert view.module is not None
        assert view.grid is not None
        pooled = view.module(view.patches, self.shape_of(view.grid, view.patches.shape[1]))
        return torch.cat([view.tokens[:, : view.prefix], pooled], dim=1) if view.prefix else pooled

    def macs(self, step: StepShape) -> int:
        return step.keep * 3**self.pool_dim * step.dim**2 if self.pool == "conv" else 0

    def _check_depth(self, depth: int) -> None:
        stages = f"HVTPool.stages={self.stages}"
        if self.stages > depth:
            raise ValueError(f"{stages} is more than the model's {depth} blocks: a stage has one block at least.")
        if depth % self.stages:
            fitting = ", ".join(str(d) for d in range(1, depth + 1) if depth % d == 0)
            depths = ", ".join(str(self.stages * blocks) for blocks in range(1, 5))
            raise ValueError(
                f"{stages} does not divide {depth} blocks. With this number of stages the depth is {depths}, ...; "
                f"with this depth the stages are {fitting}."
            )

    def _pooled(self, shape: Grid, block: int) -> Grid:
        """Rows and columns behind one pooling; a sequence is one row."""
        if self.pool_dim == 2 and min(shape) > 1:
            return (shape[0] + 1) // 2, (shape[1] + 1) // 2
        if self.pool_dim == 1 and shape[1] >= 3:
            return 1, (shape[1] - 3) // 2 + 1
        tokens = "1 token" if shape == (1, 1) else f"{shape[0] * shape[1]} tokens"
        raise ValueError(
            f"HVTPool(stages={self.stages}): {tokens} at block {block}, too few to pool again. "
            "Use fewer stages, larger images or smaller patches."
        )

    def shape_of(self, grid: Grid, n: int) -> Grid:
        """Rows and columns of the n tokens that ``grid`` has become."""
        shape = grid if self.pool_dim == 2 else (1, grid[0] * grid[1])
        while shape[0] * shape[1] > n:
            shape = self._pooled(shape, 0)
        return shape

    def _windows(self, view: BlockView) -> tuple[Tensor, Tensor]:
        """The tokens each slot reads, (K, 3 or 9), and one where there is one, zero where padding is."""
        assert view.grid is not None
        shape = self.shape_of(view.grid, view.patches.shape[1])
        out = self._pooled(shape, view.block)
        padding, device = self.pool_dim - 1, view.tokens.device
        rows, columns = (_reach(o, s, padding, device) for o, s in zip(out, shape, strict=True))
        index = rows[0][:, None, :, None] * shape[1] + columns[0][None, :, None, :]  # (rows, columns, 3, 3)
        inside = rows[1][:, None, :, None] & columns[1][None, :, None, :]
        return torch.where(inside, index, 0).flatten(2).flatten(0, 1), inside.flatten(2).flatten(0, 1).float()


class PooledStage(nn.Module):
    """What begins a stage: pooling, and the positional embedding of the shorter sequence."""

    no_weight_decay = ("pos_embed",)

    def __init__(self, dim: int, shape: Grid, pool: Pool, pool_dim: int) -> None:
        super().__init__()
        self.shape, self.pool, self.pool_dim = shape, pool, pool_dim
        self.pos_embed = nn.Parameter(torch.empty(1, shape[0] * shape[1], dim))
        nn.init.trunc_normal_(self.pos_embed, std=0.02)
        if pool == "conv":
            self.conv = nn.Conv1d(dim, dim, 3, 2) if pool_dim == 1 else nn.Conv2d(dim, dim, 3, 2, padding=1)

    def forward(self, tokens: Tensor, shape: Grid) -> Tensor:
        """Tokens (B, N, C) of that many rows and columns, pooled: (B, K, C)."""
        x = tokens.transpose(1, 2)
        if self.pool_dim == 2:
            x = x.unflatten(2, shape)
        pooled = self._pool(x)
        out = (1, pooled.shape[2]) if self.pool_dim == 1 else (pooled.shape[2], pooled.shape[3])
        # contiguous: blocks would otherwise copy a transposed stream again and again
        return pooled.flatten(2).transpose(1, 2).contiguous() + self._positions(out)

    def _pool(self, x: Tensor) -> Tensor:
        if self.pool == "conv":
            return self.conv(x)
        if self.pool_dim == 1:
            return max_pool1d(x, 3, 2) if self.pool == "max" else avg_pool1d(x, 3, 2)
        if self.pool == "max":
            return max_pool2d(x, 3, 2, padding=1)
        return avg_pool2d(x, 3, 2, padding=1, count_include_pad=False)

    def _positions(self, shape: Grid) -> Tensor:
        """The embedding, resampled where the images are of another size than the model was made for."""
        if shape == self.shape:
            return self.pos_embed
        return resample(self.pos_embed, self.shape, shape)


def resample(positions: Tensor, old: Grid, new: Grid) -> Tensor:
    """Positional embeddings (1, N, C) of ``old`` rows and columns for ``new`` ones; a sequence is one row."""
    grid = positions.transpose(1, 2).unflatten(2, old)
    return interpolate(grid, new, mode="bilinear", align_corners=False).flatten(2).transpose(1, 2)


def _reach(out: int, size: int, padding: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Places that ``out`` windows of kernel 3 and stride 2 read along one side, (out, 3), and whether they exist."""
    if size == 1:  # a sequence is one row, which is not pooled
        return torch.zeros(1, 1, dtype=torch.long, device=device), torch.ones(1, 1, dtype=torch.bool, device=device)
    place = torch.arange(out, device=device).unsqueeze(1) * 2 + torch.arange(3, device=device) - padding
    return place, (place >= 0) & (place < size)
