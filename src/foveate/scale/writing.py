"""The work of one process: read the images of a part, run the model, write one file."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from foveate.data import DataError
from foveate.files import replacing
from foveate.scale.parts import Parts, Reader, read_image
from foveate.scale.predictor import BATCH_SIZE, Predictor
from foveate.scale.tables import PartFile, Written, file_name

Item = tuple[str, Reader]
Prepared = tuple[str, Tensor | str]
AHEAD = 2
"""Batches that are read while the model runs."""


def no_report(images: int) -> None:
    """Report nothing."""


@dataclass(frozen=True)
class PartWriter:
    """Writes parts. It is picklable, and the same part always becomes the same rows."""

    predictor: Predictor
    parts: Parts
    folder: Path
    job: str
    """The run; files carry it."""
    readers: int = 0
    """Threads that read images while the model runs; 0 reads between batches, which is as fast on CPUs."""

    def __call__(self, part: int, report: Callable[[int], None] = no_report) -> Written:
        """Write a part: under another name first, which becomes the file's when all of it is on the disk.

        Raises:
            CannotWrite: if the disk is full, for example.
            DataError: if a key repeats in the part.
        """
        seen: set[str] = set()
        with (
            replacing(self.folder / file_name(part)) as temporary,
            PartFile(temporary, self.job) as file,
        ):
            for batch in self._batches(part):
                keys = [key for key, _ in batch]
                _check_new(keys, seen)
                file.add(keys, self.predictor.rows([image for _, image in batch]))
                report(len(keys))
            if not file.rows:  # a shard without images: no rows, but a file, so that it counts as done
                file.add([], self.predictor.rows([]))
        return Written(part, file.rows, file.broken)

    def _batches(self, part: int) -> Iterator[list[Prepared]]:
        items = self.parts.read(part)
        size = self.predictor.batch_size or BATCH_SIZE
        batches = iter(lambda: list(itertools.islice(items, size)), [])
        if not self.readers:
            yield from ([self._prepare(item) for item in batch] for batch in batches)
            return
        with ThreadPoolExecutor(self.readers) as pool:
            waiting = deque([pool.submit(self._prepare, item) for item in b] for b in itertools.islice(batches, AHEAD))
            while waiting:
                yield [future.result() for future in waiting.popleft()]
                waiting.extend([pool.submit(self._prepare, item) for item in b] for b in itertools.islice(batches, 1))

    def _prepare(self, item: Item) -> Prepared:
        key, read = item
        return key, self.predictor.prepare(read_image(read))


def _check_new(keys: list[str], seen: set[str]) -> None:
    """Raise a ``DataError`` for a key that was seen before: only reading shows the keys of a stream."""
    for key in keys:
        if key in seen:
            raise DataError(f"The key {key} repeats. Each image needs a key of its own: remove one of them.")
        seen.add(key)
