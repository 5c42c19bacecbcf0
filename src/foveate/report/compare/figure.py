"""A comparison in notebooks: a figure and a short table."""

from __future__ import annotations

import importlib
import io
from html import escape
from os import PathLike
from pathlib import Path
from typing import Any

from foveate.evaluation.columns import BY_NAME
from foveate.files import replacing
from foveate.report.compare.comparison import Comparison, Entry

MARKS = {"none": "*", "select": "o", "merge": "s", "cluster": "^", "pool": "D", "learned": "P"}
SHORT_TABLE = ("mac_ratio", "images_per_second", "speed_up", "agreement", "top1")
"""Columns of the notebook table."""
DEMONSTRATION = "The built-in demonstration on generated scenes; it says nothing about your model."
INTERRUPTED = "The run was interrupted. These are the results up to that point."


def draw(comparison: Comparison, path: str | PathLike[str] | None) -> Any:
    """Plot agreement over images per second (over MACs if no speed was measured), with the Pareto front as a line."""
    try:
        figure_module = importlib.import_module("matplotlib.figure")  # optional: nothing else needs it
    except ImportError as error:
        raise ImportError("plot() draws with matplotlib, which is not installed: pip install matplotlib") from error
    timed = any(entry.images_per_second is not None for entry in comparison.entries)
    figure = _shown_in_notebooks(figure_module.Figure)(figsize=(8, 5), layout="constrained")
    axes = figure.add_subplot()
    by_method: dict[tuple[str, str], list[Entry]] = {}
    for entry in comparison.entries:
        if not timed or entry.images_per_second is not None:
            by_method.setdefault((entry.label, entry.kind), []).append(entry)
    for (label, kind), entries in by_method.items():
        axes.plot(*_points(entries, timed), MARKS.get(kind, "o"), label=label, alpha=0.8)
    pareto = [entry for entry in comparison.entries if entry.pareto]
    front = sorted(pareto, key=lambda entry: (entry.images_per_second or 0.0, entry.mac_ratio))
    axes.plot(*_points(front, timed), "-", color="0.6", zorder=0, label="Pareto front")
    axes.set_xlabel("images per second" if timed else "share of the unreduced MACs")
    axes.set_ylabel(f"{comparison.data.get('agreement_of', 'decisions')} unchanged, %")
    name = str(comparison.model["name"])
    axes.set_title(f"{name}: {DEMONSTRATION}" if comparison.demonstration else name, fontsize="medium", wrap=True)
    axes.legend(fontsize="small")
    if path is not None:
        with replacing(Path(path)) as temporary:
            figure.savefig(temporary)
    return figure


def _shown_in_notebooks(figure: Any) -> Any:
    """Return a figure class that notebooks display without pyplot, which would keep the figure in memory."""

    def as_png(self: Any) -> bytes:
        held = io.BytesIO()
        self.savefig(held, format="png")
        return held.getvalue()

    return type("Figure", (figure,), {"_repr_png_": as_png})


def as_html(comparison: Comparison) -> str:
    """Return the recommendation, and the Pareto front as a small HTML table."""
    notes = [text for text, there in _notes(comparison) if there]
    cells = "".join(_row(entry) for entry in comparison.entries if entry.pareto or entry is comparison.entries[0])
    head = "".join(f"<th>{name}</th>" for name in ("", *(BY_NAME[name].terminal_head for name in SHORT_TABLE)))
    lines = [*notes, f"<b>{escape(comparison.recommendation.sentence)}</b>"]
    code = f"<pre>{escape(comparison.recommendation.python)}</pre>" if comparison.recommendation.python else ""
    return f"<p>{'<br>'.join(lines)}</p>{code}<table><tr>{head}</tr>{cells}</table>"


def _notes(comparison: Comparison) -> list[tuple[str, bool]]:
    note = str(comparison.data.get("note", ""))
    return [
        (DEMONSTRATION, comparison.demonstration),
        (INTERRUPTED, not comparison.complete),
        (escape(note), bool(note)),
    ]


def _row(entry: Entry) -> str:
    row = entry.as_dict()
    values = [BY_NAME[name].terminal_text(row[name]) for name in SHORT_TABLE]
    return f"<tr>{''.join(f'<td>{escape(value)}</td>' for value in (entry.title, *values))}</tr>"


def _points(entries: list[Entry], timed: bool) -> tuple[list[float], list[float]]:
    across = [(entry.images_per_second or 0.0) if timed else entry.mac_ratio for entry in entries]
    return across, [entry.agreement for entry in entries]
