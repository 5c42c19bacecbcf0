"""The table of a comparison as HTML that needs no script to be read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from foveate.report.page import words

Row = dict[str, Any]


@dataclass(frozen=True)
class Column:
    """One column behind the method's name."""

    field: str
    title: str
    show: Callable[[Any], str]
    meaning: str
    rises: bool = True
    """Whether more is better; a first click sorts the best to the top."""


COLUMNS: tuple[Column, ...] = (
    Column(
        "budget", "Budget", lambda v: f"{v:g}" if words.known(v) else words.NOTHING, "share of MACs asked for", False
    ),
    Column("agreement", "Agreement", words.percent, "images on which the decision is that of the unreduced model"),
    Column("top1", "Top-1", words.percent, "images whose label is the first guess"),
    Column("top5", "Top-5", words.percent, "images whose label is among the first five guesses"),
    Column("images_per_second", "Images/s", words.rate, "images per second, at the batch size and threads given below"),
    Column("speed_up", "Speed-up", words.factor, "over the unreduced model: the median, and the quartiles in brackets"),
    Column("mac_ratio", "MACs", lambda v: words.share(v, 1), "multiply-accumulates, of the unreduced model's", False),
    Column("kl", "KL", words.divergence, "mean divergence of the predictions from the unreduced model's, nats", False),
    Column("overhead", "Overhead", words.share, "share of its time that choosing tokens costs", False),
    Column("memory_mib", "Memory", words.mebibytes, "extra memory of one batch, at its peak", False),
    Column("on_object", "On object", words.percent, "how much of the last tokens lies on the object"),
)


def table(entries: Sequence[Row], recommended: int | None) -> str:
    """All entries; columns of which nothing is known are left out."""
    columns = [c for c in COLUMNS if any(words.known(entry.get(c.field)) for entry in entries)]
    heads = _head("label", "Method", "ascending") + "".join(
        _head(c.field, c.title, "descending" if c.rises else "ascending") for c in columns
    )
    rows = "\n".join(_row(index, entry, columns, index == recommended) for index, entry in enumerate(entries))
    meanings = words.definitions({c.title: c.meaning for c in columns})
    return (
        '<div class="scroll" tabindex="0" role="region" aria-labelledby="table-title">'
        f"<table><thead><tr>{heads}</tr></thead><tbody>\n{rows}\n</tbody></table></div>"
        '<p class="swipe">The table is wider than this screen: swipe it sideways.</p>'
        f"<details><summary>What the columns mean</summary>{meanings}</details>"
    )


def refusals(refused: Sequence[Row]) -> str:
    """What was not run, and why."""
    if not refused:
        return ""
    items = "".join(
        f"<li><strong>{escape(words.setting_name(one))}</strong> {escape(one['reason'])}</li>" for one in refused
    )
    return f'<section class="refused"><h3>Not measured</h3><ul>{items}</ul></section>'


def _head(field: str, title: str, first: str) -> str:
    arrow = '<span class="arrow" aria-hidden="true"></span>'
    button = f'<button type="button" data-field="{field}" data-first="{first}">{escape(title)}{arrow}</button>'
    return f'<th scope="col">{button}</th>'


def _row(index: int, entry: Row, columns: Sequence[Column], recommended: bool) -> str:
    marks = ("recommended " if recommended else "") + ("front" if entry["pareto"] else "")
    badges = '<span class="badge chosen">recommended</span>' if recommended else ""
    badges += '<span class="badge">front</span>' if entry["pareto"] else ""
    name = f'<span class="name">{mark(escape(entry["kind"]))}{escape(entry["label"])}</span>{badges}'
    head = f'<th scope="row" data-value="{escape(words.setting_name(entry))}">{name}</th>'
    cells = "".join(_cell(column, entry) for column in columns)
    return f'<tr data-entry="{index}" class="{marks.strip()}">{head}{cells}</tr>'


def _cell(column: Column, entry: Row) -> str:
    value = entry.get(column.field)
    text = escape(column.show(value))
    quartiles = entry.get("speed_up_quartiles") if column.field == "speed_up" else None
    if quartiles and all(words.known(one) for one in quartiles):
        text += f" <small>({quartiles[0]:.2f}{words.DASH}{quartiles[1]:.2f})</small>"
    return f'<td data-value="{value if words.known(value) else ""}">{text}</td>'


def mark(kind: str) -> str:
    """The small shape that stands for a kind of method, in the chart, its legend and the table."""
    use = f'<use href="#mark-{kind}" x="-8" y="-8" width="16" height="16"/>'
    return f'<svg class="mark kind-{kind}" viewBox="-8 -8 16 16" aria-hidden="true">{use}</svg>'
