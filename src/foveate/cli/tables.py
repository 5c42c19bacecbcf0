"""``foveate tables``: the papers' printed numbers, counted again."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from foveate.cli import output
from foveate.cli.arguments import add_json, first_line
from foveate.tables import Table, all_tables

DESCRIPTION = "Build the rows of a paper's printed table, count them, and say whether the printed numbers hold."
EPILOG = """\
examples:
  foveate tables           list what there is
  foveate tables --all     build every table

exit code: 0 if every row holds, 1 if one does not

keys of --json:
  a list; in each entry: name, title, columns, rows [{cells, holds (true, false, or null where the paper prints no
  number or a miss is known)}], note, holds. Without names: [{name, description}]"""


def add_parser(commands: argparse._SubParsersAction) -> None:
    parser = commands.add_parser("tables", help="papers' tables, counted again", description=DESCRIPTION, epilog=EPILOG)
    parser.add_argument("names", metavar="NAME", nargs="*", help="tables to build; without one, list them")
    parser.add_argument("--all", action="store_true", help="build every table")
    add_json(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    known = all_tables()
    for name in args.names:
        if name not in known:
            raise ValueError(f"There is no table {name!r}. Known: {', '.join(known) or 'none yet'}.")
    names = list(known) if args.all else args.names
    if not names:
        output.print_listing("tables", {name: first_line(build) for name, build in known.items()}, args.json)
        return 0
    built = {name: known[name]() for name in names}
    if args.json:
        output.print_json([as_json(name, table) for name, table in built.items()])
    else:
        print_tables(built)
    return 0 if all(table.holds for table in built.values()) else 1


def print_tables(tables: Mapping[str, Table]) -> None:
    """Every table with a last column that says whether the row holds."""
    verdicts = {True: "yes", False: "NO", None: ""}
    for table in tables.values():
        rows = [[*map(cell_text, row.cells), verdicts[row.holds]] for row in table.rows]
        text_columns = [c for i, c in enumerate(table.columns) if any(isinstance(r.cells[i], str) for r in table.rows)]
        output.print_table(table.title, (*table.columns, "holds"), rows, (*text_columns, "holds"))
        if table.note:
            output.say(table.note)


def cell_text(value: object) -> str:
    """A number with as many digits as papers print; nothing for None."""
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def as_json(name: str, table: Table) -> dict[str, Any]:
    """One table of the document."""
    rows = [{"cells": list(row.cells), "holds": row.holds} for row in table.rows]
    columns = list(table.columns)
    return {
        "name": name,
        "title": table.title,
        "columns": columns,
        "rows": rows,
        "note": table.note,
        "holds": table.holds,
    }
