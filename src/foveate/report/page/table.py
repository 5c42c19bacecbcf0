"""The table of a comparison as HTML that needs no script."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from foveate.evaluation.columns import COLUMNS, Column, known_columns
from foveate.report.page import words

Row = dict[str, Any]


def table(entries: Sequence[Row], recommended: int | None) -> str:
    """Return the table of all entries, without empty columns. A click on a header sorts the best to the top."""
    columns = known_columns((column for column in COLUMNS if column.title), entries)
    heads = _head("label", "Method", "ascending") + "".join(
        _head(c.name, c.title, "descending" if c.higher_is_better else "ascending") for c in columns
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
    """List the settings that were not measured, and why."""
    if not refused:
        return ""
    items = "".join(
        f"<li><strong>{escape(words.setting_name(one))}</strong> {escape(one['reason'])}</li>" for one in refused
    )
    return f'<section class="refused"><h3>Not measured</h3><ul>{items}</ul></section>'


def _head(field: str, title: str, first: str) -> str:
    arrow = '<span class="arrow" aria-hidden="true"></span>'
    whole = escape(title).replace("-", "\N{NON-BREAKING HYPHEN}")  # titles wrap between words only
    button = f'<button type="button" data-field="{field}" data-first="{first}">{whole}{arrow}</button>'
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
    value = entry.get(column.name)
    text = escape(words.cell(column, value))
    quartiles = entry.get("speed_up_quartiles") if column.name == "speed_up" else None
    if quartiles and all(words.known(one) for one in quartiles):
        text += f" <small>({quartiles[0]:.2f}{words.DASH}{quartiles[1]:.2f})</small>"
    if column.name == "images_per_second" and words.known(value) and value:
        text += f" <small>({words.milliseconds(value)})</small>"
    return f'<td data-value="{value if words.known(value) else ""}">{text}</td>'


def mark(kind: str) -> str:
    """Return the symbol of a kind of method, in the chart, its legend and the table."""
    use = f'<use href="#mark-{kind}" x="-8" y="-8" width="16" height="16"/>'
    return f'<svg class="mark kind-{kind}" viewBox="-8 -8 16 16" aria-hidden="true">{use}</svg>'
