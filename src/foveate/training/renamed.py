"""Names that values of a configuration had in 0.1. They are still read, with a warning."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

RENAMED = {"optimiser": "optimizer", "augmentation.colour_jitter": "augmentation.color_jitter"}
"""Sections and values, old to new."""


def current_name(path: str) -> str:
    """``section.name`` as it is called now."""
    for old, new in RENAMED.items():
        if path == old or path.startswith(f"{old}."):
            current = new + path.removeprefix(old)
            warnings.warn(f"{path} is called {current} now. Write that instead.", FutureWarning, stacklevel=3)
            return current
    return path


def current_names(data: Mapping[str, Any]) -> dict[str, Any]:
    """Nested values of a configuration, or of a part of it, under the names they have now."""
    sections: dict[str, Any] = {}
    for section, values in data.items():
        name = current_name(section)
        if isinstance(values, Mapping):
            values = {current_name(f"{name}.{key}").partition(".")[2]: value for key, value in values.items()}
        sections[name] = values
    return sections
