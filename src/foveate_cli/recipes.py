"""``foveate recipes``: list training recipes and the source of each value."""

from __future__ import annotations

from foveate_cli import names
from foveate_cli.arguments import Commands, add_command, add_json, completed_by

DESCRIPTION = "List training recipes with their sources, or every value of one recipe and where it comes from."
EPILOG = """\
examples:
  foveate recipes
  foveate recipes deit              every value, its source, and the key that --set takes; inherited values are marked
  foveate recipes deit --toml       the file, to start one of your own
  foveate recipes evit-finetune --json

keys of --json:
  a list; in each entry: name, description, source, config (every value, inherited and default ones included),
  sources {key: where the value comes from}, variants {model: config} (models with values of their own)"""


def add_parser(commands: Commands) -> None:
    text = "list training recipes"
    parser = add_command(commands, "recipes", "foveate.cli.recipes:run", text, DESCRIPTION, EPILOG)
    name = parser.add_argument("name", metavar="NAME", nargs="?", help="a recipe, or your own .toml file; default: all")
    completed_by(name, names.recipes_and_files)
    parser.add_argument("--toml", action="store_true", help="print the file of the recipe as it is")
    add_json(parser)
