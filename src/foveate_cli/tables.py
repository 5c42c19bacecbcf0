"""``foveate tables``: the printed numbers of papers, counted again."""

from __future__ import annotations

from foveate_cli.arguments import Commands, add_command, add_json, positive_float

DESCRIPTION = "Build the rows of a paper's printed table, count them, and show whether the printed numbers hold."
EPILOG = """\
examples:
  foveate tables                    list all tables
  foveate tables --all              build every table
  foveate tables evit --speed       also measure images per second, which takes minutes

a row holds if our numbers, rounded to the digits that are printed, are the printed ones; the note below a table states
exceptions

exit code: 0 if every row holds, 1 if one does not; speeds are not judged

keys of --json:
  a list; in each entry: name, title, columns, rows [{cells, holds (true, false, or null where the paper prints no
  number or a miss is known)}], note, holds, speed (null, or with --speed {title, columns, rows [{cells}], note}).
  Without names: [{name, description}]"""


def add_parser(commands: Commands) -> None:
    text = "papers' tables, counted again"
    parser = add_command(commands, "tables", "foveate.cli.tables:run", text, DESCRIPTION, EPILOG)
    parser.add_argument("names", metavar="NAME", nargs="*", help="tables to build; without a name, list them")
    parser.add_argument("--all", action="store_true", help="build every table")
    group = parser.add_argument_group("measurement")
    group.add_argument("--speed", action="store_true", help="also measure the printed speeds on this machine")
    group.add_argument(
        "--seconds",
        metavar="S",
        type=positive_float,
        help="with --speed: for each pruned model, at least six rounds; default: 20",
    )
    add_json(parser)
