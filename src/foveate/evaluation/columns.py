"""The one list of what is known of a way to run a model.

The terminal's table, the CSV file, the keys of the JSON document, the table on the page and the one in docs/compare.md
are all made from it. A new column is one entry here: its value is what a task's metrics call by that name, or what
``value`` makes of the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from foveate.evaluation import numbers

Row = Mapping[str, Any]
"""An entry of a comparison, or a line of an evaluation, as plain data."""


@dataclass(frozen=True)
class Column:
    """One value of an entry."""

    name: str
    """Its key in JSON and CSV."""
    meaning: str
    """One line, for the page and for people who read results.json."""
    title: str = ""
    """Its head on the page; empty: it is not shown there."""
    head: str = ""
    """Its head on a terminal, without the unit; empty: it is not shown there."""
    measured: str = ""
    """How it is measured, in Markdown for docs/compare.md; empty: not listed there."""
    format: Callable[[Any], str] = str
    """The number as text, without its unit."""
    unit: str = ""
    """``%``, ``x``, ``MiB``, ..."""
    higher_is_better: bool = True
    brief: bool = True
    """Whether there is room for it in the terminal's table of a comparison."""
    parts: tuple[str, ...] = ()
    """Names of the columns of a CSV file that a pair is written to."""
    value: Callable[[Row], Any] | None = None
    """Makes the value of other ones, for a column that nobody measures."""

    def text(self, value: Any) -> str:
        """A value as text, without its unit."""
        return self.format(value) if numbers.known(value) else numbers.UNKNOWN

    @property
    def terminal_head(self) -> str:
        """``agreement %``; a factor has its x beside each number."""
        return f"{self.head} {self.unit}" if self.unit not in ("", "x", self.head) else self.head

    def terminal_text(self, value: Any) -> str:
        return f"{self.text(value)}x" if self.unit == "x" and numbers.known(value) else self.text(value)

    def flat(self, value: Any) -> dict[str, Any]:
        """The value as one or more cells of a CSV file."""
        if self.parts:
            return dict(zip(self.parts, value or (None,) * len(self.parts), strict=True))
        return {self.name: " ".join(map(str, value)) if isinstance(value, list | tuple) else value}


COLUMNS: tuple[Column, ...] = (
    Column("method", "registered name of the method, with options that are not the defaults"),
    Column("label", "name of the method for people"),
    Column("kind", "none, select, merge, cluster, pool or learned"),
    Column("budget", "share of MACs asked for", "Budget", format=numbers.short, higher_is_better=False),
    Column(
        "agreement",
        "images on which the decision is that of the unreduced model",
        "Agreement",
        "agreement",
        "images on which the candidate's first class is the unreduced model's; needs no labels",
        numbers.percent,
        "%",
    ),
    Column(
        "top1",
        "images whose label is the first guess",
        "Top-1",
        "top-1",
        "images whose label is the first class; only if labels exist and mean the model's classes, else a note says "
        "why not",
        numbers.percent,
        "%",
    ),
    Column(
        "top5",
        "images whose label is among the first five guesses",
        "Top-5",
        "top-5",
        "images whose label is among the first five classes; as top-1",
        numbers.percent,
        "%",
        brief=False,
    ),
    Column(
        "images_per_second",
        "images per second, at the batch size and threads given below",
        "Images/s",
        "img/s",
        "the speed-up times one rate, the median of all timings of the unreduced model in this run, so that a slow "
        "minute of the machine favors nobody",
        numbers.rate,
    ),
    Column(
        "speed_up",
        "over the unreduced model: the median, and the quartiles in brackets",
        "Speed-up",
        "speed-up",
        "time of the unreduced model over time of the candidate: the median over rounds in which unreduced model, "
        "candidate and free slice take turns, in rotating order. Quartiles are in the report",
        numbers.factor,
        "x",
    ),
    Column(
        "speed_up_quartiles",
        "first and third quartile of the speed-up over rounds",
        parts=("speed_up_first_quartile", "speed_up_third_quartile"),
    ),
    Column(
        "mac_ratio",
        "multiply-accumulates, of the unreduced model's",
        "MACs",
        "MACs",
        "true multiply-accumulates of one image, as a share of the unreduced model's",
        numbers.share,
        "%",
        higher_is_better=False,
    ),
    Column(
        "kl",
        "mean divergence of the predictions from the unreduced model's, nats",
        "KL",
        "KL",
        r"mean KL(unreduced \|\| candidate) of the predicted probabilities, in nats; it sees changes that flip no "
        "decision",
        numbers.divergence,
        higher_is_better=False,
    ),
    Column("efficiency", "speed over that of the free slice: 1 if choosing tokens costs no time"),
    Column(
        "overhead",
        "share of its time that choosing tokens costs",
        "Overhead",
        "overhead",
        "share of a candidate's time that choosing tokens costs: 1 - efficiency, where efficiency is its speed over "
        "that of the *free slice*, which has the same token counts and cuts tokens off unseen. Below 0 is noise, and "
        "shown as 0",
        numbers.whole_share,
        "%",
        higher_is_better=False,
    ),
    Column(
        "memory_mib",
        "extra memory of one batch, at its peak",
        "Memory",
        "MiB",
        "the most memory that one batch holds at a time beyond weights and images. On a CPU every allocation of "
        "torch's allocator is added up in one profiled pass; scratch memory that a library takes from elsewhere is not "
        "seen. On CUDA it is the allocator's own peak. Other devices: not measured",
        numbers.whole,
        "MiB",
        higher_is_better=False,
    ),
    Column(
        "on_object",
        "how much of the last tokens lies on the object",
        "On object",
        "on object",
        "built-in scenes only, over 24 of them: the share of the last tokens that lie on the object, a merged token "
        "counted by the mean of its patches",
        numbers.percent,
        "%",
    ),
    Column(
        "pareto",
        "whether no other is at least as fast and as faithful, and better in one of both",
        measured="on the Pareto front, marked `*`: no other is at least as fast and as faithful, and better in one of "
        "both",
    ),
    Column("macs", "multiply-accumulates of one image", head="GMACs", format=numbers.billions),
    Column("params", "parameters"),
    Column("counts", "patch tokens after each block"),
    Column("exact_last_block", "whether the last block is computed for the class token alone"),
    Column("python", "the lines that apply it"),
)
BY_NAME = {column.name: column for column in COLUMNS}
IN_COMPARISONS = tuple(column for column in COLUMNS if column.head and column.title and column.brief)
"""Columns of the terminal's table of a comparison."""


def with_values(row: Row) -> dict[str, Any]:
    """A row with the columns that are made of others."""
    return {**row, **{c.name: c.value(row) for c in COLUMNS if c.value is not None}}


def known_columns(columns: Iterable[Column], rows: Sequence[Row]) -> list[Column]:
    """The columns of which something is known in any row."""
    return [c for c in columns if any(numbers.known(row.get(c.name)) for row in rows)]


def flat_row(row: Row) -> dict[str, Any]:
    """A row as the cells of a CSV file, in the order of the columns."""
    cells: dict[str, Any] = {}
    for column in COLUMNS:
        if column.name in row:
            cells |= column.flat(row[column.name])
    return cells


def keys_in_words() -> str:
    """The keys of a row, for a command's help."""
    return ", ".join(column.name for column in COLUMNS)


def as_markdown() -> str:
    """The table of docs/compare.md."""
    rows = [(column.terminal_head or column.name, column.measured) for column in COLUMNS if column.measured]
    return "\n".join(["| column | how it is measured |", "|---|---|", *(f"| {head} | {text} |" for head, text in rows)])
