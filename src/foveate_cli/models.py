"""``foveate models``: list models with what is supported, and why others are refused."""

from __future__ import annotations

from foveate_cli.arguments import Commands, add_command, add_json

DESCRIPTION = (
    "List the ViT-like models of the installed timm and the classes of transformers: supported, or refused and why. "
    "Without FILTER they are counted in groups."
)
EPILOG = """\
examples:
  foveate models
  foveate models dinov3
  foveate models 'vit_*siglip*' --json

keys of --json:
  a list; in each entry: name, library, group (timm's module, or a family), state (supported or refused),
  reason (the family of a supported model, or why it is refused)"""


def add_parser(commands: Commands) -> None:
    text = "list models: supported, or refused and why"
    parser = add_command(commands, "models", "foveate.cli.models:run", text, DESCRIPTION, EPILOG)
    parser.add_argument("filter", metavar="FILTER", nargs="?", help="only names that contain this, or match it with *")
    parser.add_argument("--markdown", action="store_true", help="print the groups as a table for documents")
    add_json(parser)
