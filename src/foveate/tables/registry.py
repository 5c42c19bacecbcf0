"""What a table is, and how it becomes known."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass

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

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row.cells) != len(self.columns):
                raise ValueError(f"{self.title!r} has {len(self.columns)} columns; the row {row.cells} does not fit.")

    @property
    def holds(self) -> bool:
        """Whether no row fails."""
        return all(row.holds is not False for row in self.rows)


_TABLES: dict[str, Callable[[], Table]] = {}


def table(name: str) -> Callable[[Callable[[], Table]], Callable[[], Table]]:
    """Make a function that builds a table known by ``name``."""

    def decorate(build: Callable[[], Table]) -> Callable[[], Table]:
        if name in _TABLES:
            raise ValueError(f"Two tables are called {name!r}.")
        _TABLES[name] = build
        return build

    return decorate


def all_tables() -> dict[str, Callable[[], Table]]:
    """Every table by name. Imports the modules of ``foveate.tables``, which register themselves."""
    package = importlib.import_module("foveate.tables")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"foveate.tables.{module.name}")
    return dict(_TABLES)
