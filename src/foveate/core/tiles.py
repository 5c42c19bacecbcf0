"""Large tables of pairs, one strip of rows at a time."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

MOST_TOKENS = 4096
"""Tokens above which no table of all their pairs is held in memory."""
MOST_PAIRS = (MOST_TOKENS // 2) ** 2
"""Pairs of one image in memory at once: those of 4,096 tokens divided into two halves, 16 MiB in float32."""

Pair = tuple[Tensor, Tensor]


def by_strips(rows: int, columns: int, best: Callable[[slice], Pair]) -> Pair:
    """The results of ``best``, a value and an index for each row, (B, rows), over strips of a rows x columns table.

    Args:
        rows: rows of the table.
        columns: its columns.
        best: computes (B, strip) values and indices of the rows of a strip; a small table is one strip.
    """
    height = max(1, MOST_PAIRS // max(1, columns))
    if rows <= height:
        return best(slice(0, rows))
    strips = [best(slice(start, start + height)) for start in range(0, rows, height)]
    values, indices = zip(*strips, strict=True)
    return torch.cat(values, dim=1), torch.cat(indices, dim=1)
