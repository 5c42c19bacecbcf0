"""``foveate tables``: check the printed numbers of papers."""

from __future__ import annotations

from foveate_cli import names
from foveate_cli.arguments import Commands, add_command, add_json, completed_by, positive_float

DESCRIPTION = "Count the rows of a paper's table again and show whether the printed numbers hold."
EPILOG = """\
examples:
  foveate tables                    list all tables
  foveate tables --all              build every table
  foveate tables evit --speed       also measure images per second, which takes minutes

A row holds if foveate's numbers equal the printed ones after rounding to the printed digits. The note below a table
states exceptions.

exit code: 0 if every row holds, 1 if one does not; speeds are not checked

keys of --json:
  a list; in each entry: name, title, columns, rows [{cells, holds (true, false, or null where the paper prints no
  number or a miss is known)}], note, holds, speed (null, or with --speed {title, columns, rows [{cells}], note}).
  Without names: [{name, description}]"""


def add_parser(commands: Commands) -> None:
    text = "check tables of papers"
    parser = add_command(commands, "tables", "foveate.cli.tables:run", text, DESCRIPTION, EPILOG)
    listed = parser.add_argument("names", metavar="NAME", nargs="*", help="tables to build; default: list all")
    completed_by(listed, names.tables)
    parser.add_argument("--all", action="store_true", help="build every table")
    group = parser.add_argument_group("measurement")
    group.add_argument("--speed", action="store_true", help="also measure the printed speeds on this machine")
    group.add_argument(
        "--seconds",
        metavar="S",
        type=positive_float,
        help="with --speed: seconds for each pruned model, for at least six rounds; default: 20",
    )
    add_json(parser)
