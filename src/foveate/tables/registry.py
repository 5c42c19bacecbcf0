"""What a table is, and the registry of all tables."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from foveate.evaluation.progress import Progress
from foveate.registries import Registry

Cell = str | int | float | None


@dataclass(frozen=True)
class Row:
    """One line of a table, its cells in the order of the table's columns."""

    cells: tuple[Cell, ...]
    holds: bool | None = None
    """Whether our numbers match the printed ones; None where nothing is printed or judged."""


@dataclass(frozen=True)
class Table:
    """A printed table next to our numbers."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    note: str = ""
    """What a reader needs to know: deviations, tolerance, what the paper leaves open."""
    speed: Table | None = None
    """Measured speeds, with --speed. They are not judged: machines differ."""

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row.cells) != len(self.columns):
                raise ValueError(
                    f"{self.title!r} has {len(self.columns)} columns; the row {row.cells} has {len(row.cells)} cells."
                )

    @property
    def holds(self) -> bool:
        """Whether no row fails."""
        return all(row.holds is not False for row in self.rows)


def silently(label: str) -> AbstractContextManager[Progress | None]:
    """Show no progress."""
    return nullcontext()


@dataclass(frozen=True)
class SpeedOptions:
    """How to measure a table's speeds. The paper sets the rest, such as the batch size."""

    seconds: float = 20.0
    """Duration of each measurement."""
    progress: Callable[[str], AbstractContextManager[Progress | None]] = silently
    """Called with a label; the context it returns gives the callback for each round of a measurement, or None."""


Builder = Callable[..., Table]
"""Builds a table. A table with speeds takes ``speed: SpeedOptions | None = None``; others take nothing."""

table: Registry[Builder] = Registry("table", "foveate.tables")
all_tables = table.all


def has_speeds(build: Builder) -> bool:
    """Return whether a table has speeds to measure."""
    return "speed" in inspect.signature(build).parameters
