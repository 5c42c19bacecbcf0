"""Copies of the working tree, in which breaks are made."""

from __future__ import annotations

import shutil
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
COPIED = ("src", "tests", "docs", "README.md", "CONTRIBUTING.md", "CHANGELOG.md", "pyproject.toml")


def copy_tree(target: Path) -> None:
    """Copy the working tree without what was compiled from it."""
    target.mkdir(parents=True)
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, target / name, ignore=shutil.ignore_patterns("__pycache__"))
        elif source.is_file():
            shutil.copy(source, target / name)
