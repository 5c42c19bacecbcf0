"""Random numbers of one scene, which depend only on (seed, split, index) and not on the version of NumPy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from foveate.data.order import seed_from

Value = TypeVar("Value")
Floats = NDArray[np.floating]


class Draws:
    """A stream of random numbers, made from NumPy's raw bit stream, which NumPy guarantees never to change."""

    def __init__(self, *key: int) -> None:
        self._bits = np.random.PCG64(seed_from(*key))

    def between(self, low: float, high: float) -> float:
        return low + (high - low) * float(self._next(1)[0])

    def below(self, count: int) -> int:
        """A random integer from 0 to ``count`` - 1."""
        return int(count * float(self._next(1)[0]))

    def one_of(self, values: Sequence[Value]) -> Value:
        return values[self.below(len(values))]

    def uniform(self, *shape: int) -> Floats:
        """Random numbers from 0 to 1."""
        return self._next(math.prod(shape)).reshape(shape).astype(np.float32)

    def _next(self, count: int) -> Floats:
        """Random numbers in [0, 1) with 53 random bits each."""
        return (self._bits.random_raw(count) >> np.uint64(11)) * 2.0**-53
