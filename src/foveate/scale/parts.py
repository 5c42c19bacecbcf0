"""The division of a source into parts, each of which becomes one output file.

An image's part depends only on the source and the size of a part, so a resumed run knows what is missing.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
from PIL import Image

from foveate.data import BrokenImage, DataError, ImageData, StreamedData
from foveate.data.labels import first_few

FEWEST, MOST = 1_000, 100_000
"""Images of a part, where there are enough: a killed run loses what each process has of its part."""
PARTS_PER_PROCESS = 4
"""So that processes end at about the same time."""

Reader = Callable[[], Image.Image]
"""Reads one image; raises ``BrokenImage``."""


@dataclass(frozen=True)
class Parts:
    """Parts of ``size`` images in order; of a stream, one part for each of its shards."""

    data: ImageData | StreamedData
    size: int

    def __len__(self) -> int:
        return len(self.data.shards) if isinstance(self.data, StreamedData) else -(-len(self.data) // self.size)

    def count(self, part: int) -> int | None:
        """Number of images of a part; None if only reading tells."""
        if isinstance(self.data, StreamedData):
            return None
        return min(self.size, len(self.data) - part * self.size)

    @property
    def images(self) -> int | None:
        """Number of all images; None if it is not known."""
        return self.data.length if isinstance(self.data, StreamedData) else len(self.data)

    def read(self, part: int) -> Iterator[tuple[str, Reader]]:
        """Key and reader of every image of a part, in order."""
        if isinstance(self.data, StreamedData):
            for encoded in self.data.samples(part):
                yield encoded.name, partial(_image, encoded.read)
            return
        for index in range(part * self.size, min((part + 1) * self.size, len(self.data))):
            yield self.data.pictures.name(index), partial(_image, partial(self.data.read, index))


def _image(read: Callable[[], object]) -> Image.Image:
    return read().image  # type: ignore[attr-defined]


def read_image(read: Reader) -> Image.Image | BrokenImage:
    """The image, or why it cannot be read."""
    try:
        return read()
    except BrokenImage as broken:
        return BrokenImage(broken.name, broken.reason)  # without a traceback, which would keep its frames alive


def part_size(images: int | None, processes: int, batch_size: int) -> int:
    """Images of a part: a thousandth of all, within bounds, in full batches, and some parts for every process."""
    if images is None:
        return FEWEST
    size = min(max(FEWEST, images // 1000), MOST, -(-images // (PARTS_PER_PROCESS * processes)))
    return -(-size // batch_size) * batch_size


def keys_digest(data: ImageData | StreamedData) -> str:
    """A checksum of all keys in order, by which a resumed run knows its source again.

    Raises:
        DataError: if a key repeats: rows could not be told apart.
    """
    digest = hashlib.blake2b(digest_size=16)
    keys = iter(data.shards) if isinstance(data, StreamedData) else map(data.pictures.name, range(len(data)))
    hashes = []
    for some in iter(lambda: list(itertools.islice(keys, 4096)), []):
        one = [hashlib.blake2b(key.encode("utf-8", "surrogateescape"), digest_size=8).digest() for key in some]
        digest.update(b"".join(one))
        hashes.append(np.frombuffer(b"".join(one), dtype=np.uint64))  # 8 bytes for each of perhaps millions
    all_of_them = np.concatenate(hashes) if hashes else np.zeros(0, dtype=np.uint64)
    values, counts = np.unique(all_of_them, return_counts=True)
    if (counts > 1).any():
        _check_repeated(data, set(np.flatnonzero(np.isin(all_of_them, values[counts > 1])).tolist()))
    return digest.hexdigest()


def _check_repeated(data: ImageData | StreamedData, suspects: set[int]) -> None:
    """Raise a ``DataError`` if any of these keys are equal, not only their hashes."""
    seen: set[str] = set()
    twice = []
    for index in sorted(suspects):
        key = data.shards[index] if isinstance(data, StreamedData) else data.pictures.name(index)
        twice += [key] if key in seen else []
        seen.add(key)
    if twice:
        raise DataError(
            f"{len(twice)} keys of these images repeat: {first_few(twice)}. Each image needs a key of its own: remove "
            "repeated rows, or leave out --key-column."
        )
