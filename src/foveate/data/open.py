"""Any kind of image data by one short text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from foveate.data.csv_file import open_csv
from foveate.data.folder import open_folder
from foveate.data.hugging_face import open_hugging_face
from foveate.data.images import DataError
from foveate.data.labels import Request
from foveate.data.scenes import open_scenes
from foveate.data.shards import find_shards, is_url, open_shards
from foveate.data.source import ImageData
from foveate.data.splits import ALL, Undivided
from foveate.data.stream import StreamedData, open_stream
from foveate.data.torchvision_sets import open_torchvision

KINDS = "a folder, a .csv file, hf:NAME_OR_PATH, wds:PATTERN, torchvision:NAME or scenes:"
OPTIONS: dict[str, set[str]] = {
    "hf": {"label_column"},
    "wds": {"length"},
    "torchvision": {"root", "download"},
    "scenes": set(),
}
"""What only one kind of data understands."""
EVALUATION_SPLITS = ("val", ALL)
"""Tried one after the other."""


def open_data(
    spec: str | Path,
    split: str,
    *,
    classes: Sequence[str] | None = None,
    num_classes: int | None = None,
    allow_empty_classes: bool = False,
    label_column: str | None = None,
    length: int | None = None,
    root: str | Path | None = None,
    download: bool = False,
) -> ImageData | StreamedData:
    """Open one split of ``spec`` and check all that can be known without decoding images.

    Give ``classes`` (or ``num_classes``) of the training data when you open the others, so that labels mean the same;
    with ``allow_empty_classes`` these may hold a part of them.
    ``label_column`` is for `hf:`, ``length`` (images in all shards) for `wds:` behind URLs, ``root`` and
    ``download`` are for `torchvision:`.
    """
    text = str(spec)
    kind, colon, rest = text.partition(":")
    kind = kind if colon and kind in OPTIONS else ""
    options: dict[str, Any] = {"label_column": label_column, "length": length, "root": root, "download": download}
    given = {name: value for name, value in options.items() if value not in (None, False)}
    for name in given:
        if name not in OPTIONS.get(kind, ()):
            raise DataError(f"{text} has no use for {name}; it is for {_kind_of(name)}: data.")
    request = Request(split, None if classes is None else tuple(classes), num_classes, allow_empty_classes)
    if kind == "hf":
        return open_hugging_face(rest, request, **given)
    if kind == "torchvision":
        return open_torchvision(rest, request, **given)
    if kind == "scenes":
        return open_scenes(rest, request)
    return _open_shards(rest, request, length) if kind == "wds" else _open_path(text, request)


def open_for_evaluation(spec: str | Path, split: str | None = None, **options: Any) -> ImageData | StreamedData:
    """As ``open_data``; without a split, the validation images, or all of data that are not divided."""
    if split is not None:
        return open_data(spec, split, **options)
    try:
        return open_data(spec, EVALUATION_SPLITS[0], **options)
    except Undivided:  # any other error is raised, not hidden behind a second try
        return open_data(spec, EVALUATION_SPLITS[1], **options)


def _kind_of(option: str) -> str:
    return next(kind for kind, names in OPTIONS.items() if option in names)


def _open_shards(pattern: str, request: Request, length: int | None) -> ImageData | StreamedData:
    split, shards = find_shards(pattern, request.split)
    if not shards:
        raise DataError(f"wds:{pattern} names no shards.")
    if is_url(pattern):
        return open_stream(shards, split, request, length)
    if length is not None:
        raise DataError(f"wds:{pattern} is on disk, where images are counted. Leave length out.")
    return open_shards(shards, split, request)


def _open_path(text: str, request: Request) -> ImageData:
    path = Path(text)
    if path.is_dir():
        return open_folder(path, request)
    if path.suffix.lower() == ".csv":
        if not path.is_file():
            raise DataError(f"There is no file {path}.")
        return open_csv(path, request)
    what = "is neither a folder nor a .csv file" if path.exists() else "does not exist"
    raise DataError(f"{text} {what}. Data are {KINDS}.")
