"""Recipes: one readable file for each experiment of a paper, and files of the user's own in the same form.

A file has ``source`` and ``description``, and then sections with the values that differ from the defaults of
``TrainConfig``. Two keys are a recipe's alone:

    inherits = "deit"            begin from a recipe of foveate's that inherits nothing itself
    [for.clustr_base.optimizer]  values for one model, by its name; they win over the others
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
"""Keys about the recipe itself, which are not inherited."""

Tables = dict[str, Any]


@dataclass(frozen=True)
class Recipe:
    """One file, read and checked."""

    name: str
    text: str
    """The file as it is written, comments included."""
    config: TrainConfig
    variants: Mapping[str, TrainConfig]
    """The whole configuration of each model that has values of its own."""

    def config_for(self, model: str = "") -> TrainConfig:
        """The configuration for ``model``, by default the one the recipe names."""
        architecture = (model or self.config.model.name).partition(".")[0]  # timm writes its weights behind a point
        config = self.variants.get(architecture, self.config)
        if not model:
            return config
        section = dataclasses.replace(config.model, name=model)
        if brings_architecture(model):  # a recipe's options could not change it
            section = dataclasses.replace(section, options={})
        return dataclasses.replace(config, model=section)


def all_recipes() -> dict[str, Recipe]:
    """The recipes of foveate, by name."""
    return {name: _read(FOLDER / f"{name}{SUFFIX}") for name in recipe_names()}


def recipe_names() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob(f"*{SUFFIX}"))


def read_recipe(name: str | Path, model: str = "") -> TrainConfig:
    """The configuration of a recipe of foveate's, or of a .toml file, as ``model`` is to be trained with it."""
    return find_recipe(name).config_for(model)


def find_recipe(name: str | Path) -> Recipe:
    """A recipe of foveate's by its name, or one of the user's by the path of its .toml file."""
    path = Path(name)
    if path.suffix != SUFFIX:
        return _read(_named(str(name), f"A file of your own ends in {SUFFIX}."))
    if not path.is_file():
        raise ValueError(f"There is no recipe file {path}.")
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
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not valid TOML: {error}.") from error
    return text, current_names(tables)


def _inherited(tables: Tables, path: Path) -> Tables:
    """The tables of the recipe that is built upon."""
    if "inherits" not in tables:
        return {}
    name = tables["inherits"]
    if not isinstance(name, str):
        raise ValueError(f"{path}: inherits takes the name of a recipe; got {name!r}.")
    _, below = _parse(_named(name, f"{path} inherits it."))
    if "inherits" in below:
        raise ValueError(
            f"{path}: inherits = {name!r}, which inherits {below['inherits']!r} itself. One level is read: inherit "
            f"{below['inherits']!r}, and write out what {name!r} changes."
        )
    return {key: value for key, value in below.items() if key not in OWN_KEYS}


def _variants(below: Tables, above: Any, path: Path) -> dict[str, Tables]:
    """Sections by model, those that are inherited included."""
    if not isinstance(above, Mapping) or not all(isinstance(own, Mapping) for own in above.values()):
        raise ValueError(f"{path}: `for` has a model's name and a section, [for.clustr_base.optimizer]; got {above!r}.")
    own = {model: current_names(sections) for model, sections in above.items()}
    return {model: _merged(below.get(model, {}), own.get(model, {})) for model in {**below, **own}}


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> Tables:
    """Sections are merged value by value; a value is replaced whole, also where it is a table."""
    merged = dict(below)
    for name, value in above.items():
        both = isinstance(value, Mapping) and isinstance(merged.get(name), Mapping)
        merged[name] = {**merged[name], **value} if both else value
    return merged
