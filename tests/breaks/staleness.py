"""Which entries of the table no longer fit the source or the tests; it runs nothing, so it takes a second."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from .entry import Break


def stale(entries: Sequence[Break], root: Path) -> list[str]:
    """One line for each thing that is wrong in ``entries``, for the source and tests below ``root``."""
    names = Counter(entry.name for entry in entries)
    wrong = [f"{name}: {count} entries have this name" for name, count in names.items() if count > 1]
    return wrong + [f"{entry.name}: {reason}" for entry in entries for reason in reasons(entry, root)]


def reasons(entry: Break, root: Path) -> list[str]:
    """Why one entry is stale; empty if it is not."""
    path = root / "src" / entry.file
    if not path.is_file():
        return [f"there is no file {entry.file}"]
    source = _text(path)
    found = source.count(entry.old)
    if found != 1:
        return [f"its text occurs {found} times in {entry.file}"]
    valid = path.suffix != ".py" or _compiles(source.replace(entry.old, entry.new))
    wrong = [] if valid else ["the broken file is not valid Python"]
    wrong += [] if entry.fails else ["it names no test"]
    return wrong + [f"there is no test {test}" for test in entry.fails if not _test_exists(test, root / "tests")]


def _test_exists(test: str, folder: Path) -> bool:
    file, _, function = test.partition("::")
    path = folder / file
    return path.is_file() and (not function or f"\ndef {function}(" in _text(path))


def _compiles(source: str) -> bool:
    try:
        ast.parse(source)
    except SyntaxError:
        return False
    return True


@cache
def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")
