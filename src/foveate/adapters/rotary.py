"""Rotary positions: a table of sines and cosines that tokens read by the patch they are at, or between patches.

The angle of a rotation is affine in a patch's row and column, in every kind of rotary embedding we know. So the table
of the grid is all that is needed to rotate a token that is at the mean of several patches: the step of the angle from
one row or column to the next is read from the table itself, with whatever offsets, scales or learned frequencies are in
it. A frequency of more than half a turn per patch, as DINOv3 has on grids of four rows or fewer, cannot be told from a
slower one; such angles between patches are still between those of their neighbors.
"""

from __future__ import annotations

import torch
from torch import Tensor

from foveate.adapters.blocks import Heads
from foveate.adapters.positions import PositionSource


class RotaryTable(PositionSource):
    """The table of one batch: (N, 2 D) sines, then cosines; (H, N, 2 D) if heads differ, (L, H, N, 2 D) if blocks do.

    Rows are (B, 1, n, 2 D), or (B, H, n, 2 D) if heads differ, and the table itself for all patches in order.
    """

    def __init__(self, grid: tuple[int, int], table: Tensor) -> None:
        super().__init__(grid)
        self.table = table

    def rows(self, index: Tensor | None, block: int) -> Tensor:
        table = self._of_block(block)
        if index is None:
            return table
        if table.dim() == 2:
            return table[index].unsqueeze(1)
        return table[:, index].transpose(0, 1)

    def rows_at(self, coordinates: Tensor, block: int) -> Tensor:
        below = coordinates.floor().long()
        behind = (coordinates - below).unsqueeze(1).unsqueeze(-2)  # (B, 1, n, 1, 2)
        rows = self.rows(below[..., 0] * self.grid[1] + below[..., 1], block)
        down, right = self._steps(self._of_block(block))
        turn = behind[..., 0] * down + behind[..., 1] * right
        sine, cosine = rows.float().chunk(2, dim=-1)
        turned = (sine * turn.cos() + cosine * turn.sin(), cosine * turn.cos() - sine * turn.sin())
        return torch.cat(turned, dim=-1).to(rows.dtype)

    def _of_block(self, block: int) -> Tensor:
        return self.table[block] if self.table.dim() == 4 else self.table

    def _steps(self, table: Tensor) -> tuple[Tensor, Tensor]:
        """By how much angles grow from one row to the next, and from one column to the next: (1, D) or (H, 1, D)."""
        rows, columns = self.grid
        still = torch.zeros_like(table[..., :1, : table.shape[-1] // 2], dtype=torch.float32)
        first = table[..., :1, :].float()
        down = _between(first, table[..., columns : columns + 1, :].float()) if rows > 1 else still
        right = _between(first, table[..., 1:2, :].float()) if columns > 1 else still
        return down, right


def _between(one: Tensor, other: Tensor) -> Tensor:
    """The angle from ``one`` to ``other``, each sines and cosines."""
    (sine, cosine), (sine_, cosine_) = one.chunk(2, dim=-1), other.chunk(2, dim=-1)
    return torch.atan2(sine_ * cosine - cosine_ * sine, cosine_ * cosine + sine_ * sine)


def rotated(heads: Heads, query_rows: Tensor, key_rows: Tensor, prefix: int, half: bool) -> Heads:
    """Queries and keys turned by their rows; ``prefix`` tokens in front are not.

    Args:
        heads: queries, keys and values.
        query_rows: rows of a ``RotaryTable`` for the queries that are patch tokens.
        key_rows: the same for the keys.
        prefix: tokens in front of the patch tokens.
        half: whether channel i turns with i + D / 2, and not with its neighbor.
    """
    q, k = _turned(heads.q, query_rows, prefix, half), _turned(heads.k, key_rows, prefix, half)
    return Heads(q.type_as(heads.v), k.type_as(heads.v), heads.v)


def _turned(x: Tensor, rows: Tensor, prefix: int, half: bool) -> Tensor:
    patches = x[:, :, prefix:]
    sine, cosine = rows.chunk(2, dim=-1)
    if half:
        one, other = patches.chunk(2, dim=-1)
        across = torch.cat([-other, one], dim=-1)
    else:
        across = torch.stack([-patches[..., 1::2], patches[..., ::2]], dim=-1).flatten(-2)
    return torch.cat([x[:, :, :prefix], patches * cosine + across * sine], dim=2)
