"""The result of a comparison: print it, save it, plot it, or query it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar

from torch import nn

from foveate.evaluation.columns import COLUMNS, flat_row, with_values
from foveate.evaluation.plain_data import checked_value, read_dataclass
from foveate.methods.options import parse
from foveate.methods.validation import shown_error
from foveate.reductions import Reduction
from foveate.report.compare.question import SMALLER_IMAGES, best_entry, is_baseline
from foveate.report.compare.served import InRuntime, fastest_by_tier, read_stored
from foveate.schedules import Keep

UNREDUCED, EXACT_LAST_BLOCK = "unreduced", "exact-last-block"
NEEDED: dict[str, dict[str, Any]] = {
    "model": {"name": str},
    "data": {"source": str, "images": int, "broken": int, "note": str},
    "options": {"batch_size": int},
    "environment": {"cpu": str, "threads": int, "device": str},
}
"""What the table, the page and the summary read of these tables."""
Model = TypeVar("Model", bound=nn.Module)


@dataclass(frozen=True)
class Entry:
    """One way to run the model. Shares of images are in percent."""

    method: str
    """Registered name, with non-default options; ``unreduced`` for the unreduced model."""
    label: str
    """Display name: ``ToMe``."""
    kind: str
    """none, select, merge, cluster, pool or learned."""
    budget: float | None
    """Requested share of the MACs."""
    counts: tuple[int, ...]
    """Patch tokens after each block."""
    exact_last_block: bool
    macs: int
    mac_ratio: float
    """True MACs divided by those of the unreduced model."""
    params: int
    top1: float | None
    top5: float | None
    agreement: float
    """Share of decisions equal to the unreduced model's."""
    kl: float
    """Mean KL(unreduced || this) in nats."""
    images_per_second: float | None
    speed_up: float | None
    """Speed relative to the unreduced model, median of interleaved rounds."""
    speed_up_quartiles: tuple[float, float] | None
    efficiency: float | None
    """Speed relative to the free slice with the same counts."""
    overhead: float | None
    """Share of the time spent on choosing tokens: 1 - efficiency, never below 0."""
    memory_mib: float | None
    """Peak extra memory of one batch."""
    on_object: float | None
    """Share of the final tokens that lie on the object, if masks exist."""
    pareto: bool
    """Whether no other is at least as fast and as faithful, and better in one of the two."""
    python: str
    """Python code that applies it."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Other metrics of the task, by the names of ``evaluation/columns.py``."""

    def as_dict(self) -> dict[str, Any]:
        """Return plain data: every column by name."""
        fields = {f.name: _plain(getattr(self, f.name)) for f in dataclasses.fields(self) if f.name != "metrics"}
        return with_values({**fields, **self.metrics})

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> Entry:
        """Return the entry that ``as_dict`` described."""
        names = [f.name for f in dataclasses.fields(Entry) if f.name != "metrics"]
        made = [column.name for column in COLUMNS if column.value is not None]
        own = {name: value for name, value in data.items() if name in names}
        metrics = {name: value for name, value in data.items() if name not in (*names, *made)}
        return read_dataclass(Entry, {**own, "metrics": metrics}, "An entry")

    @property
    def title(self) -> str:
        """The name with the budget: ``ToMe at 0.65``."""
        return self.label if self.budget is None else f"{self.label} at {self.budget:g}"

    def apply_(self, model: Model) -> Model:
        """Reduce ``model`` to these counts, in place, and return it.

        Raises:
            ValueError: If this setting has its own weights, which must be loaded instead.
        """
        if self.kind == "learned":
            raise ValueError(f"{self.label} has its own weights. Load it instead: {self.python.splitlines()[-1]}")
        if self.method == SMALLER_IMAGES:
            raise ValueError(f"Smaller images are no reduction of tokens. Write instead: {self.python}")
        return self.reduction.apply_(model)

    @property
    def reduction(self) -> Reduction:
        """The reduction, with explicit counts."""
        if self.method in (UNREDUCED, EXACT_LAST_BLOCK):
            return Reduction(exact_last_block=self.exact_last_block)
        return Reduction(parse(self.method), Keep(self.counts), self.exact_last_block)


@dataclass(frozen=True)
class Refused:
    """A setting that could not be compared, and why."""

    method: str
    label: str
    budget: float | None
    reason: str


@dataclass(frozen=True)
class Recommendation:
    """The recommended setting, with a sentence and code."""

    entry: int | None
    """Index into the entries; None if nothing is recommended."""
    sentence: str
    python: str


PICTURED = ("gallery", "predictions")
"""Fields of a comparison that only its page shows."""


