"""A comparison for notebooks: a figure, and a short table."""

from __future__ import annotations

import importlib
import io
from html import escape
from os import PathLike
from typing import Any

from foveate.report.compare.comparison import Comparison, Entry
from foveate.report.rounding import floored

MARKS = {"none": "*", "select": "o", "merge": "s", "cluster": "^", "pool": "D", "learned": "P"}
DEMONSTRATION = "The built-in demonstration on generated scenes: it says nothing about your model."
INTERRUPTED = "The run was interrupted; this is what it had measured."


def draw(comparison: Comparison, path: str | PathLike[str] | None) -> Any:
    """Agreement over images per second (over the share of MACs where no speed was measured), the front as a line."""
    try:
        figure_module = importlib.import_module("matplotlib.figure")  # not needed for anything else
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
    front = sorted(_zipped([entry for entry in comparison.entries if entry.pareto], timed))
    axes.plot([x for x, _ in front], [y for _, y in front], "-", color="0.6", zorder=0, label="Pareto front")
    axes.set_xlabel("images per second" if timed else "share of the unreduced MACs")
    axes.set_ylabel("decisions unchanged, %")
    axes.set_title(_title(comparison), fontsize="medium", wrap=True)
    axes.legend(fontsize="small")
    if path is not None:
        figure.savefig(path)
    return figure


def _shown_in_notebooks(figure: Any) -> Any:
    """A figure that a notebook shows by itself, without pyplot, which would keep it in memory."""

    def as_png(self: Any) -> bytes:
        held = io.BytesIO()
        self.savefig(held, format="png")
        return held.getvalue()

    return type("Figure", (figure,), {"_repr_png_": as_png})


def as_html(comparison: Comparison) -> str:
    """The recommendation and the Pareto front as a small table."""
    notes = [text for text, there in _notes(comparison) if there]
    cells = "".join(_row(entry) for entry in comparison.entries if entry.pareto or entry is comparison.entries[0])
    head = "".join(f"<th>{name}</th>" for name in ("", "MACs", "img/s", "speed-up", "agreement", "top-1"))
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
    values = (
        escape(entry.title),
        f"{entry.mac_ratio:.0%}",
        _shown(entry.images_per_second, "{:.0f}"),
        _shown(entry.speed_up, "{:.2f}x"),
        f"{floored(entry.agreement):.1f} %",
        _shown(entry.top1, "{:.1f} %"),
    )
    return f"<tr>{''.join(f'<td>{value}</td>' for value in values)}</tr>"


def _shown(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)


def _points(entries: list[Entry], timed: bool) -> tuple[list[float], list[float]]:
    pairs = _zipped(entries, timed)
    return [x for x, _ in pairs], [y for _, y in pairs]


def _zipped(entries: list[Entry], timed: bool) -> list[tuple[float, float]]:
    return [((entry.images_per_second or 0.0) if timed else entry.mac_ratio, entry.agreement) for entry in entries]


def _title(comparison: Comparison) -> str:
    name = str(comparison.model["name"])
    return f"{name}: {DEMONSTRATION}" if comparison.demonstration else name
