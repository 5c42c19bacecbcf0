"""Bounds on what data may claim or take, so that a hostile or damaged source ends in an error and not in a hang.

Each has a name. A user who needs more sets the environment variable ``FOVEATE_NAME``, which reaches worker processes.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from foveate.data.images import DataError


@dataclass(frozen=True)
class Limit:
    """A bound with a name."""

    name: str
    default: int
    meaning: str

    @property
    def variable(self) -> str:
        return f"FOVEATE_{self.name}"

    @property
    def value(self) -> int:
        """The bound, as set by the environment or by default."""
        text = os.environ.get(self.variable, str(self.default))
        if not text.isdecimal() or len(text) > 18:
            raise DataError(f"{self.variable} must be a whole number of at most 18 digits, got {text[:40]!r}.")
        return int(text)

    @property
    def way_out(self) -> str:
        return f"If that is intended, set {self.variable} in the environment."

    def check(self, found: int, what: str) -> None:
        """Raise ``DataError`` if ``found`` exceeds the bound; ``what`` says what was found, with its number."""
        if found > self.value:
            raise DataError(f"{what}; {self.variable}={self.value} is the limit. {self.way_out}")


IMAGE_BYTES = Limit("IMAGE_BYTES", 2**28, "bytes of one encoded image")
LABEL_BYTES = Limit("LABEL_BYTES", 2**20, "bytes of one label, or of one name, in a tar file")
SHARD_BYTES = Limit("SHARD_BYTES", 2**36, "bytes of one shard at a URL")
SHARDS = Limit("SHARDS", 100_000, "shards that a pattern stands for")
CLASSES = Limit("CLASSES", 1_000_000, "classes, which the largest integer label sets")
REPEATS = Limit("REPEATS", 1_000, "times that an image is repeated in an epoch (augmentation.repeats)")
WAIT_SECONDS = Limit("WAIT_SECONDS", 60, "seconds to wait for a server")
BYTES_PER_SECOND = Limit("BYTES_PER_SECOND", 1_000, "slowest server: bytes per second, over WAIT_SECONDS of waiting")
FILES_OUTSIDE = Limit("FILES_OUTSIDE", 0, "1 allows rows that name files outside the folder of their table")
LIMITS = (
    IMAGE_BYTES,
    LABEL_BYTES,
    SHARD_BYTES,
    SHARDS,
    CLASSES,
    REPEATS,
    WAIT_SECONDS,
    BYTES_PER_SECOND,
    FILES_OUTSIDE,
)


def as_markdown() -> str:
    """The table of limits in docs/data.md."""
    rows = [f"| `{limit.variable}` | {limit.default:,} | {limit.meaning} |" for limit in LIMITS]
    return "\n".join(["| variable | default | bound |", "|---|---:|---|", *rows])


def check_inside(folders: Iterable[Path], names: Iterable[str], where: str) -> None:
    """Raise ``DataError`` for rows that name a file outside ``folders``: a table must not choose what is read.

    Names are relative to the first folder. They count, not links: a link that the user put there may lead anywhere.
    """
    roots = tuple(os.path.join(os.path.abspath(folder), "") for folder in folders)
    for name in names if not FILES_OUTSIDE.value else ():
        if not os.path.abspath(os.path.join(roots[0], name)).startswith(roots):
            raise DataError(
                f"{where} names {name}, which is outside {roots[0]}. If you trust this table, set "
                f"{FILES_OUTSIDE.variable}=1 in the environment."
            )
