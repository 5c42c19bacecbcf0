"""Configuration names of version 0.1. They are still accepted, with a warning."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

RENAMED = {"optimiser": "optimizer", "augmentation.colour_jitter": "augmentation.color_jitter"}
"""Old to new names of sections and values."""


def current_name(path: str) -> str:
    """Return the current name of ``section.name``."""
    for old, new in RENAMED.items():
        if path == old or path.startswith(f"{old}."):
            current = new + path.removeprefix(old)
            warnings.warn(f"{path} was renamed to {current}. Use the new name.", FutureWarning, stacklevel=3)
            return current
    return path


def current_names(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested configuration values, or a part of them, under their current names."""
    sections: dict[str, Any] = {}
    for section, values in data.items():
        name = current_name(section)
        if isinstance(values, Mapping):
            values = {current_name(f"{name}.{key}").partition(".")[2]: value for key, value in values.items()}
        sections[name] = values
    return sections
