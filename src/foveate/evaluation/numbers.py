"""How numbers are rounded wherever they are shown: on a terminal, on the page and in sentences."""

from __future__ import annotations

import math
from typing import Any

UNKNOWN = "-"


def known(value: Any) -> bool:
    """Whether there is something to show: not missing, and finite."""
    return value is not None and not (isinstance(value, float) and not math.isfinite(value))


def rounded_percent(value: float) -> float:
    """Per cent to one decimal, half to even. Only all is 100, and only none is 0."""
    rounded = round(value, 1)
    if rounded >= 100 > value:
        return 99.9
    return 0.1 if rounded <= 0 < value else rounded


def percent(value: float) -> str:
    """A share that is given in per cent: ``99.1``."""
    return f"{rounded_percent(value):.1f}"


def share(value: float) -> str:
    """A share of 1, in per cent: ``65.0``."""
    return f"{100 * value:.1f}"


def whole_share(value: float) -> str:
    """A share of 1, in whole per cent: ``65``."""
    return f"{100 * value:.0f}"


def factor(value: float) -> str:
    return f"{value:.2f}"


def divergence(value: float) -> str:
    return "0" if value == 0 else "<0.0001" if value < 0.0001 else f"{value:.4f}"


def rate(value: float) -> str:
    """Images per second."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def whole(value: float) -> str:
    return f"{value:,.0f}"


def short(value: float) -> str:
    return f"{value:g}"


def billions(value: float) -> str:
    return f"{value / 1e9:.3f}"
