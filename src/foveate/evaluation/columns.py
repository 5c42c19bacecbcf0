"""The columns of a comparison: the only list of what is reported about a candidate.

The terminal table, the CSV file, the keys of the JSON document, the table on the page and the one in docs/compare.md
all come from it. To add a column, add one entry: its value is the task's metric of that name, or the result of
``value``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from foveate.evaluation import numbers

Row = Mapping[str, Any]
"""An entry of a comparison, or a row of an evaluation, as plain data."""


@dataclass(frozen=True)
class Column:
    """One value of an entry."""

    name: str
    """The key in JSON and CSV."""
    meaning: str
    """One line, for the page and for readers of results.json."""
    title: str = ""
    """The column header on the page; empty if it is not shown there."""
    head: str = ""
    """The column header in the terminal, without the unit; empty if it is not shown there."""
    measured: str = ""
    """How it is measured, in Markdown for docs/compare.md; empty if it is not listed there."""
    format: Callable[[Any], str] = str
    """Formats a value, without its unit."""
    unit: str = ""
    """``%``, ``x``, ``MiB``, ..."""
    higher_is_better: bool = True
    brief: bool = True
    """Whether the terminal table of a comparison has room for it."""
    parts: tuple[str, ...] = ()
    """CSV columns that a pair is written to."""
    value: Callable[[Row], Any] | None = None
    """Computes the value from the other columns of a row; None if it is measured."""

    def text(self, value: Any) -> str:
        """Format a value, without its unit."""
        return self.format(value) if numbers.known(value) else numbers.UNKNOWN

    @property
    def terminal_head(self) -> str:
        """The header with its unit, ``agreement %``; factors show their x with each number."""
        return f"{self.head} {self.unit}" if self.unit not in ("", "x", self.head) else self.head

    def terminal_text(self, value: Any) -> str:
        """Format a value for the terminal; a factor has its x."""
        return f"{self.text(value)}x" if self.unit == "x" and numbers.known(value) else self.text(value)

    def flat(self, value: Any) -> dict[str, Any]:
        """Return the value as one or more CSV cells."""
        if self.parts:
            return dict(zip(self.parts, value or (None,) * len(self.parts), strict=True))
        return {self.name: " ".join(map(str, value)) if isinstance(value, list | tuple) else value}


def _precision(name: str, meaning: str, head: str) -> Column:
    """A figure of COCO's evaluators; ``foveate eval`` shows it, a comparison does not."""
    return Column(name, meaning, head=head, format=numbers.percent, unit="%", brief=False)


def _detection_columns() -> tuple[Column, ...]:
    kinds, limits = {"box": "boxes", "mask": "masks"}, {"": "0.5 to 0.95", "50": "0.5", "75": "0.75"}
    found = [
        _precision(f"{kind}_ap{limit}", f"average precision of {word}, overlap {overlap}", f"{kind} AP{limit}")
        for kind, word in kinds.items()
        for limit, overlap in limits.items()
    ]
    for size in ("small", "medium", "large"):
        found.append(_precision(f"box_ap_{size}", f"average precision of {size} objects", f"AP {size}"))
    return tuple(found)


def _pose_columns() -> tuple[Column, ...]:
    limits = {"50": "at 0.5", "75": "at 0.75"}
    found = [_precision(f"pose_ap{n}", f"AP of keypoints, similarity {words}", f"AP{n}") for n, words in limits.items()]
    for part in ("pose", "body", "foot", "face", "hand", "whole"):
        found.append(_precision(f"{part}_ap", f"AP of keypoints, {part}", f"{part} AP"))
        found.append(_precision(f"{part}_ar", f"average recall of keypoints, {part}", f"{part} AR"))
    return tuple(found)


