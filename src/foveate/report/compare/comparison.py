"""What a comparison comes to: a value that is printed, saved, drawn and asked."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar

from torch import nn

from foveate.evaluation.columns import COLUMNS, flat_row, with_values
from foveate.methods.options import parse
from foveate.reductions import Reduction
from foveate.report.compare.question import best_entry
from foveate.schedules import Keep

UNREDUCED, EXACT_LAST_BLOCK = "unreduced", "exact-last-block"
Model = TypeVar("Model", bound=nn.Module)


@dataclass(frozen=True)
class Entry:
    """One way to run the model. Shares of images are in per cent."""

    method: str
    """Registered name, with options where they are not the defaults; ``unreduced`` for the model as it is."""
    label: str
    """For people: ``ToMe``."""
    kind: str
    """none, select, merge, cluster, pool or learned."""
    budget: float | None
    """Share of the MACs that was asked for."""
    counts: tuple[int, ...]
    """Patch tokens after each block."""
    exact_last_block: bool
    macs: int
    mac_ratio: float
    """MACs over those of the unreduced model, as they truly are."""
    params: int
    top1: float | None
    top5: float | None
    agreement: float
    """Decisions equal to the unreduced model's."""
    kl: float
    """Mean KL(unreduced || this) in nats."""
    images_per_second: float | None
    speed_up: float | None
    """Over the unreduced model, median of interleaved rounds."""
    speed_up_quartiles: tuple[float, float] | None
    efficiency: float | None
    """Against the free slice of the same counts."""
    overhead: float | None
    """Share of its time that choosing costs: 1 - efficiency, never below 0."""
    memory_mib: float | None
    """Peak extra memory of one batch."""
    on_object: float | None
    """Share of its last tokens that lie on the object, where masks exist."""
    pareto: bool
    """Whether no other is at least as fast and as faithful, and better in one of both."""
    python: str
    """The two lines that apply it."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """What else the task measures, by the names of ``evaluation/columns.py``."""

    def as_dict(self) -> dict[str, Any]:
        """Plain data: every column by its name."""
        fields = {f.name: _plain(getattr(self, f.name)) for f in dataclasses.fields(self) if f.name != "metrics"}
        return with_values({**fields, **self.metrics})

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> Entry:
        """The entry that ``as_dict`` described."""
        names = [f.name for f in dataclasses.fields(Entry) if f.name != "metrics"]
        made = [column.name for column in COLUMNS if column.value is not None]
        fields = {name: data[name] for name in names}
        fields["counts"] = tuple(data["counts"])
        quartiles = data["speed_up_quartiles"]
        fields["speed_up_quartiles"] = None if quartiles is None else (quartiles[0], quartiles[1])
        metrics = {name: value for name, value in data.items() if name not in (*names, *made)}
        return Entry(**fields, metrics=metrics)

    @property
    def title(self) -> str:
        """``ToMe at 0.65``."""
        return self.label if self.budget is None else f"{self.label} at {self.budget:g}"

    def apply_(self, model: Model) -> Model:
        """Reduce ``model`` to these counts, in place, as the two lines do; returns it."""
        if self.kind == "learned":
            raise ValueError(f"{self.label} has weights of its own: {self.python.splitlines()[-1]}")
        return self.reduction.apply_(model)

    @property
    def reduction(self) -> Reduction:
        """What it does to a model, with its counts written out."""
        if self.method in (UNREDUCED, EXACT_LAST_BLOCK):
            return Reduction(exact_last_block=self.exact_last_block)
        return Reduction(parse(self.method), Keep(self.counts), self.exact_last_block)


@dataclass(frozen=True)
class Refused:
    """What could not be compared, and why."""

    method: str
    label: str
    budget: float | None
    reason: str


@dataclass(frozen=True)
class Recommendation:
    """The decision, for people."""

    entry: int | None
    """Index into the entries; None where nothing is worth it."""
    sentence: str
    python: str


@dataclass(frozen=True)
class Comparison:
    """All ways to run one model that were measured, the unreduced one first."""

    model: dict[str, Any]
    """name, params, macs, image_size [3, H, W], grid [rows, columns], blocks, prefix, num_classes."""
    data: dict[str, Any]
    """source, split, images, labeled, note (why there is no accuracy, or empty), broken."""
    options: dict[str, Any]
    """budgets, methods, batch_size, device, limit, seconds, seed."""
    environment: dict[str, Any]
    demonstration: bool
    """The built-in model on the built-in scenes, which say nothing about anyone's model."""
    complete: bool
    """False where it was interrupted."""
    entries: tuple[Entry, ...]
    refused: tuple[Refused, ...]
    recommendation: Recommendation
    gallery: Any = field(default=None, compare=False, repr=False)
    """Token maps for the page; not a part of the figures."""

    def as_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON; ``from_dict`` is its inverse."""
        fields = [f.name for f in dataclasses.fields(self) if f.name not in ("gallery", "entries")]
        plain = {name: _plain(getattr(self, name)) for name in fields}
        return {**plain, "entries": [entry.as_dict() for entry in self.entries]}

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> Comparison:
        """The comparison that ``as_dict`` described."""
        values = {f.name: data[f.name] for f in dataclasses.fields(Comparison) if f.name != "gallery"}
        values["entries"] = tuple(Entry.from_dict(entry) for entry in data["entries"])
        values["refused"] = tuple(Refused(**refused) for refused in data["refused"])
        values["recommendation"] = Recommendation(**data["recommendation"])
        return Comparison(**values)

    def table(self) -> list[dict[str, Any]]:
        """One flat row for each entry: for notebooks (``pandas.DataFrame(c.table())``) and CSV."""
        recommended = self.recommendation.entry
        return [
            {**flat_row(entry.as_dict()), "recommended": number == recommended}
            for number, entry in enumerate(self.entries)
        ]

    def best(self, agreement: float | None = None, *, latency: float | None = None) -> Entry:
        """The fastest with at least ``agreement`` of the decisions unchanged (default: 0.99).

        With ``latency``, milliseconds that one batch may take: the most faithful within it.
        """
        return best_entry(self.entries, agreement, latency, int(self.options["batch_size"]))

    def save(self, directory: str | PathLike[str]) -> Path:
        """Write results.json, results.csv and the page index.html, each in one step; returns the folder."""
        from foveate.report.compare.saving import save_results

        return save_results(self, Path(directory))

    def plot(self, path: str | PathLike[str] | None = None) -> Any:
        """A matplotlib figure of agreement over speed; written to ``path`` where one is given."""
        from foveate.report.compare.figure import draw

        return draw(self, path)

    def _repr_html_(self) -> str:
        """What a notebook shows: the sentence and a short table."""
        from foveate.report.compare.figure import as_html

        return as_html(self)


def _plain(value: Any) -> Any:
    """Tuples become lists and dataclasses dictionaries, as JSON has them."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value
