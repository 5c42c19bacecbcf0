"""Checks of a method's options when it is created."""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from enum import Enum
from functools import cache
from typing import Literal

SCHEDULE_OF = {
    "r": "RemovePerBlock",
    "keep_rate": "KeepRate",
    "base_keep_rate": "KeepRate",
    "keep_ratio": "KeepRate",
    "token_ratio": "KeepRate",
    "rate": "KeepRate",
    "ratio": "KeepRate",
}
"""Arguments by which other implementations set how many tokens stay, and the schedule to use here."""


RENAMED = {"carry": "proportional_attention"}
"""Options of earlier versions; files that hold them are still read."""

LARGEST = 2**53
"""Whole numbers stay below it, so that torch's generators and sizes can hold what is computed from them."""


@cache
def option_types(cls: type) -> dict[str, object]:
    """The type of each option of a method."""
    hints = typing.get_type_hints(cls)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls)}


def schedule_hint(cls: type, option: str, value: object) -> str | None:
    """What to write instead of an unknown ``option`` that is a schedule's job; None for any other option."""
    if option in RENAMED and RENAMED[option] in {field.name for field in dataclasses.fields(cls)}:
        return f"{cls.__name__} has no option {option!r}; it is called {RENAMED[option]!r} now."
    schedule = SCHEDULE_OF.get(option)
    if schedule is None or option in {field.name for field in dataclasses.fields(cls)}:
        return None
    name = cls.__name__
    return (
        f"{name} has no option {option!r}. The schedule sets how many tokens are removed: "
        f"fv.reduce_(model, fv.{name}(), fv.{schedule}({value}))."
    )


def checked_option(where: str, kind: object, value: object) -> object:
    """``value`` converted to its type: a list of ints becomes a tuple, an int becomes a float.

    Raises:
        ValueError: if the value does not fit the type. ``where`` names the option in the message.
    """
    if kind is int and isinstance(value, int) and abs(value) >= LARGEST:
        raise ValueError(f"{where} is a whole number below 2**53; got {shown(value)}.")
    if kind == tuple[int, ...]:
        items = (value,) if _is_int(value) else value
        if isinstance(items, list | tuple) and all(map(_is_int, items)):
            return tuple(items)
    elif isinstance(kind, type) and issubclass(kind, Enum):
        if isinstance(value, kind) or (isinstance(value, str) and value in [member.value for member in kind]):
            return kind(value)
    elif kind is float and (_is_int(value) or isinstance(value, float)):
        if math.isfinite(value):  # type: ignore[arg-type]
            return float(value)  # type: ignore[arg-type]
    elif _fits(kind, value):
        return value
    raise ValueError(f"{where} must be {_expected(kind)}; got {shown(value)}.")


def shown(value: object, most: int = 200) -> str:
    """Return a value for an error message: its repr, cut off after ``most`` characters, or its type if repr fails."""
    try:
        text = repr(value)
    except Exception:  # a value that contains itself too deeply, or whose class is broken
        return f"a {type(value).__name__}"
    return text if len(text) <= most else f"{text[:most]}... (a {type(value).__name__})"


def shown_error(error: BaseException, most: int = 300) -> str:
    """Return the message of an error in one line, cut off after ``most`` characters."""
    text = " ".join(str(error).split()) or "no reason given"
    return text if len(text) <= most else f"{text[:most]}..."


def check_type(kind: type | types.UnionType, words: str, **values: object) -> None:
    """Raise a TypeError for the first value that is not a ``kind``; ``words`` say what it must be."""
    for name, value in values.items():
        if not isinstance(value, kind):
            raise TypeError(f"{name} must be {words}, got {shown(value)}.")


def check_sizes(**sizes: object) -> None:
    """Raise a ValueError for the first value that is not a whole number from 1 to 2**31 - 1."""
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size < 2**31:
            raise ValueError(f"{name} must be an integer of at least 1, below 2**31, got {shown(size)}.")


def _fits(kind: object, value: object) -> bool:
    if typing.get_origin(kind) is Literal:
        return any(type(value) is type(choice) and value == choice for choice in typing.get_args(kind))
    if kind is int:
        return _is_int(value)
    return isinstance(value, kind) if kind in (bool, str, float) else True


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _expected(kind: object) -> str:
    if typing.get_origin(kind) is Literal:
        return f"one of {', '.join(map(str, typing.get_args(kind)))}"
    if isinstance(kind, type) and issubclass(kind, Enum):
        return f"one of {', '.join(str(member.value) for member in kind)}"
    words = {bool: "true or false", int: "a whole number", float: "a finite number", str: "text"}
    return words.get(kind, "one or more whole numbers")  # type: ignore[call-overload]
