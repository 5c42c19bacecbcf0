"""Values of a configuration: their types, and how a command line writes them."""

from __future__ import annotations

import json
import math
import typing
from collections.abc import Mapping
from typing import Any, Literal


def checked_value(value: Any, kind: Any, where: str) -> Any:
    """Return ``value`` as type ``kind``, or raise a ValueError that names what is accepted."""
    if typing.get_origin(kind) is Literal:
        if value in typing.get_args(kind):
            return value
        raise ValueError(f"{where} must be one of {', '.join(typing.get_args(kind))}; got {value!r}.")
    if typing.get_origin(kind) is tuple and isinstance(value, (list, tuple)):
        return tuple(checked_value(item, typing.get_args(kind)[0], where) for item in value)
    if typing.get_origin(kind) is dict and isinstance(value, Mapping):
        inner = typing.get_args(kind)[1]
        return {
            key: item if inner is Any else checked_value(item, inner, f"{where}.{key}") for key, item in value.items()
        }
    if kind is float and isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    if kind in (str, int, bool) and isinstance(value, kind) and isinstance(value, bool) == (kind is bool):
        return value
    raise ValueError(f"{where} takes {type_in_words(kind)}; got {value!r}.")


def type_in_words(kind: Any) -> str:
    words = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
    origin = typing.get_origin(kind)
    return words.get(kind) or {tuple: "a list", dict: "a table of values"}.get(origin, str(kind))


def value_from_text(text: str, kind: Any, where: str) -> Any:
    """Parse a command-line value: JSON if it is valid JSON, otherwise text. Lists may be written as 3,6,9."""
    if kind is str or typing.get_origin(kind) is Literal:
        return text
    if kind == tuple[str, ...] and not text.startswith("["):
        return [part.strip() for part in text.split(",") if part.strip()]
    if typing.get_origin(kind) is tuple and not text.startswith("["):
        text = f"[{text}]"
    try:
        return json.loads(text.lower() if text in ("True", "False") else text)
    except json.JSONDecodeError:
        if kind is dict:
            return text  # an option's text needs no quotes
        if numbers := _numbers(text, kind):
            return numbers if text.startswith("[") else numbers[0]
        raise ValueError(f"{where} takes {type_in_words(kind)}; got {text!r}.") from None


def _numbers(text: str, kind: Any) -> list[float]:
    """Parse a number or a list of numbers that are not valid JSON, such as .5 or 1.; empty for anything else."""
    parts = text.strip("[]").split(",") if kind == tuple[float, ...] else [text] if kind is float else []
    try:
        return [float(part) for part in parts]
    except ValueError:
        return []
