"""Which image comes when, and with which random numbers: from the seed, the epoch and the image, and nothing else.

No worker count, no number of processes and no place where a run was resumed enters here, so that none can matter.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch


def seed_from(*parts: int) -> int:
    """64 bits that depend on every part and its place; neighboring parts give unrelated seeds."""
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=8).digest(), "big")


def shuffled(count: int, *parts: int) -> list[int]:
    """A permutation of 0..count-1 that depends on ``parts`` only."""
    generator = torch.Generator().manual_seed(seed_from(*parts))
    return torch.randperm(count, generator=generator).tolist()


@dataclass(frozen=True)
class BatchOrder:
    """The batches of an epoch. ``batch_size`` is over all processes; each takes every world-th image of a batch."""

    count: int
    batch_size: int
    seed: int
    train: bool
    drop_last: bool
    rank: int = 0
    world: int = 1
    repeats: int = 1
    """Times an image of a training epoch comes, one after the other; as many fewer images come at all."""

    def __len__(self) -> int:
        """Batches of an epoch; in evaluation the last may be too small for every rank to have a share."""
        whole, rest = divmod(self.count, self.batch_size)
        return whole + (rest > 0 and not self.drop_last)

    def epoch(self, number: int, start: int = 0) -> Iterator[list[int]]:
        """This rank's share of each batch from ``start`` on; empty shares are left out.

        Number n is image n % count, and n // count of its copies come before it.
        """
        order = self._repeated(shuffled(self.count, self.seed, number)) if self.train else range(self.count)
        for batch in range(start, len(self)):
            share = order[batch * self.batch_size : (batch + 1) * self.batch_size][self.rank :: self.world]
            if share:
                yield list(share)

    def _repeated(self, order: list[int]) -> list[int]:
        images = order[: -(-self.count // self.repeats)]
        return [image + copy * self.count for image in images for copy in range(self.repeats)][: self.count]


@contextmanager
def random_states_kept() -> Iterator[None]:
    """Put the random states of the caller back. Around a batch, not an image: numpy's is slow to copy."""
    python, arrays, tensors = random.getstate(), np.random.get_state(), torch.default_generator.get_state()
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(arrays)
        torch.default_generator.set_state(tensors)


def seed_everything(*parts: int) -> None:
    """Seed what transforms draw from. The CPU's generator alone: torch.manual_seed would reach the GPU's as well."""
    seed = seed_from(*parts)
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.default_generator.manual_seed(seed)
