"""How shares are rounded wherever they are shown."""

from __future__ import annotations

import math


def floored(value: float) -> float:
    """To a tenth, downwards: only what is whole is called 100 %."""
    return math.floor(10 * value + 1e-6) / 10
