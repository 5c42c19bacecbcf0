"""Numbers and names as display text."""

from __future__ import annotations

import re
from html import escape
from typing import Any

from foveate.evaluation import numbers
from foveate.evaluation.columns import BY_NAME, Column
from foveate.evaluation.numbers import known

NOTHING = DASH = "\N{EN DASH}"
TIMES = "\N{MULTIPLICATION SIGN}"
ELLIPSIS = "\N{HORIZONTAL ELLIPSIS}"
ABSOLUTE = re.compile(r"(?<![\w.:/<\\])(?:/|~/|[A-Za-z]:[\\/])(?:[\w.+@ -]+[\\/])+([\w.+@-]+)")
GAP = "\N{NARROW NO-BREAK SPACE}"  # a number and its unit stay on one line


def cell(column: Column, value: Any) -> str:
    """Format a value with its unit."""
    if not known(value):
        return NOTHING
    number = column.text(value).replace("<", f"<{GAP}")
    return number + {"": "", "x": TIMES}.get(column.unit, f"{GAP}{column.unit}")


def figure(entry: dict[str, Any], name: str) -> str:
    """Format one value of an entry as its column shows it."""
    return cell(BY_NAME[name], entry.get(name))


def milliseconds(images_per_second: float) -> str:
    """Format the time of one image at this speed, in a batch."""
    value = 1000 / images_per_second
    return f"{value:.3g}{GAP}ms" if value < 1000 else f"{value:.0f}{GAP}ms"


def without_folders(text: str) -> str:
    """Leave out the folders of absolute paths: a page is mailed, and they tell of the user's disk."""
    return ABSOLUTE.sub(f"{ELLIPSIS}/\\1", text)


def whole_percent(value: float | None) -> str:
    """Format a fraction in whole percent, for sentences."""
    return f"{numbers.whole_share(value)}{GAP}%" if known(value) and value is not None else NOTHING


def amount(value: float | None) -> str:
    """Format a count in thousands, millions or billions."""
    if not known(value) or value is None:
        return NOTHING
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g}{GAP}{unit}"
    return f"{value:g}"


def setting_name(entry: dict[str, Any]) -> str:
    """Return a method with its budget."""
    return entry["label"] if entry.get("budget") is None else f"{entry['label']} at {entry['budget']:g}"


def in_words(value: Any) -> str:
    """Format any plain value of an environment or of options."""
    if isinstance(value, dict):
        return ", ".join(f"{key} {in_words(one)}" for key, one in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(in_words(one) for one in value) or NOTHING
    if isinstance(value, bool):
        return "yes" if value else "no"
    return NOTHING if value is None or value == "" else str(value)


def definitions(rows: dict[str, str]) -> str:
    """Return names and values as an HTML list, escaped."""
    inner = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in rows.items())
    return f"<dl>{inner}</dl>"
