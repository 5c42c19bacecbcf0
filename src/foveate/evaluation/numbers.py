"""Rounding of numbers wherever they are shown: in the terminal, on the page and in sentences."""

from __future__ import annotations

import math
from typing import Any

UNKNOWN = "-"


def known(value: Any) -> bool:
    """Return whether a value can be shown: it is not None, NaN or infinite."""
    return value is not None and not (isinstance(value, float) and not math.isfinite(value))


def rounded_percent(value: float) -> float:
    """Round a percentage to one decimal, half to even. Only exactly 100 gives 100, and only exactly 0 gives 0."""
    rounded = round(value, 1)
    if rounded >= 100 > value:
        return 99.9
    return 0.1 if rounded <= 0 < value else rounded


def percent(value: float) -> str:
    """Format a percentage: ``99.1``."""
    return f"{rounded_percent(value):.1f}"


def share(value: float) -> str:
    """Format a fraction in percent: ``65.0``."""
    return f"{100 * value:.1f}"


def whole_share(value: float) -> str:
    """Format a fraction in whole percent: ``65``."""
    return f"{100 * value:.0f}"


def factor(value: float) -> str:
    """Format a ratio: ``1.25``."""
    return f"{value:.2f}"


def divergence(value: float) -> str:
    """Format a KL divergence: ``0.0123``."""
    return "0" if value == 0 else "<0.0001" if value < 0.0001 else f"{value:.4f}"


def rate(value: float) -> str:
    """Format images per second."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def whole(value: float) -> str:
    """Format a whole number: ``1,234``."""
    return f"{value:,.0f}"


def short(value: float) -> str:
    """Format a number without trailing zeros: ``0.65``."""
    return f"{value:g}"


def billions(value: float) -> str:
    """Format a count in billions: ``1.263``."""
    return f"{value / 1e9:.3f}"
