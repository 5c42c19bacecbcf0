"""Where each value of a recipe comes from: its comment in the file, a recipe that it inherits, or a default."""

from __future__ import annotations

import json
import re
import tomllib
from dataclasses import dataclass
from typing import Any

from foveate.training.recipe import FOLDER, SUFFIX, Recipe

SECTION = re.compile(r"^\[([\w.\"-]+)\]")
VALUE = re.compile(r"^([\w.]+)\s*=(.*)$")
COMMENT = re.compile(r"\s#\s(.*)$")
DEFAULT, OWN, INHERITED = "default", "this recipe", "inherited from"


@dataclass(frozen=True)
class SourcedValue:
    """One value of a recipe."""

    key: str
    """As ``--set`` takes it: ``optimizer.lr``."""
    value: Any
    source: str
    """The comment beside it, marked where the value is inherited; ``default`` if no recipe sets it."""

    @property
    def change(self) -> str:
        """The text behind ``--set`` that gives this value."""
        if isinstance(self.value, str):
            return f"{self.key}={self.value}"
        if isinstance(self.value, list):
            return f"{self.key}={','.join(map(str, self.value))}"
        return f"{self.key}={json.dumps(self.value)}"


def sourced_values(recipe: Recipe) -> list[SourcedValue]:
    """Return every value of a recipe, defaults included, in the order of the configuration."""
    own, below = comments(recipe.text), {}
    inherits = tomllib.loads(recipe.text).get("inherits")
    if inherits:
        below = comments((FOLDER / f"{inherits}{SUFFIX}").read_text(encoding="utf-8"))
    found = []
    for section, values in recipe.config.as_dict().items():
        for name, value in values.items() if isinstance(values, dict) else ():
            key = f"{section}.{name}"
            if (comment := _comment(own, key)) is not None:
                source = comment or OWN
            elif (comment := _comment(below, key)) is not None:
                source = f"{INHERITED} {inherits}" + (f": {comment}" if comment else "")
            else:
                source = DEFAULT
            found.append(SourcedValue(key, value, source))
    return found


def _comment(comments: dict[str, str], key: str) -> str | None:
    """Return the comment of a value, or those within it if it is a table; None if the file does not set it."""
    within = [text for name, text in comments.items() if name == key or name.startswith(f"{key}.")]
    return "; ".join(filter(None, within)) if within else None


def comments(text: str) -> dict[str, str]:
    """Return the comment behind each ``section.name`` of a TOML file; empty where there is none."""
    section, found = "", {}
    for line in text.splitlines():
        if header := SECTION.match(line):
            section = header[1]
        elif section and (value := VALUE.match(line)):
            comment = COMMENT.search(value[2])
            found[f"{section}.{value[1]}"] = comment[1].strip() if comment else ""
    return found
