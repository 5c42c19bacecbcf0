"""``foveate tables``: the papers' printed numbers, counted again."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from foveate.cli import output
from foveate.cli.arguments import add_json, first_line, positive_float
from foveate.tables import Table, all_tables
from foveate.tables.registry import Builder, SpeedOptions, has_speeds

DESCRIPTION = "Build the rows of a paper's printed table, count them, and say whether the printed numbers hold."
EPILOG = """\
examples:
  foveate tables                    list what there is
  foveate tables --all              build every table
  foveate tables evit --speed       also measure its images per second, which takes minutes

exit code: 0 if every row holds, 1 if one does not; speeds are not judged

keys of --json:
  a list; in each entry: name, title, columns, rows [{cells, holds (true, false, or null where the paper prints no
  number or a miss is known)}], note, holds, speed (null, or with --speed {title, columns, rows [{cells}], note}).
  Without names: [{name, description}]"""


def add_parser(commands: argparse._SubParsersAction) -> None:
    parser = commands.add_parser("tables", help="papers' tables, counted again", description=DESCRIPTION, epilog=EPILOG)
    parser.add_argument("names", metavar="NAME", nargs="*", help="tables to build; without one, list them")
    parser.add_argument("--all", action="store_true", help="build every table")
    group = parser.add_argument_group("measurement")
    group.add_argument("--speed", action="store_true", help="also measure the speeds that the paper prints, here")
    group.add_argument(
        "--seconds",
        metavar="S",
        type=positive_float,
        help=f"with --speed: for each pruned model, six rounds at least; default: {SpeedOptions.seconds:g}",
    )
    add_json(parser)
    parser.set_defaults(run=run)


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
        print_tables(built)
    return 0 if all(table.holds for table in built.values()) else 1


def read_speed(args: argparse.Namespace, known: Mapping[str, Builder]) -> SpeedOptions | None:
    """How to measure, if that was asked for; --all measures what it can, a name must be one with speeds."""
    if not args.speed:
        if args.seconds is not None:
            raise ValueError("--seconds goes with --speed: foveate tables NAME --speed --seconds 60.")
        return None
    measurable = [name for name, build in known.items() if has_speeds(build)]
    choice = f"Tables with speeds to measure: {', '.join(measurable) or 'none yet'}."
    if not args.names and not args.all:
        raise ValueError(f"--speed needs a table, or --all. {choice}")
    for name in () if args.all else args.names:
        if name not in measurable:
            raise ValueError(f"The table {name!r} has no speeds to measure; leave out --speed. {choice}")
    return SpeedOptions(args.seconds or SpeedOptions.seconds, output.progress_bar)


def built_table(build: Builder, speed: SpeedOptions | None) -> Table:
    return build(speed=speed) if speed is not None and has_speeds(build) else build()


def print_tables(tables: Mapping[str, Table]) -> None:
    """Every table, with what was measured below it."""
    for table in tables.values():
        for part in (table, table.speed):
            if part is not None:
                print_one(part)


def print_one(table: Table) -> None:
    """A table, with a last column that says whether the row holds, unless none is judged."""
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
    """A column's name in several lines, where one would be wider than what stands below it."""
    width = max(len(text) for text in (*cells, *name.split()))
    return textwrap.fill(name, width, break_long_words=False, break_on_hyphens=False)


def cell_text(value: object) -> str:
    """A number with as many digits as papers print; nothing for None."""
    if value is None:
        return ""
    if not isinstance(value, float):
        return str(value)
    return f"{value:.4g}" if abs(value) < 1000 else f"{value:.1f}"


def as_json(name: str, table: Table) -> dict[str, Any]:
    """One table of the document."""
    rows = [{"cells": list(row.cells), "holds": row.holds} for row in table.rows]
    speed = table.speed
    return {
        "name": name,
        "title": table.title,
        "columns": list(table.columns),
        "rows": rows,
        "note": table.note,
        "holds": table.holds,
        "speed": None if speed is None else speed_as_json(speed),
    }


def speed_as_json(speed: Table) -> dict[str, Any]:
    """What was measured; nothing in it is judged."""
    rows = [{"cells": list(row.cells)} for row in speed.rows]
    return {"title": speed.title, "columns": list(speed.columns), "rows": rows, "note": speed.note}
