"""Relative positions: a bias on the attention of each pair of tokens, read from a table by the patches they are at."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from foveate.adapters.positions import PositionSource


class PairBias(PositionSource):
    """The biases of one model, each (H, P + N, P + N) or with a batch of 1 in front, prefix tokens first.

    Args:
        grid: rows and columns of patches.
        shared: the bias that all blocks read; None if there is none.
        own: the bias that only one block reads, computed when it is asked for; None if there is none.
    """

    def __init__(self, grid: tuple[int, int], shared: Tensor | None, own: Callable[[int], Tensor | None]) -> None:
        super().__init__(grid)
        self.shared, self.own = shared, own

    def rows(self, index: Tensor | None, block: int) -> BiasRows:
        return BiasRows(self, block, index)

    def table(self, block: int) -> Tensor:
        """(H, P + N, P + N) the bias of every pair in ``block``."""
        found = [bias if bias.dim() == 3 else bias[0] for bias in (self.own(block), self.shared) if bias is not None]
        return found[0] if len(found) == 1 else found[0] + found[1]


@dataclass(frozen=True)
class BiasRows:
    """What a block reads for its tokens: the biases of all pairs, and which rows and columns are theirs."""

    source: PairBias
    block: int
    index: Tensor | None  # (B, n) patch that each patch token is at; None for all patches in order

    def places(self, tokens: int) -> Tensor:
        """(B, P + n) rows of a table of so many tokens: those of prefix tokens, then those of patches."""
        prefix = tokens - self.source.grid[0] * self.source.grid[1]
        assert self.index is not None
        first = torch.arange(prefix, device=self.index.device).expand(self.index.shape[0], -1)
        return torch.cat([first, self.index + prefix], dim=1)


def bias_of_pairs(queries: BiasRows, keys: BiasRows) -> Tensor:
    """(B, H, n_q, n_k) the bias of each pair of tokens; B is 1 where no image differs."""
    table = queries.source.table(queries.block)
    tokens, everywhere = table.shape[1], torch.arange(table.shape[1], device=table.device).unsqueeze(0)
    if queries.index is None and keys.index is None:
        return table.unsqueeze(0)
    q = everywhere if queries.index is None else queries.places(tokens)
    k = everywhere if keys.index is None else keys.places(tokens)
    pairs = q.unsqueeze(2) * tokens + k.unsqueeze(1)
    return table.flatten(1)[:, pairs].transpose(0, 1)
