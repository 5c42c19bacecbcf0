"""The order of images and their random numbers, which depend only on seed, epoch and image.

They do not depend on the number of workers or processes, or on where a run was resumed.
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
    """A 64-bit seed that depends on every part and its position; neighboring parts give unrelated seeds."""
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=8).digest(), "big")


def shuffled(count: int, *parts: int) -> list[int]:
    """A permutation of 0..count-1 that depends only on ``parts``."""
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
    """Times that an image comes in a row in a training epoch, which has as many times fewer images."""

    def __len__(self) -> int:
        """Number of batches in an epoch; in evaluation the last may be too small for some ranks."""
        whole, rest = divmod(self.count, self.batch_size)
        return whole + (rest > 0 and not self.drop_last)

    def epoch(self, number: int, start: int = 0) -> Iterator[list[int]]:
        """This rank's part of each batch from ``start`` on; empty parts are left out.

        Number n is copy n // count of image n % count.
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
    """Restore the caller's random states at the end. Use it per batch, not per image: copying NumPy's is slow."""
    python, arrays, tensors = random.getstate(), np.random.get_state(), torch.default_generator.get_state()
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(arrays)
        torch.default_generator.set_state(tensors)


def seed_everything(*parts: int) -> None:
    """Seed the generators that transforms use. Of torch only the CPU's: torch.manual_seed would also seed the GPU's."""
    seed = seed_from(*parts)
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.default_generator.manual_seed(seed)
