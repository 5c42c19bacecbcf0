"""``foveate recipes``: the experiments that can be trained, and where each of their values comes from."""

from __future__ import annotations

from foveate_cli.arguments import Commands, add_command, add_json

DESCRIPTION = "List the recipes for training with their sources, or print one as it is written."
EPILOG = """\
examples:
  foveate recipes
  foveate recipes deit              the file, with comments that name the source of each value
  foveate recipes evit-finetune --json

keys of --json:
  a list; in each entry: name, description, source, config (every value, inherited and default ones included),
  variants {model: config} (models that have values of their own)"""


def add_parser(commands: Commands) -> None:
    text = "list training recipes"
    parser = add_command(commands, "recipes", "foveate.cli.recipes:run", text, DESCRIPTION, EPILOG)
    parser.add_argument("name", metavar="NAME", nargs="?", help="a recipe, or a .toml file of yours; default: list all")
    add_json(parser)
