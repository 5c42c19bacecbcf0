"""WebDataset shards behind URLs, read from beginning to end; little is known about them in advance."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from http.client import HTTPException

from foveate.data.http import open_url
from foveate.data.images import DataError, Sample, as_rgb, decode
from foveate.data.labels import Request, first_few
from foveate.data.shards import Member, WholeTarInfo, members_of
from foveate.data.source import broken_by_name
from foveate.data.targets import UNKNOWN


@dataclass(frozen=True)
class Encoded:
    """One image of a stream, not decoded yet, because resuming skips many of these."""

    content: bytes
    target: int
    name: str

    def read(self) -> Sample:
        """Decode the image.

        Raises:
            BrokenImage: if it cannot be read.
        """
        with broken_by_name(self.name):
            image = as_rgb(decode(self.content))
        return Sample(image, self.target, self.name)


@dataclass(frozen=True)
class StreamedData:
    """Shards that can be read only one after the other."""

    shards: tuple[str, ...]
    split: str
    classes: tuple[str, ...] | None
    num_classes: int | None
    labeled: bool
    length: int | None
    """Number of images in all shards, if given."""

    def samples(self, shard: int) -> Iterator[Encoded]:
        """The images of one shard, in its order."""
        for member, content in _stream(self.shards[shard]):
            yield Encoded(content, self._number(member, shard), f"{self.shards[shard]}/{member.name}")

    def _number(self, member: Member, shard: int) -> int:
        """The class number of an image. Labels of a stream can only be checked as they arrive."""
        if not self.labeled:
            return UNKNOWN
        where = f"{self.shards[shard]}/{member.name}"
        if self.classes is not None and member.label in self.classes:
            return self.classes.index(member.label)
        try:
            number = int(member.label or "")
        except ValueError:
            known = f"one of the classes ({first_few(self.classes)})" if self.classes else "a number"
            raise DataError(f"{where}: the label {member.label!r} is not {known}.") from None
        if not 0 <= number < (self.num_classes or 0):
            raise DataError(f"{where}: label {number} is outside 0..{(self.num_classes or 0) - 1}.")
        return number


def open_stream(shards: list[str], split: str, request: Request, length: int | None) -> StreamedData:
    """Open shards. Only the first image is read, to check that shards exist and have labels."""
    if length is not None and length < 1:
        raise DataError(f"length, the number of images in all shards, must be at least 1, got {length}.")
    first = next(_stream(shards[0]), None)
    if first is None:
        raise DataError(f"{shards[0]} has no images.")
    labeled = request.labels and first[0].label is not None
    count = len(request.classes) if request.classes is not None else request.num_classes
    if labeled and count is None:
        raise DataError(f"{shards[0]} has labels, whose number is unknown in a stream. Set num_classes or classes.")
    if not labeled and request.classes is not None:
        raise DataError(f"{shards[0]} has no labels, but {len(request.classes)} classes were expected.")
    return StreamedData(tuple(shards), split, request.classes, count if labeled else None, labeled, length)


def _stream(url: str) -> Iterator[tuple[Member, bytes]]:
    """Read a shard. A broken connection is an error and does not count as broken images."""
    try:
        with (
            open_url(url) as reply,
            tarfile.open(fileobj=reply, mode="r|", tarinfo=WholeTarInfo) as archive,
        ):
            yield from members_of(archive, url, contents=True)
    except (OSError, HTTPException, tarfile.TarError) as error:
        raise DataError(f"{url} cannot be read: {error}") from error
