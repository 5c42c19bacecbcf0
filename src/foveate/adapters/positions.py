"""Positions that travel with tokens, for models whose blocks read positions: rotary or relative.

A token keeps a position through every reduction: that of its representative, the member with the most weight, or the
mean of its members' coordinates. What a block reads for a position (angles, rows of a table) is up to its family.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from foveate.core import Assignment, member_means, representatives


class PositionSource(ABC):
    """What the blocks of one model read for each position of one batch of images."""

    def __init__(self, grid: tuple[int, int]) -> None:
        self.grid = grid

    @abstractmethod
    def rows(self, index: Tensor | None, block: int) -> Any:
        """What ``block`` reads for the patches ``index`` (B, N); None for all patches in order."""

    def rows_at(self, coordinates: Tensor, block: int) -> Any:
        """What ``block`` reads at ``coordinates`` (B, N, 2), rows and columns in units of patches.

        Only for families with ``Family.positions_between_patches``.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class Positions:
    """Where the patch tokens of a stream are."""

    source: PositionSource
    averages: bool = False
    """Whether a merged token is at the mean of its members; otherwise at its representative."""
    index: Tensor | None = None  # (B, N) patch that each token is at; None while all patches are there in order
    coordinates: Tensor | None = None  # (B, N, 2) rows and columns, if they are averaged and tokens were reduced

    def rows(self, block: int) -> Any:
        """What ``block`` reads for these tokens."""
        if self.coordinates is not None:
            return self.source.rows_at(self.coordinates, block)
        return self.source.rows(self.index, block)

    def after(self, assignment: Assignment, size: Tensor | None, batch: int, device: torch.device) -> Positions:
        """The positions after a reduction; ``size`` (B, N) is how many patches each token stood for."""
        if self.averages:
            here = self._all_coordinates(batch, device) if self.coordinates is None else self.coordinates
            return replace(self, coordinates=member_means(here, assignment, size))
        chosen = representatives(assignment, batch, device)
        return replace(self, index=chosen if self.index is None else self.index.gather(1, chosen))

    def of_no_patch(self, device: torch.device) -> Positions:
        """The positions of a sequence of prefix tokens only."""
        return replace(self, index=torch.empty(1, 0, dtype=torch.long, device=device), coordinates=None)

    def _all_coordinates(self, batch: int, device: torch.device) -> Tensor:
        rows, columns = self.source.grid
        number = torch.arange(rows * columns, device=device)
        pairs = torch.stack([number.div(columns, rounding_mode="floor"), number % columns], dim=-1)
        return pairs.float().expand(batch, -1, -1)
