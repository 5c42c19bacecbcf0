"""WebDataset shards: tar files in which an image and its label share a name up to the first dot.

Shards on disk are scanned once for the offset of each image, so that images can be read in any order. Shards behind
URLs are streamed (`stream.py`).
"""

from __future__ import annotations

import glob
import itertools
import math
import re
import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Self

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from foveate.data.images import DataError, decode
from foveate.data.labels import Request, label_text, written_labels
from foveate.data.limits import IMAGE_BYTES, LABEL_BYTES, SHARDS
from foveate.data.source import ImageData, image_data
from foveate.data.splits import TEST, TRAIN, VALIDATION, check_undivided, choose_split
from foveate.files import parse_json

IMAGES = ("jpg", "jpeg", "png", "webp")
LABELS = ("cls", "json")
PLACEHOLDER = "{split}"
RANGE, CHOICE = r"\{(\d+)\.\.(\d+)\}", r"\{([^{}]*,[^{}]*)\}"
MOST_BRACES = 30
LONG_NAMES = (
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
)
"""Members that hold names and other facts about the next one."""


class WholeTarInfo(tarfile.TarInfo):
    """Raises for a shard that was cut off between two members, which Python's tarfile takes for its end."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str | None, errors: str) -> Self:
        found = super().frombuf(buf, encoding, errors)  # type: ignore[arg-type]
        if found.type in LONG_NAMES:  # which are read into memory as they are met
            LABEL_BYTES.check(found.size, f"A name in this tar file claims {found.size} bytes")
        return found

    @classmethod
    def fromtarfile(cls, archive: tarfile.TarFile) -> Self:
        try:
            return super().fromtarfile(archive)
        except (tarfile.EmptyHeaderError, tarfile.TruncatedHeaderError) as error:  # type: ignore[attr-defined]
            raise tarfile.ReadError("it was cut off: its end marker is missing") from error


@dataclass(frozen=True)
class Member:
    """One image in a shard, with its label as written."""

    name: str
    offset: int
    size: int
    label: str | None


@dataclass(frozen=True)
class ShardImages:
    """Images by their offset in tar files, as arrays of numbers because there may be millions."""

    shards: list[str]
    names: list[str]
    shard: NDArray[np.int32]
    offset: NDArray[np.int64]
    size: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.names)

    def name(self, index: int) -> str:
        return f"{self.shards[self.shard[index]]}/{self.names[index]}"

    def open(self, index: int) -> Image.Image:
        with Path(self.shards[self.shard[index]]).open("rb") as file:
            file.seek(self.offset[index])
            return decode(file.read(self.size[index]))


def open_shards(shards: list[str], split: str, request: Request) -> ImageData:
    """Open shards on disk, in the given order."""
    found = [(number, member) for number, shard in enumerate(shards) for member in _scan(shard)]
    where = f"wds:{shards[0]}" + (f" and {len(shards) - 1} more" if len(shards) > 1 else "")
    members = [member for _, member in found]
    pictures = ShardImages(
        shards,
        [member.name for member in members],
        np.array([number for number, _ in found], dtype=np.int32),
        np.array([member.offset for member in members], dtype=np.int64),
        np.array([member.size for member in members], dtype=np.int64),
    )
    written = [member.label for member in members if member.label is not None] if request.labels else []
    if written and len(written) < len(members):
        first = next(i for i, member in enumerate(members) if member.label is None)
        raise DataError(f"{pictures.name(first)} has no label, but {len(written)} other images have one.")
    if request.classes is not None and members and not written:
        raise DataError(f"{where} has no labels, but {len(request.classes)} classes were expected.")
    labels = written_labels(written, written, request, where, pictures.name) if written else None
    return image_data(pictures, split, labels, where)


def _scan(shard: str) -> Iterator[Member]:
    try:
        with tarfile.open(shard, "r:", tarinfo=WholeTarInfo) as archive:
            yield from (member for member, _ in members_of(archive, shard, contents=False))
    except (tarfile.TarError, OSError) as error:
        raise DataError(f"{shard} is not a complete, uncompressed tar file: {error}") from error


def members_of(archive: tarfile.TarFile, shard: str, contents: bool) -> Iterator[tuple[Member, bytes]]:
    """Images with their labels in the order of the archive, and their bytes if ``contents``, else b"".

    Files of one sample are adjacent, so one pass is enough. Samples without an image, such as notes, are ignored.
    """
    files = (entry for entry in _forward(archive, shard) if entry.isreg() and not entry.issparse())
    for key, group in itertools.groupby(files, key=lambda entry: _key(entry.name)[0]):
        image: tuple[Member, bytes] | None = None
        label = None
        for entry in group:
            kind = _key(entry.name)[1]
            if kind in IMAGES:
                if image is not None:
                    raise DataError(f"{shard} has two images called {key}.")
                IMAGE_BYTES.check(entry.size, f"{shard}/{entry.name} claims {entry.size} bytes")
                content = _content(archive, entry).read() if contents else b""
                image = Member(entry.name, entry.offset_data, entry.size, None), content
            elif kind in LABELS and label is None:
                LABEL_BYTES.check(entry.size, f"{shard}/{entry.name} claims {entry.size} bytes")
                label = _label(_content(archive, entry).read(), kind, f"{shard}/{entry.name}")
        if image is not None:
            yield replace(image[0], label=label), image[1]


def _forward(archive: tarfile.TarFile, shard: str) -> Iterator[tarfile.TarInfo]:
    """The entries, unless one claims a size that leads back to itself."""
    for entry in archive:
        if entry.size < 0:
            raise DataError(f"{shard}/{entry.name} claims {entry.size} bytes. The tar file is damaged.")
        yield entry


def _key(name: str) -> tuple[str, str]:
    """`a.b/001.seg.png` is (`a.b/001`, `seg.png`): a name ends at the first dot after the last slash."""
    folder, slash, base = name.rpartition("/")
    stem, _, extension = base.partition(".")
    return folder + slash + stem, extension.lower()


def _content(archive: tarfile.TarFile, entry: tarfile.TarInfo) -> IO[bytes]:
    file = archive.extractfile(entry)
    assert file is not None  # regular files only
    return file


def _label(content: bytes, kind: str, where: str) -> str | None:
    """The label as text; None if a JSON file has none."""
    try:
        if kind == "cls":
            return content.decode().strip()
        label = parse_json(content, "it").get("label")
    except (ValueError, AttributeError) as error:
        raise DataError(f"{where} does not hold a label: {error}") from error
    return None if label is None else label_text(label, where)


def find_shards(pattern: str, split: str) -> tuple[str, list[str]]:
    """The split's name and its shards. `{split}` in the pattern becomes that name; ranges and globs are expanded."""
    check_harmless(pattern)
    if PLACEHOLDER not in pattern:
        check_undivided(split, Path(pattern).name.removesuffix(".tar"), f"wds:{pattern}")
        return split, _existing(pattern)
    if is_url(pattern):
        return split, list(expand(pattern.replace(PLACEHOLDER, split)))
    candidates = {split, *TRAIN, *VALIDATION, *TEST}
    there = [name for name in candidates if _existing(pattern.replace(PLACEHOLDER, name), required=False)]
    chosen = choose_split(split, there, f"wds:{pattern}")
    return chosen, _existing(pattern.replace(PLACEHOLDER, chosen))


