"""What a table is, and how it becomes known."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from foveate.report.speed import Progress

Cell = str | int | float | None


@dataclass(frozen=True)
class Row:
    """One line of a table, its cells in the order of the table's columns."""

    cells: tuple[Cell, ...]
    holds: bool | None = None
    """Whether our number meets the printed one; None where there is nothing to meet, or a miss is known."""


@dataclass(frozen=True)
class Table:
    """A printed table next to our numbers."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    note: str = ""
    """What a reader has to know: deviations, tolerance, what the paper leaves open."""
    speed: Table | None = None
    """What was measured, where that was asked for. It is never judged: machines differ."""

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row.cells) != len(self.columns):
                raise ValueError(f"{self.title!r} has {len(self.columns)} columns; the row {row.cells} does not fit.")

    @property
    def holds(self) -> bool:
        """Whether no row fails."""
        return all(row.holds is not False for row in self.rows)


def silently(label: str) -> AbstractContextManager[Progress | None]:
    """No progress at all."""
    return nullcontext()


@dataclass(frozen=True)
class SpeedOptions:
    """How to measure a table's speeds. What else there is to set, such as the batch size, the paper has settled."""

    seconds: float = 20.0
    """For each measurement."""
    progress: Callable[[str], AbstractContextManager[Progress | None]] = silently
    """Opened with a label around each measurement; gives what is called after each round, or None."""


Builder = Callable[..., Table]
"""Builds a table. One with speeds to measure takes ``speed: SpeedOptions | None = None``; others take nothing."""

_TABLES: dict[str, Builder] = {}


def table(name: str) -> Callable[[Builder], Builder]:
    """Make a function that builds a table known by ``name``."""

    def decorate(build: Builder) -> Builder:
        if name in _TABLES:
            raise ValueError(f"Two tables are called {name!r}.")
        _TABLES[name] = build
        return build

    return decorate


def has_speeds(build: Builder) -> bool:
    """Whether a table has speeds to measure."""
    return "speed" in inspect.signature(build).parameters


def all_tables() -> dict[str, Builder]:
    """Every table by name. Imports the modules of ``foveate.tables``, which register themselves."""
    package = importlib.import_module("foveate.tables")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"foveate.tables.{module.name}")
    return dict(_TABLES)
