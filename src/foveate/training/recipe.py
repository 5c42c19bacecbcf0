"""Recipes: one TOML file per experiment of a paper, and the user's own files in the same format.

A file has ``source`` and ``description``, then sections with the values that differ from the defaults of
``TrainConfig``. Two keys exist only in recipes:

    inherits = "deit"            start from a built-in recipe, which must not inherit itself
    [for.clustr_base.optimizer]  values for one model, by name; they override the others
"""

from __future__ import annotations

import dataclasses
import difflib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foveate.models.by_name import brings_architecture
from foveate.training.config import TrainConfig, read_config
from foveate.training.renamed import current_names

FOLDER = Path(__file__).parent / "recipes"
SUFFIX = ".toml"
OWN_KEYS = ("source", "description", "inherits")
"""Keys that describe the recipe itself and are not inherited."""

Tables = dict[str, Any]


@dataclass(frozen=True)
class Recipe:
    """A recipe file, read and checked."""

    name: str
    text: str
    """The text of the file, comments included."""
    config: TrainConfig
    variants: Mapping[str, TrainConfig]
    """The complete configuration for each model with its own values."""

    def config_for(self, model: str = "") -> TrainConfig:
        """Return the configuration for ``model``; default: the recipe's model."""
        # timm appends the name of the weights after a dot
        architecture = (model or self.config.model.name).partition(".")[0]
        config = self.variants.get(architecture, self.config)
        if not model:
            return config
        section = dataclasses.replace(config.model, name=model)
        if brings_architecture(model):  # the recipe's options do not apply to it
            section = dataclasses.replace(section, options={})
        return dataclasses.replace(config, model=section)


def all_recipes() -> dict[str, Recipe]:
    """Return the built-in recipes by name."""
    return {name: _read(FOLDER / f"{name}{SUFFIX}") for name in recipe_names()}


def recipe_names() -> list[str]:
    """Return the names of the built-in recipes."""
    return sorted(path.stem for path in FOLDER.glob(f"*{SUFFIX}"))


def read_recipe(name: str | Path, model: str = "") -> TrainConfig:
    """Return the configuration of a built-in recipe or a .toml file, for training ``model``."""
    return find_recipe(name).config_for(model)


def find_recipe(name: str | Path) -> Recipe:
    """Return a built-in recipe by name, or a user's recipe by the path of its .toml file.

    Raises:
        ValueError: If there is no such recipe, or the file is not valid.
    """
    path = Path(name)
    if path.suffix != SUFFIX:
        return _read(_named(str(name), f"For your own recipe, pass the path of its {SUFFIX} file."))
    if not path.is_file():
        raise ValueError(f"Recipe file {path} does not exist.")
    return _read(path)


def _named(name: str, advice: str) -> Path:
    names = recipe_names()
    if name in names:
        return FOLDER / f"{name}{SUFFIX}"
    close = difflib.get_close_matches(name, names, n=3)
    hint = f"Did you mean {' or '.join(close)}?" if close else f"Known: {', '.join(names)}."
    raise ValueError(f"There is no recipe {name!r}. {hint} {advice}")


def _read(path: Path) -> Recipe:
    text, tables = _parse(path)
    inherited = _inherited(tables, path)
    variants = _variants(inherited.pop("for", {}), tables.pop("for", {}), path)
    tables.pop("inherits", None)
    tables = _merged(inherited, tables)
    return Recipe(
        path.stem,
        text,
        read_config(tables, str(path)),
        {model: read_config(_merged(tables, own), f"{path}: for.{model}") for model, own in variants.items()},
    )


def _parse(path: Path) -> tuple[str, Tables]:
    try:
        text = path.read_text(encoding="utf-8")
        tables = tomllib.loads(text)
    except RecursionError as error:
        raise ValueError(f"{path} nests tables or lists too deeply to be read.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not valid TOML: {error}.") from error
    return text, current_names(tables)


def _inherited(tables: Tables, path: Path) -> Tables:
    """Return the tables of the recipe that this one inherits."""
    if "inherits" not in tables:
        return {}
    name = tables["inherits"]
    if not isinstance(name, str):
        raise ValueError(f"{path}: inherits must be the name of a recipe, got {name!r}.")
    _, below = _parse(_named(name, f"{path} inherits it."))
    if "inherits" in below:
        raise ValueError(
            f"{path}: inherits = {name!r}, which inherits {below['inherits']!r} itself. Only one level works: inherit "
            f"{below['inherits']!r} and copy the values that {name!r} changes."
        )
    return {key: value for key, value in below.items() if key not in OWN_KEYS}


def _variants(below: Tables, above: Any, path: Path) -> dict[str, Tables]:
    """Return the sections of each model, including inherited ones."""
    if not isinstance(above, Mapping) or not all(isinstance(own, Mapping) for own in above.values()):
        raise ValueError(f"{path}: `for` needs a model and a section, e.g. [for.clustr_base.optimizer]; got {above!r}.")
    own = {model: current_names(sections) for model, sections in above.items()}
    return {model: _merged(below.get(model, {}), own.get(model, {})) for model in {**below, **own}}


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> Tables:
    """Merge sections value by value; a value is replaced as a whole, even if it is a table."""
    merged = dict(below)
    for name, value in above.items():
        both = isinstance(value, Mapping) and isinstance(merged.get(name), Mapping)
        merged[name] = {**merged[name], **value} if both else value
    return merged
