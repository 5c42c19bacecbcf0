"""The work of ``foveate recipes``."""

from __future__ import annotations

import argparse
import textwrap
from typing import Any

from foveate.cli import output
from foveate.training.recipe import Recipe, all_recipes, find_recipe
from foveate.training.recipe_sources import sourced_values

WIDEST_TEXT = 120


def run(args: argparse.Namespace) -> int:
    if args.toml and (args.name is None or args.json):
        raise ValueError("--toml prints the file of one recipe. Name it, and leave out --json.")
    recipes = list(all_recipes().values()) if args.name is None else [find_recipe(args.name)]
    if args.json:
        output.print_json([as_json(recipe) for recipe in recipes])
    elif args.name is None:
        width = min(output.console().width, WIDEST_TEXT)
        output.say("\n\n".join(as_text(recipe, width) for recipe in recipes))
    elif args.toml:
        print(recipes[0].text, end="")  # unchanged, so that it can be the start of another file
    else:
        print_values(recipes[0])
    return 0


def print_values(recipe: Recipe) -> None:
    """Print every value of a recipe as ``--set`` takes it, and where it comes from."""
    width = min(output.console().width, WIDEST_TEXT)
    output.say(as_text(recipe, width) + "\n")
    rows = [(entry.change, entry.source) for entry in sourced_values(recipe)]
    output.print_table("Values, as --set takes them", ("value", "source"), rows, ("value", "source"))
    for model in recipe.variants:
        own = {entry.key: entry.value for entry in sourced_values(recipe)}
        changed = [
            f"{section}.{name}={value}"
            for section, values in recipe.config_for(model).as_dict().items()
            for name, value in (values.items() if isinstance(values, dict) else ())
            if section != "model" and own[f"{section}.{name}"] != value
        ]
        output.say(f"For {model}: {', '.join(changed) or 'nothing else'}.")


def as_text(recipe: Recipe, width: int) -> str:
    """Format one recipe for the terminal, in lines of ``width``."""
    indent = " " * 4
    lines = [recipe.name]
    for text in (recipe.config.description, f"Source: {recipe.config.source}"):
        lines += textwrap.wrap(text, width, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)
    return "\n".join(lines)


def as_json(recipe: Recipe) -> dict[str, Any]:
    """One recipe of the JSON document."""
    config = recipe.config_for()
    return {
        "name": recipe.name,
        "description": config.description,
        "source": config.source,
        "config": config.as_dict(),
        "sources": {entry.key: entry.source for entry in sourced_values(recipe)},
        "variants": {model: recipe.config_for(model).as_dict() for model in recipe.variants},
    }