@dataclass(frozen=True)
class Comparison:
    """All measured ways to run one model, the unreduced one first."""

    model: dict[str, Any]
    """name, params, macs, image_size [3, H, W], grid [rows, columns], blocks, prefix, num_classes, weights (where they
    came from), fingerprint (of the weights)."""
    data: dict[str, Any]
    """source, split, images, labeled, agreement_of, note (why there is no accuracy, or empty), broken."""
    options: dict[str, Any]
    """budgets, methods, batch_size, device, limit, seconds, seed."""
    environment: dict[str, Any]
    demonstration: bool
    """Whether this is the built-in model on built-in scenes, which says nothing about other models."""
    complete: bool
    """False if the run was interrupted."""
    entries: tuple[Entry, ...]
    refused: tuple[Refused, ...]
    recommendation: Recommendation
    runtimes: tuple[InRuntime, ...] = ()
    """The entries in other runtimes, if these were asked for."""
    gallery: Any = field(default=None, compare=False, repr=False)
    """Token maps for the page; not part of the results."""
    predictions: Any = field(default=None, compare=False, repr=False)
    """Pictures of predictions for the page; not part of the results."""

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for JSON; ``from_dict`` is its inverse."""
        fields = [f.name for f in dataclasses.fields(self) if f.name not in (*PICTURED, "entries")]
        plain = {name: _plain(getattr(self, name)) for name in fields}
        return {**plain, "entries": [entry.as_dict() for entry in self.entries]}

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> Comparison:
        """Return the comparison that ``as_dict`` described.

        Raises:
            ValueError: If ``data`` does not describe a comparison.
        """
        try:
            return Comparison._read(data)
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            raise ValueError(
                f"These are not the results of a comparison: {type(error).__name__}: {shown_error(error)}."
            ) from error

    @staticmethod
    def _read(data: Mapping[str, Any]) -> Comparison:
        fields = {f.name for f in dataclasses.fields(Comparison)} - {*PICTURED, "runtimes"}
        values = {name: data[name] for name in fields}
        for name, keys in NEEDED.items():
            checked_value(values[name], dict[str, Any], name)
            for key, kind in keys.items():
                checked_value(values[name][key], kind, f"{name}.{key}")
        checked_value([values["demonstration"], values["complete"]], tuple[bool, bool], "demonstration and complete")
        values["entries"] = tuple(Entry.from_dict(entry) for entry in data["entries"])
        values["refused"] = tuple(read_dataclass(Refused, refused, "refused") for refused in data["refused"])
        values["runtimes"] = tuple(read_stored(data.get("runtimes", []), len(values["entries"])))
        found = read_dataclass(Recommendation, data["recommendation"], "recommendation")
        if found.entry is not None and not 0 <= found.entry < len(values["entries"]):
            raise ValueError(f"recommendation.entry is {found.entry}, but there are {len(values['entries'])} entries")
        return Comparison(**{**values, "recommendation": found})

    def table(self) -> list[dict[str, Any]]:
        """Return one flat row per entry, for notebooks (``pandas.DataFrame(c.table())``) and CSV."""
        recommended = self.recommendation.entry
        return [
            {**flat_row(entry.as_dict()), "recommended": number == recommended}
            for number, entry in enumerate(self.entries)
        ]

    def best(self, agreement: float | None = None, *, latency_ms: float | None = None) -> Entry:
        """Return the fastest setting that is faithful enough; with ``latency_ms``, the most faithful that is fast.

        Args:
            agreement: Least share of unchanged decisions, from 0 to 1. Default: 0.99, or 0 with ``latency_ms``.
            latency_ms: Milliseconds that one batch may take.

        Raises:
            ValueError: If a value is out of range, no speed was measured, or no setting is fast enough.
        """
        return best_entry(self.entries, agreement, latency_ms, int(self.options["batch_size"]))

    def fastest_in_runtimes(self) -> list[tuple[float, InRuntime]]:
        """The fastest in other runtimes that leaves 99, 98 and 95 % of decisions unchanged, each with that share."""
        baselines = [number for number, entry in enumerate(self.entries) if is_baseline(entry)]
        return fastest_by_tier(self.runtimes, int(self.options["batch_size"]), baselines)

    def save(self, directory: str | PathLike[str]) -> Path:
        """Write results.json, results.csv and the page index.html, each atomically; return the folder."""
        from foveate.report.compare.saving import save_results

        return save_results(self, Path(directory))

    def plot(self, path: str | PathLike[str] | None = None) -> Any:
        """Plot agreement over speed with matplotlib, and save it to ``path`` if given.

        Raises:
            ImportError: If matplotlib is not installed.
        """
        from foveate.report.compare.figure import draw

        return draw(self, path)

    def _repr_html_(self) -> str:
        """Return the notebook view: the sentence and a short table."""
        from foveate.report.compare.figure import as_html

        return as_html(self)


def _plain(value: Any) -> Any:
    """Convert to plain data for JSON: tuples become lists, dataclasses become dictionaries."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value
