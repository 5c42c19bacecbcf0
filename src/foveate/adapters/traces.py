"""The trace of a forward pass: which patches each token holds after each block."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from foveate.adapters.stream import Encoded
from foveate.core import Assignment, compose


@dataclass(frozen=True)
class Trace:
    """Which patches each token holds after each block of one forward pass.

    ``trace.after(block)`` is one ``Assignment`` from the image's patches to the tokens there;
    ``trace.owner(block)`` gives the token of each patch; ``trace.keys(block)`` is the same for keys, if a method
    reduces only keys and values. Under ``exact_last_block`` no patch token leaves the last block; its entry describes
    the tokens that entered it.
    """

    grid: tuple[int, int]
    num_prefix: int
    batch: int
    counts: tuple[int, ...]
    """Patch tokens after every block."""
    steps: tuple[Assignment | None, ...]
    """The reduction of patch tokens in each block; None if there was none."""
    key_steps: tuple[Assignment | None, ...]
    """The reduction of only keys and values in each block; None if there was none."""
    device: torch.device
    unmerged: tuple[int, ...] = ()
    """Blocks after which every patch has its own token again."""

    @staticmethod
    def of(encoded: Encoded, grid: tuple[int, int], num_prefix: int) -> Trace:
        outputs = encoded.blocks
        tokens = encoded.stream.tokens
        return Trace(
            grid,
            num_prefix,
            tokens.shape[0],
            tuple(o.stream.tokens.shape[1] - num_prefix for o in outputs),
            tuple(o.step.assignment if o.step else None for o in outputs),
            tuple(o.key_step.assignment if o.key_step else None for o in outputs),
            tokens.device,
            tuple(index for index, output in enumerate(outputs) if output.unmerged),
        )

    def __len__(self) -> int:
        return len(self.steps)

    def after(self, block: int) -> Assignment:
        """Assignment from patches to the tokens after ``block``."""
        total, last = self._identity(), self._index(block)
        first = max((unmerged + 1 for unmerged in self.unmerged if unmerged <= last), default=0)
        for step in self.steps[first : last + 1]:
            if step is not None:
                total = compose(total, step, self.batch, self.device)
        return total

    def keys(self, block: int) -> Assignment:
        """Assignment from patches to the keys that attention in ``block`` reads."""
        block = self._index(block)
        before = self._identity() if block == 0 else self.after(block - 1)
        step = self.key_steps[block]
        return before if step is None else compose(before, step, self.batch, self.device)

    def owner(self, block: int) -> Tensor:
        """(B, N) index of the token that holds each patch, -1 if it was dropped.

        A patch in several tokens (overlapping windows) belongs to the one where it has the most weight.
        """
        a = self.after(block)
        src, dst, weight, present = a.edges(self.batch, self.device)
        first = torch.arange(self.batch, device=src.device).unsqueeze(1) * a.num_in  # flat index over all images
        pairs = ((first + src) * max(a.num_out, 1) + dst)[present]
        pairs, place = pairs.unique(
            return_inverse=True
        )  # nested windows may connect a patch and a token by several paths
        total = torch.zeros(len(pairs), device=src.device).index_add(0, place, weight[present].float())
        order = total.argsort(stable=True)  # a patch's heaviest token is written last
        patch, token = pairs[order] // max(a.num_out, 1), pairs[order] % max(a.num_out, 1)
        rank = torch.full((self.batch * a.num_in,), -1, device=src.device)
        rank = rank.scatter_reduce(0, patch, torch.arange(len(order), device=src.device), "amax")
        owner = rank.clone()
        owner[rank >= 0] = token[rank[rank >= 0]]
        return owner.view(self.batch, a.num_in)

    def _identity(self) -> Assignment:
        n = self.grid[0] * self.grid[1]
        return Assignment(None, None, None, n, n)

    def _index(self, block: int) -> int:
        if isinstance(block, bool) or not isinstance(block, int):
            raise TypeError(f"block must be an integer, got {type(block).__name__}.")
        if not -len(self) <= block < len(self):
            raise IndexError(f"The model has {len(self)} blocks (0..{len(self) - 1}); got block {block}.")
        return block % len(self)