COLUMNS: tuple[Column, ...] = (
    Column("method", "registered name of the method, with non-default options"),
    Column("label", "display name of the method"),
    Column("kind", "none, select, merge, cluster, pool or learned"),
    Column("budget", "requested share of the MACs", "Budget", format=numbers.short, higher_is_better=False),
    Column(
        "agreement",
        "images, or pixels in segmentation, with the same decision as the unreduced model",
        "Agreement",
        "agreement",
        "images, or pixels in segmentation, for which the candidate's top class is the unreduced model's; needs no "
        "labels. Embeddings: images with the same nearest prompt, or, without prompts, the same nearest image",
        numbers.percent,
        "%",
    ),
    Column(
        "cosine",
        "mean cosine between the embeddings of candidate and unreduced model",
        "Cosine",
        "cosine",
        "embeddings: mean cosine between the vectors that candidate and unreduced model give for an image",
        "{:.4f}".format,
    ),
    Column(
        "recall",
        "nearest neighbors of an image that are the unreduced model's",
        "Recall@k",
        "recall@k",
        "embeddings: of the k images nearest to an image in the unreduced model's space, the share among the k nearest "
        "in the candidate's, averaged over images; k is 10, or `--option k=5`",
        numbers.percent,
        "%",
    ),
    Column(
        "boundary_agreement",
        "pixels near a boundary, with the same decision as the unreduced model",
        "Agreement at boundaries",
        "at boundaries",
        "segmentation: agreement over pixels within 3 of a boundary between classes of the unreduced model's masks",
        numbers.percent,
        "%",
    ),
    Column(
        "miou",
        "mean intersection over union of the classes",
        "mIoU",
        "mIoU",
        "segmentation: intersection over union of each class over all pixels with a label, averaged over the classes "
        "that labels or predictions have",
        numbers.percent,
        "%",
    ),
    Column(
        "pixel_accuracy",
        "labeled pixels with the right class",
        "Pixel accuracy",
        "pixels",
        "segmentation: pixels whose label is the top class",
        numbers.percent,
        "%",
        brief=False,
    ),
    Column(
        "boundary_accuracy",
        "labeled pixels near a boundary, with the right class",
        "Accuracy at boundaries",
        "boundary pixels",
        "segmentation: pixels within 3 of a boundary between labels whose label is the top class",
        numbers.percent,
        "%",
        brief=False,
    ),
    Column(
        "top1",
        "images whose label is the top prediction",
        "Top-1",
        "top-1",
        "images whose label is the top class; only if labels exist and match the model's classes, otherwise a note "
        "explains why not",
        numbers.percent,
        "%",
    ),
    Column(
        "top5",
        "images whose label is among the top five predictions",
        "Top-5",
        "top-5",
        "images whose label is among the top five classes; as top-1",
        numbers.percent,
        "%",
        brief=False,
    ),
    Column(
        "images_per_second",
        "images per second (and milliseconds per image), with the batch size and threads given below",
        "Images/s",
        "img/s",
        "the speed-up times one rate, the median of all timings of the unreduced model in this run, so a slow "
        "minute of the machine favors no candidate",
        numbers.rate,
    ),
    Column(
        "speed_up",
        "speed relative to the unreduced model: the median, with quartiles in parentheses",
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
        "multiply-accumulates, as a share of the unreduced model's",
        "MACs",
        "MACs",
        "true multiply-accumulates of one image, as a share of the unreduced model's",
        numbers.share,
        "%",
        higher_is_better=False,
    ),
    Column(
        "kl",
        "mean KL divergence of the predictions from the unreduced model's, in nats",
        "KL",
        "KL",
        r"mean KL(unreduced \|\| candidate) of the predicted probabilities, in nats; it also shows changes that do not "
        "flip a decision",
        numbers.divergence,
        higher_is_better=False,
    ),
    Column("efficiency", "speed relative to the free slice: 1 if choosing tokens takes no time"),
    Column(
        "overhead",
        "share of the time spent on choosing tokens",
        "Overhead",
        "overhead",
        "share of a candidate's time spent on choosing tokens: 1 - efficiency, where efficiency is its speed relative "
        "to the *free slice*, which has the same token counts but drops tokens without choosing. Values below 0 are "
        "noise and shown as 0",
        numbers.whole_share,
        "%",
        higher_is_better=False,
    ),
    Column(
        "memory_mib",
        "peak extra memory of one batch",
        "Memory",
        "MiB",
        "peak memory of one batch beyond weights and images. On a CPU, one profiled pass adds up every allocation of "
        "torch's allocator; scratch memory that a library allocates by other means is not included. On CUDA it is the "
        "allocator's own peak. Not measured on other devices",
        numbers.whole,
        "MiB",
        higher_is_better=False,
    ),
    Column(
        "on_object",
        "share of the final tokens that lie on the object",
        "On object",
        "on object",
        "built-in scenes only, over 24 of them: the share of the final tokens that lie on the objects to count; a "
        "merged token counts as the mean of its patches",
        numbers.percent,
        "%",
    ),
    Column(
        "pareto",
        "whether no other setting is at least as fast and as faithful, and better in one of the two",
        measured="on the Pareto front, marked `*`: no other setting is at least as fast and as faithful, and better in "
        "one of the two",
    ),
    *_detection_columns(),
    *_pose_columns(),
    Column("macs", "multiply-accumulates of one image", head="GMACs", format=numbers.billions),
    Column("params", "parameters"),
    Column("counts", "patch tokens after each block"),
    Column("exact_last_block", "whether the last block is computed only for the class token"),
    Column("python", "Python code that applies it"),
)
BY_NAME = {column.name: column for column in COLUMNS}
IN_COMPARISONS = tuple(column for column in COLUMNS if column.head and column.title and column.brief)
"""Columns of a comparison's terminal table."""


def with_values(row: Row) -> dict[str, Any]:
    """Add the columns that are computed from others to a row."""
    return {**row, **{c.name: c.value(row) for c in COLUMNS if c.value is not None}}


def known_columns(columns: Iterable[Column], rows: Sequence[Row]) -> list[Column]:
    """Return the columns with a known value in any row."""
    return [c for c in columns if any(numbers.known(row.get(c.name)) for row in rows)]


def flat_row(row: Row) -> dict[str, Any]:
    """Return a row as CSV cells, in the order of the columns."""
    cells: dict[str, Any] = {}
    for column in COLUMNS:
        if column.name in row:
            cells |= column.flat(row[column.name])
    return cells


def as_markdown() -> str:
    """Return the table of docs/compare.md."""
    rows = [(column.terminal_head or column.name, column.measured) for column in COLUMNS if column.measured]
    return "\n".join(["| column | how it is measured |", "|---|---|", *(f"| {head} | {text} |" for head, text in rows)])