def is_url(pattern: str) -> bool:
    return pattern.startswith(("http://", "https://"))


def check_harmless(pattern: str) -> None:
    """Raise ``DataError`` unless shards are files or http(s) URLs; `pipe:`, for one, would run a command."""
    scheme = re.match(r"([A-Za-z][A-Za-z0-9+.-]+):", pattern)
    if scheme and not is_url(pattern):
        raise DataError(f"wds:{pattern}: {scheme[1]!r} is not supported. Use a path, http:// or https://.")


def _existing(pattern: str, required: bool = True) -> list[str]:
    """Every shard of a pattern. A missing shard is an error if ``required``."""
    found: list[str] = []
    for path in expand(pattern):
        there = is_url(path) or Path(path).is_file()
        matches = [path] if there else sorted(glob.glob(path))
        if required and not matches:
            raise DataError(f"wds:{pattern}: there is no shard {path}.")
        found += matches
    return found


def expand(pattern: str) -> Iterator[str]:
    """Expand `{000..146}` and `{a,b}`, leftmost braces first; other braces are unchanged.

    Raises:
        DataError: if there are more than `SHARDS` of them.
    """
    sizes = [abs(int(last[:18]) - int(first[:18])) for first, last in re.findall(RANGE, pattern)]
    sizes += [text.count(",") for text in re.findall(CHOICE, pattern)]
    count = math.prod(size + 1 for size in sizes)
    SHARDS.check(count, f"wds:{pattern[:200]} stands for {count if count < 10**18 else 'more than 10**18'} shards")
    if len(sizes) > MOST_BRACES:
        raise DataError(f"wds:{pattern[:200]} has {len(sizes)} braces; at most {MOST_BRACES} are expanded.")
    yield from _expanded(pattern)


def _expanded(pattern: str) -> Iterator[str]:
    match = re.search(rf"{RANGE}|{CHOICE}", pattern)
    if match is None:
        yield pattern
        return
    choices: Iterable[str]
    if match[3] is None:
        first, last = match[1], match[2]
        width = len(first) if first.startswith("0") else 0
        choices = (str(number).zfill(width) for number in range(int(first), int(last) + 1))
    else:
        choices = match[3].split(",")
    for choice in choices:
        yield from _expanded(pattern[: match.start()] + choice + pattern[match.end() :])
