"""Values and dataclasses read from plain data, such as JSON or TOML, with their types checked."""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Mapping
from typing import Any, Literal, TypeVar

from foveate.methods.validation import shown

T = TypeVar("T")


def checked_value(value: Any, kind: Any, where: str) -> Any:
    """Return ``value`` as type ``kind``, or raise a ValueError that names what is accepted."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return value
    if origin is Literal and any(type(value) is type(choice) and value == choice for choice in inner):
        return value
    if origin is types.UnionType:  # X | None
        return None if value is None else checked_value(value, inner[0], where)
    if origin in (tuple, list) and isinstance(value, list | tuple) and _length_fits(value, inner):
        return origin(checked_value(item, inner[0], where) for item in value)
    if origin in (dict, Mapping) and isinstance(value, Mapping):
        return {key: checked_value(item, inner[1], f"{where}.{key}") for key, item in value.items()}
    if kind is float and isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    if kind in (str, int, bool) and isinstance(value, kind) and isinstance(value, bool) == (kind is bool):
        return value
    raise ValueError(f"{where} {_accepted(kind)}; got {shown(value)}.")


def _length_fits(value: Any, inner: tuple[Any, ...]) -> bool:
    fixed = len(inner) > 1 and Ellipsis not in inner
    return not fixed or len(value) == len(inner)


def _accepted(kind: Any) -> str:
    if typing.get_origin(kind) is Literal:
        return f"must be one of {', '.join(typing.get_args(kind))}"
    return f"takes {type_in_words(kind)}"


def type_in_words(kind: Any) -> str:
    """Return what a type accepts, for an error message."""
    words = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
    containers = {tuple: "a list", list: "a list", dict: "a table of values", Mapping: "a table of values"}
    return words.get(kind) or containers.get(typing.get_origin(kind), str(kind))


def read_dataclass(cls: type[T], data: Any, where: str) -> T:
    """Make a dataclass from plain data.

    Raises:
        ValueError: If a field is missing, unknown or of another type.
    """
    if not isinstance(data, Mapping):
        raise ValueError(f"{where} takes a table of values; got {shown(data)}.")
    fields = {field.name: field for field in dataclasses.fields(cls) if field.init}  # type: ignore[arg-type]
    unknown, kinds = [name for name in data if name not in fields], typing.get_type_hints(cls)
    if unknown:
        raise ValueError(f"{where} has no {shown(unknown[0])}.")
    needed = [name for name, field in fields.items() if _has_no_default(field)]
    missing = [name for name in needed if name not in data]
    if missing:
        raise ValueError(f"{where} lacks {missing[0]}.")
    return cls(**{name: checked_value(value, kinds[name], f"{where}.{name}") for name, value in data.items()})


def _has_no_default(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
