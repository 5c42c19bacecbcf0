"""Methods as data: a name and options, for the command line and for saved files."""

from __future__ import annotations

import dataclasses
import typing
from enum import Enum

from foveate.methods.base import Method
from foveate.methods.registry import all_methods, method_class
from foveate.methods.validation import RENAMED, option_types, schedule_hint

TRUTH = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}

WRITTEN = {"always written": True}
"""Metadata of an option without which a method's text would say too little."""
MOST_METHODS = 10
"""So many colons and parentheses may open in a text, so that none is nested deeper than Python can follow."""


def build(name: str, options: dict[str, object] | None = None) -> Method:
    """Create the method called ``name`` with ``options``. Values may be text, as on the command line.

    Raises:
        ValueError: if there is no such method or option, or if a value does not fit its option.
    """
    cls = method_class(name)
    types = option_types(cls)
    values: dict[str, typing.Any] = {}
    for given, value in (options or {}).items():
        option = _current_name(cls, given, value)
        if option in values:
            raise ValueError(f"{cls.__name__}.{option} is given twice; {given!r} is its old name.")
        values[option] = _converted(value, types[option])
    return cls(**values)


def describe(method: Method) -> dict[str, object]:
    """``{"name": ..., "options": {...}}``, ready for JSON; ``build`` is its inverse."""
    if all_methods().get(method.name) is not type(method):
        raise ValueError(
            f"{method.name} is not registered and cannot be stored. Decorate its class with @foveate.methods.register."
        )
    options = {f.name: getattr(method, f.name) for f in dataclasses.fields(method)}
    return {"name": method.name, "options": {option: _plain(value) for option, value in options.items()}}


def parse(text: str) -> Method:
    """Read ``name`` or ``name:option=value,option=value``, e.g. ``EViT:fuse=false``, ``strided-conv:blocks=3+6``.

    ``name(option=value)`` is the same, and can be a value itself: ``Mixture:first=Ward(rounds=2),then=ToMe,switch=6``.
    """
    if text.count("(") != text.count(")"):
        raise ValueError(f"Parentheses do not match in {text!r}.")
    if text.count("(") + text.count(":") > MOST_METHODS:
        raise ValueError(f"At most {MOST_METHODS} methods with options fit into one text; got {text[:80]!r}...")
    name, _, rest = text.partition(":")
    if "(" in name:
        name, _, rest = text.strip().removesuffix(")").partition("(")
    options: dict[str, object] = {}
    for item in filter(None, _split_outside_parentheses(rest)):
        option, equals, value = item.partition("=")
        if not equals:
            raise ValueError(f"Write a method's options as name=value; got {item!r} in {text!r}.")
        options[option.strip()] = value.strip()
    return build(name.strip(), options)


def method_text(method: Method) -> str:
    """The method as ``parse`` reads it, mostly without options at their default."""
    changed = [f"{name}={option_text(value)}" for name, value in changed_options(method)]
    return f"{method.name}:{','.join(changed)}" if changed else method.name


def changed_options(method: Method) -> list[tuple[str, object]]:
    """The options that differ from their default, or that are always written, with their values."""
    values = [(field, getattr(method, field.name)) for field in dataclasses.fields(method)]
    return [(field.name, value) for field, value in values if value != field.default or field.metadata == WRITTEN]


def methods_in(method: Method) -> list[Method]:
    """The method, and those that are values of its options."""
    values = [getattr(method, field.name) for field in dataclasses.fields(method)]
    return [method, *(value for value in values if isinstance(value, Method))]


def option_text(value: object) -> str:
    """An option's value as ``parse`` reads it."""
    if isinstance(value, Method):
        return _nested_text(value, changed_options(value))
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, tuple):
        return "+".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def _nested_text(method: Method, options: list[tuple[str, object]]) -> str:
    """The method as the value of an option of another one."""
    texts = [f"{name}={option_text(value)}" for name, value in options]
    return f"{method.name}({','.join(texts)})" if texts else method.name


def _split_outside_parentheses(text: str) -> list[str]:
    """Split at the commas that are not inside parentheses."""
    items, depth = [""], 0
    for letter in text:
        depth += (letter == "(") - (letter == ")")
        if letter == "," and depth == 0:
            items.append("")
        else:
            items[-1] += letter
    return items


def _current_name(cls: type[Method], option: str, value: object) -> str:
    options = option_types(cls)
    current = option if option in options else RENAMED.get(option, option)
    if current in options:
        return current
    known = f"Its options: {', '.join(options)}." if options else "It has no options."
    raise ValueError(schedule_hint(cls, option, value) or f"{cls.__name__} has no option {option!r}. {known}")


def _converted(value: object, kind: object) -> object:
    """Convert text to ``kind``. Text that cannot be converted is returned unchanged, and the method rejects it."""
    if kind is int and isinstance(value, float) and value.is_integer():
        return int(value)
    if not isinstance(value, str):
        return value
    if kind is bool:
        return TRUTH.get(value.lower(), value)
    if typing.get_origin(kind) is typing.Literal:
        return {str(choice): choice for choice in typing.get_args(kind)}.get(value, value)
    try:
        if kind == tuple[int, ...]:
            return tuple(int(part) for part in value.split("+") if part.strip())
        return kind(value) if kind in (int, float) else value
    except ValueError:
        return value


def _plain(value: object) -> object:
    if isinstance(value, Method):  # with all options, so that a stored mixture does not change with their defaults
        return _nested_text(value, [(field.name, getattr(value, field.name)) for field in dataclasses.fields(value)])
    if isinstance(value, Enum):
        return value.value
    return list(value) if isinstance(value, tuple) else value
