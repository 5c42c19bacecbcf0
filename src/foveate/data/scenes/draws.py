"""Random numbers of one scene: from (seed, split, index) alone, and the same with every version of NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from foveate.data.order import seed_from

Value = TypeVar("Value")
Floats = NDArray[np.floating]


class Draws:
    """A stream of numbers. NumPy promises the plain stream of a bit generator for good, so all comes from that one."""

    def __init__(self, *key: int) -> None:
        self._stream = np.random.Generator(np.random.PCG64(seed_from(*key)))

    def between(self, low: float, high: float) -> float:
        return low + (high - low) * float(self._stream.random())

    def below(self, count: int) -> int:
        """A whole number from 0 to ``count`` - 1."""
        return int(count * self._stream.random())

    def one_of(self, values: Sequence[Value]) -> Value:
        return values[self.below(len(values))]

    def uniform(self, *shape: int) -> Floats:
        """Numbers from 0 to 1."""
        return self._stream.random(shape).astype(np.float32)
