"""Methods as data: a name and options, for the command line and for saved files."""

from __future__ import annotations

import dataclasses
import typing
from enum import Enum

from foveate.methods.base import Method, all_methods


def build(name: str, options: dict[str, object] | None = None) -> Method:
    """The method called ``name`` with ``options``; values may be strings, as a command line gives them."""
    methods = all_methods()
    if name not in methods:
        raise ValueError(f"There is no method {name!r}. Known: {', '.join(methods)}.")
    cls = methods[name]
    types = typing.get_type_hints(cls)
    fields = [f.name for f in dataclasses.fields(cls)]
    values = {}
    for key, value in (options or {}).items():
        if key not in fields:
            known = f"Its options: {', '.join(fields)}." if fields else "It has none."
            raise ValueError(f"{cls.__name__} has no option {key!r}. {known}")
        values[key] = _convert(value, types[key], f"{cls.__name__}.{key}")
    return cls(**values)


def describe(method: Method) -> dict[str, object]:
    """``{"name": ..., "options": {...}}``, ready for JSON; ``build`` is its inverse."""
    if all_methods().get(method.name) is not type(method):
        raise ValueError(f"{type(method).__name__} is not registered under a name of its own and cannot be stored.")
    options = {f.name: getattr(method, f.name) for f in dataclasses.fields(method)}
    plain = {k: _plain(v) for k, v in options.items()}
    return {"name": method.name, "options": plain}


def parse(text: str) -> Method:
    """Read ``name`` or ``name:option=value,option=value``, e.g. ``evit:fuse=false``, ``strided-conv:blocks=3+6``."""
    name, _, rest = text.partition(":")
    options: dict[str, object] = {}
    for item in filter(None, rest.split(",")):
        key, equals, value = item.partition("=")
        if not equals:
            raise ValueError(f"A method's options are written name=value; got {item!r} in {text!r}.")
        options[key.strip()] = value.strip()
    return build(name.strip(), options)


def method_text(method: Method) -> str:
    """The method as ``parse`` reads it, options at their default left out."""
    changed = [f"{name}={option_text(value)}" for name, value in changed_options(method)]
    return f"{method.name}:{','.join(changed)}" if changed else method.name


def changed_options(method: Method) -> list[tuple[str, object]]:
    """The options that are not at their default."""
    values = [(field, getattr(method, field.name)) for field in dataclasses.fields(method)]
    return [(field.name, value) for field, value in values if value != field.default]


def option_text(value: object) -> str:
    """An option's value as ``parse`` reads it."""
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, tuple):
        return "+".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def _convert(value: object, kind: object, where: str) -> object:
    """``value`` as the field's type, or an error that says what the field takes."""
    if typing.get_origin(kind) is typing.Literal:
        choices = typing.get_args(kind)
        by_text = {str(choice): choice for choice in choices}
        if str(value) in by_text:
            return by_text[str(value)]
        raise ValueError(f"{where} is one of {', '.join(map(str, choices))}; got {value!r}.")
    try:
        if kind is bool:
            return _as_bool(value)
        if isinstance(kind, type) and issubclass(kind, Enum):
            return kind(value)
        if kind == tuple[int, ...]:
            return _as_integers(value)
        if kind in (int, float) and not isinstance(value, bool):
            if kind is int and isinstance(value, float) and not value.is_integer():
                raise ValueError(value)
            return kind(value)  # type: ignore[call-overload, arg-type]
    except (ValueError, TypeError):
        pass
    else:
        if isinstance(value, str) and kind is str:
            return value
    expected = [e.value for e in kind] if isinstance(kind, type) and issubclass(kind, Enum) else _name(kind)
    raise ValueError(f"{where} takes {expected}; got {value!r}.")


def _plain(value: object) -> object:
    if isinstance(value, Enum):
        return value.value
    return list(value) if isinstance(value, tuple) else value


def _as_integers(value: object) -> tuple[int, ...]:
    """``3+6+9``, as a command line gives it, or a list, as a file does."""
    if isinstance(value, str):
        return tuple(int(part) for part in value.split("+") if part.strip())
    if isinstance(value, (list, tuple)) and all(isinstance(i, int) and not isinstance(i, bool) for i in value):
        return tuple(value)
    raise ValueError(value)


def _as_bool(value: object) -> bool:
    if isinstance(value, bool):
        return value
    words = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
    if isinstance(value, str) and value.lower() in words:
        return words[value.lower()]
    raise ValueError(value)


def _name(kind: object) -> str:
    words = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
    return words.get(kind, "whole numbers, 3+6" if kind == tuple[int, ...] else str(kind))  # type: ignore[call-overload]
