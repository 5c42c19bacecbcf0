"""Numbers and names as people read them."""

from __future__ import annotations

import math
from html import escape
from typing import Any

from foveate.report.rounding import floored

NOTHING = DASH = "\N{EN DASH}"
TIMES = "\N{MULTIPLICATION SIGN}"
GAP = "\N{NARROW NO-BREAK SPACE}"  # a number and its unit stay on one line


def known(value: Any) -> bool:
    """Whether there is something to show: not missing, not infinite."""
    return value is not None and not (isinstance(value, float) and not math.isfinite(value))


def percent(value: float | None) -> str:
    return f"{floored(value):.1f}{GAP}%" if known(value) and value is not None else NOTHING


def share(value: float | None, digits: int = 0) -> str:
    return f"{100 * value:.{digits}f}{GAP}%" if known(value) and value is not None else NOTHING


def factor(value: float | None) -> str:
    return f"{value:.2f}{TIMES}" if known(value) and value is not None else NOTHING


def divergence(value: float | None) -> str:
    if not known(value) or value is None:
        return NOTHING
    return "0" if value == 0 else f"<{GAP}0.0001" if value < 0.0001 else f"{value:.4f}"


def rate(value: float | None) -> str:
    if not known(value) or value is None:
        return NOTHING
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def mebibytes(value: float | None) -> str:
    return f"{value:,.0f}{GAP}MiB" if known(value) and value is not None else NOTHING


def amount(value: float | None) -> str:
    """A count in thousands, millions or billions."""
    if not known(value) or value is None:
        return NOTHING
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g}{GAP}{unit}"
    return f"{value:g}"


def setting_name(entry: dict[str, Any]) -> str:
    """A method with the budget it was asked for."""
    return entry["label"] if entry.get("budget") is None else f"{entry['label']} at {entry['budget']:g}"


def in_words(value: Any) -> str:
    """Any plain value of an environment or of options."""
    if isinstance(value, dict):
        return ", ".join(f"{key} {in_words(one)}" for key, one in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(in_words(one) for one in value) or NOTHING
    if isinstance(value, bool):
        return "yes" if value else "no"
    return NOTHING if value is None or value == "" else str(value)


def definitions(rows: dict[str, str]) -> str:
    """A list of names and values as HTML, escaped."""
    inner = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in rows.items())
    return f"<dl>{inner}</dl>"
