"""What a kind of file is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .materials import Materials


@dataclass(frozen=True)
class Kind:
    """A file that is read."""

    name: str
    place: Callable[[Materials, Path], Path]
    """Copies what is needed to a case's folder; returns the file to spoil."""
    read: Callable[[Path, Materials], Any]
    """Reads the file at this path; what it returns can be compared."""
    structure: str = ""
    """json or toml where it can be altered below the top level; sealed or checkpoint where the checksum is made to fit,
    so that only the content is wrong."""
    exact: bool = False
    """Whether other content than was written must be noticed."""
    weight: float = 1.0
