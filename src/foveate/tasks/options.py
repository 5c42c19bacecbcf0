"""Options of a task: read from a recipe or the command line, and kept beside a trained model."""

from __future__ import annotations

import json
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from foveate.data.images import DataError
from foveate.files import write_text
from foveate.storage import saved_folder
from foveate.tasks.base import Task

TASK_FILE = "task.json"
"""File next to a trained model with its task and the task's options."""
TRUTH = {"true": True, "false": False}


def read_options(task: type[Task], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of ``task`` in their types; values may be text, as on the command line.

    Raises:
        ValueError: If there is no such option, or a value does not fit it.
    """
    kinds = task.option_types()
    values = {}
    for name, value in given.items():
        if name not in kinds:
            known = f"Its options: {', '.join(kinds)}." if kinds else "It has none."
            raise ValueError(f"The task {task.name} has no option {name!r}. {known}")
        values[name] = _read(value, kinds[name], name)
    return values


def parse_options(texts: Sequence[str]) -> dict[str, str]:
    """Read ``name=value`` texts of the command line."""
    pairs = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise ValueError(f"Write an option of the task as name=value, such as ignore=11; got {text!r}.")
        pairs[name.strip()] = value.strip()
    return pairs


def write_task(folder: Path, task: str, options: Mapping[str, Any]) -> None:
    """Write the task beside a trained model, so that evaluating it needs no options; nothing for the default task."""
    if task != "classification":
        write_text(folder / TASK_FILE, json.dumps({"task": task, "options": dict(options)}, indent=2) + "\n")


def read_task(folder: Path) -> tuple[str | None, dict[str, Any]]:
    """Return the task beside a trained model and its options; None and no options without such a file."""
    path = saved_folder(folder) / TASK_FILE
    if not path.is_file():
        return None, {}
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        return str(data["task"]), dict(data["options"])
    except (UnicodeDecodeError, json.JSONDecodeError, KeyError, TypeError, ValueError) as error:
        raise DataError(f"{path} does not hold a task and its options ({type(error).__name__}). Remove it.") from error


def _read(value: Any, kind: Any, name: str) -> Any:
    if typing.get_origin(kind) is Literal:
        if value in typing.get_args(kind):
            return value
        raise ValueError(f"{name} must be one of {', '.join(typing.get_args(kind))}; got {value!r}.")
    if typing.get_origin(kind) is tuple:
        parts = value.replace("+", ",").split(",") if isinstance(value, str) else value
        if not isinstance(parts, list | tuple):
            raise ValueError(f"{name} takes a list, such as 0.5,2; got {value!r}.")
        return tuple(_read(part, typing.get_args(kind)[0], name) for part in parts)
    if isinstance(value, str) and kind is not str:
        value = TRUTH.get(value.lower(), value) if kind is bool else _number(value, kind)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, kind) or isinstance(value, bool) != (kind is bool):
        words = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
        raise ValueError(f"{name} takes {words[kind]}; got {value!r}.")
    return value


def _number(text: str, kind: Any) -> Any:
    try:
        return kind(text)
    except ValueError:
        return text
