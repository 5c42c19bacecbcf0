"""The work of ``foveate tables``."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from foveate.cli import output
from foveate.cli.requests import first_line
from foveate.tables import Table, all_tables
from foveate.tables.registry import Builder, SpeedOptions, has_speeds


def run(args: argparse.Namespace) -> int:
    known = all_tables()
    for name in args.names:
        if name not in known:
            raise ValueError(f"There is no table {name!r}. Known: {', '.join(known) or 'none yet'}.")
    speed = read_speed(args, known)
    names = list(known) if args.all else args.names
    if not names:
        output.print_listing("tables", {name: first_line(build) for name, build in known.items()}, args.json)
        return 0
    built = {name: built_table(known[name], speed) for name in names}
    if args.json:
        output.print_json([as_json(name, table) for name, table in built.items()])
    else:
        for part in (part for table in built.values() for part in (table, table.speed) if part is not None):
            print_one(part)
    return 0 if all(table.holds for table in built.values()) else 1


def read_speed(args: argparse.Namespace, known: Mapping[str, Builder]) -> SpeedOptions | None:
    """Read --speed and --seconds; None without --speed.

    Raises:
        ValueError: if a named table has no speeds. With --all, such tables are built without speeds.
    """
    if not args.speed:
        if args.seconds is not None:
            raise ValueError("--seconds needs --speed: foveate tables NAME --speed --seconds 60.")
        return None
    measurable = [name for name, build in known.items() if has_speeds(build)]
    choice = f"Tables with speeds to measure: {', '.join(measurable) or 'none yet'}."
    if not args.names and not args.all:
        raise ValueError(f"--speed needs the name of a table, or --all. {choice}")
    for name in () if args.all else args.names:
        if name not in measurable:
            raise ValueError(f"The table {name!r} has no speeds to measure; leave out --speed. {choice}")
    return SpeedOptions(args.seconds or SpeedOptions.seconds, output.progress_bar)


def built_table(build: Builder, speed: SpeedOptions | None) -> Table:
    return build(speed=speed) if speed is not None and has_speeds(build) else build()


def print_one(table: Table) -> None:
    """Print a table with its verdicts in a last column, if it has any."""
    verdicts = {True: "yes", False: "NO", None: ""}
    columns, rows = list(table.columns), [list(map(cell_text, row.cells)) for row in table.rows]
    texts = [any(isinstance(row.cells[i], str) for row in table.rows) for i in range(len(columns))]
    if any(row.holds is not None for row in table.rows):
        columns, texts = [*columns, "holds"], [*texts, True]
        rows = [[*cells, verdicts[row.holds]] for cells, row in zip(rows, table.rows, strict=True)]
    headers = [header(name, [row[i] for row in rows]) for i, name in enumerate(columns)]
    output.print_table(table.title, headers, rows, [name for name, text in zip(headers, texts, strict=True) if text])
    if table.note:
        output.say(table.note)


def header(name: str, cells: Sequence[str]) -> str:
    """Break a column's name into lines if it is wider than its cells."""
    width = max(len(text) for text in (*cells, *name.split()))
    return textwrap.fill(name, width, break_long_words=False, break_on_hyphens=False)


def cell_text(value: object) -> str:
    """Format a number with as many digits as papers print; None is empty."""
    if value is None:
        return ""
    if not isinstance(value, float):
        return str(value)
    return f"{value:.4g}" if abs(value) < 1000 else f"{value:.1f}"


def as_json(name: str, table: Table) -> dict[str, Any]:
    """One table of the JSON document. Speeds are not checked, so their rows have no verdict."""
    document = {"name": name, **contents(table), "holds": table.holds, "speed": None}
    for entry, row in zip(document["rows"], table.rows, strict=True):
        entry["holds"] = row.holds
    return document if table.speed is None else document | {"speed": contents(table.speed)}


def contents(table: Table) -> dict[str, Any]:
    rows: list[dict[str, Any]] = [{"cells": list(row.cells)} for row in table.rows]
    return {"title": table.title, "columns": list(table.columns), "rows": rows, "note": table.note}
