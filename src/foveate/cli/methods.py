"""The work of ``foveate methods``."""

from __future__ import annotations

import argparse
import ast
import dataclasses
import inspect
import textwrap
import typing
from enum import Enum

from foveate.cli import output
from foveate.methods.base import Method
from foveate.methods.options import option_text
from foveate.methods.registry import all_methods, method_class

WIDEST_TEXT = 120


def run(args: argparse.Namespace) -> int:
    entries = [describe_class(method_class(name)) for name in args.names or all_methods()]
    if args.json:
        output.print_json(entries)
    else:
        width = min(output.console().width, WIDEST_TEXT)
        output.say("\n\n".join(as_text(entry, width) for entry in entries))
    return 0


def describe_class(cls: type[Method]) -> dict[str, typing.Any]:
    """A method's name, first line of documentation and options."""
    types, documentation = typing.get_type_hints(cls), field_documentation(cls)
    options = [
        {
            "name": field.name,
            "type": type_text(types[field.name]),
            "default": _plain(field.default),
            "description": documentation.get(field.name, ""),
        }
        for field in dataclasses.fields(cls)
    ]
    return {
        "name": cls.name,
        "description": inspect.cleandoc(cls.__doc__ or "").split("\n\n")[0].replace("\n", " "),
        "site": cls.site.value,
        "needs_class_token": cls.needs_class_token,
        "training_free": cls.training_free,
        "options": options,
    }


def _plain(default: object) -> object:
    """A default ready for JSON; None if there is none."""
    if isinstance(default, Enum):
        return default.value
    if isinstance(default, Method):
        return option_text(default)
    return None if default is dataclasses.MISSING else default


def field_documentation(cls: type) -> dict[str, str]:
    """The string below each field of a dataclass and of its bases, read from the source, the only place that has it."""
    found: dict[str, str] = {}
    for owner in reversed(cls.__mro__):
        if dataclasses.is_dataclass(owner):
            found |= _strings_below_fields(owner)
    return found


def _strings_below_fields(cls: type) -> dict[str, str]:
    body = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
    assert isinstance(body, ast.ClassDef)
    found = {}
    for statement, below in zip(body.body, body.body[1:], strict=False):
        if not isinstance(statement, ast.AnnAssign) or not isinstance(statement.target, ast.Name):
            continue
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant) and isinstance(below.value.value, str):
            found[statement.target.id] = inspect.cleandoc(below.value.value)
    return found


def type_text(kind: object) -> str:
    """The type of an option, for display."""
    if kind is bool:
        return "true|false"
    if typing.get_origin(kind) is typing.Literal:
        return "|".join(map(str, typing.get_args(kind)))
    if isinstance(kind, type) and issubclass(kind, Enum):
        return "|".join(str(member.value) for member in kind)
    if kind is Method:
        return "method, or method(option=value)"
    return kind.__name__ if isinstance(kind, type) else str(kind)


def as_text(entry: dict[str, typing.Any], width: int) -> str:
    """Format one method for the terminal, in lines of ``width``."""
    limits = [] if entry["training_free"] else ["does not work without training"]
    limits += ["needs a class token"] if entry["needs_class_token"] else []
    title = f"{entry['name']}  {entry['description']}" + (f" ({'; '.join(limits)})" if limits else "")
    lines = textwrap.wrap(title, width, subsequent_indent=" " * 4)
    for option in entry["options"]:
        lines.append(f"    {option['name']}={option_text(option['default'])}  [{option['type']}]")
        indent = " " * 8
        lines += textwrap.wrap(option["description"], width, initial_indent=indent, subsequent_indent=indent)
    return "\n".join(lines)
