"""Values of a configuration as a command line writes them."""

from __future__ import annotations

import typing
from typing import Any, Literal

from foveate.evaluation.plain_data import type_in_words
from foveate.files import parse_json


def value_from_text(text: str, kind: Any, where: str) -> Any:
    """Parse a command-line value: JSON if it is valid JSON, otherwise text. Lists may be written as 3,6,9."""
    if kind is str or typing.get_origin(kind) is Literal:
        return text
    if kind == tuple[str, ...] and not text.startswith("["):
        return [part.strip() for part in text.split(",") if part.strip()]
    if typing.get_origin(kind) is tuple and not text.startswith("["):
        text = f"[{text}]"
    try:
        return parse_json(text.lower() if text in ("True", "False") else text, where)
    except ValueError as error:
        if isinstance(error.__cause__, RecursionError):
            raise
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
