"""Rounding of numbers wherever they are shown: in the terminal, on the page and in sentences."""

from __future__ import annotations

import math
from typing import Any

UNKNOWN = "-"


def known(value: Any) -> bool:
    """Return whether a value can be shown: it is not None, NaN or infinite."""
    return value is not None and not (isinstance(value, float) and not math.isfinite(value))


def percent(value: float) -> str:
    """Format a percentage, half to even: ``99.1``. Only exactly 100 is 100.0, and only exactly 0 is 0.0."""
    rounded = round(value, 1)
    if rounded >= 100 > value:
        return "99.9"
    return "0.1" if rounded <= 0 < value else f"{rounded:.1f}"


def divergence(value: float) -> str:
    """Format a KL divergence: ``0.0123``."""
    return "0" if value == 0 else "<0.0001" if value < 0.0001 else f"{value:.4f}"


def rate(value: float) -> str:
    """Format images per second."""
    return whole(value) if value >= 100 else f"{value:.1f}"


whole = "{:,.0f}".format  # 1,234
factor = "{:.2f}".format  # a ratio: 1.25
short = "{:g}".format  # without trailing zeros: 0.65


def share(value: float) -> str:
    """Format a fraction in percent: ``65.0``."""
    return f"{100 * value:.1f}"


def whole_share(value: float) -> str:
    """Format a fraction in whole percent: ``65``."""
    return f"{100 * value:.0f}"


def billions(value: float) -> str:
    """Format a count in billions: ``1.263``."""
    return f"{value / 1e9:.3f}"
