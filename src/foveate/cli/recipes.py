"""The work of ``foveate recipes``."""

from __future__ import annotations

import argparse
import textwrap
from typing import Any

from foveate.cli import output
from foveate.training.recipe import Recipe, all_recipes, find_recipe

WIDEST_TEXT = 120


def run(args: argparse.Namespace) -> int:
    recipes = list(all_recipes().values()) if args.name is None else [find_recipe(args.name)]
    if args.json:
        output.print_json([as_json(recipe) for recipe in recipes])
    elif args.name is None:
        width = min(output.console().width, WIDEST_TEXT)
        output.say("\n\n".join(as_text(recipe, width) for recipe in recipes))
    else:
        print(recipes[0].text, end="")  # unchanged, so that it can be the start of another file
    return 0


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
        "variants": {model: recipe.config_for(model).as_dict() for model in recipe.variants},
    }
