"""``foveate methods``: list methods with their options."""

from __future__ import annotations

from foveate_cli import names
from foveate_cli.arguments import Commands, add_command, add_json, completed_by

DESCRIPTION = """\
List methods with their options. Use them as --method NAME or --method NAME:OPTION=VALUE,OPTION=VALUE. A method that is
the value of an option takes its own in parentheses: --method 'Mixture:first=Ward(rounds=2),then=ToMe,switch=6'."""
EPILOG = """\
examples:
  foveate methods
  foveate methods EViT --json
  foveate methods Mixture

keys of --json:
  a list; in each entry: name, description, site (where in a block it acts), needs_class_token, training_free,
  options [{name, type, default, description}]"""


def add_parser(commands: Commands) -> None:
    text = "list methods and their options"
    parser = add_command(commands, "methods", "foveate.cli.methods:run", text, DESCRIPTION, EPILOG)
    listed = parser.add_argument("names", metavar="NAME", nargs="*", help="methods to list; default: all")
    completed_by(listed, names.methods)
    add_json(parser)
