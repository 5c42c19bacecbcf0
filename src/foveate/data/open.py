"""Open any kind of image data by a short text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from foveate.data.coco import Kind, is_coco, open_coco
from foveate.data.csv_file import open_csv
from foveate.data.folder import open_folder
from foveate.data.hugging_face import open_hugging_face
from foveate.data.images import DataError
from foveate.data.labels import Request
from foveate.data.parquet import SUFFIX, open_parquet
from foveate.data.scenes import open_scenes
from foveate.data.shards import find_shards, is_url, open_shards
from foveate.data.source import ImageData, InstanceData
from foveate.data.splits import ALL, Undivided
from foveate.data.stream import StreamedData, open_stream
from foveate.data.torchvision_sets import open_torchvision

Data = TypeVar("Data")
KINDS = "a folder, a .csv or .parquet file, hf:NAME_OR_PATH, parquet:PATTERN, wds:PATTERN, torchvision:NAME or scenes:"
OPTIONS: dict[str, set[str]] = {
    "hf": {"label_column"},
    "parquet": {"label_column", "image_column", "key_column"},
    "wds": {"length"},
    "torchvision": {"root", "download"},
    "scenes": set(),
}
"""Options that only one kind of data takes."""
EVALUATION_SPLITS = ("val", ALL)
"""Splits to try in this order."""


def open_data(
    spec: str | Path,
    split: str,
    *,
    classes: Sequence[str] | None = None,
    num_classes: int | None = None,
    allow_empty_classes: bool = False,
    labels: bool = True,
    label_column: str | None = None,
    image_column: str | None = None,
    key_column: str | None = None,
    length: int | None = None,
    root: str | Path | None = None,
    download: bool = False,
) -> ImageData | StreamedData:
    """Open one split of image data and check everything that can be checked without decoding images.

    Args:
        spec: a folder, a .csv or .parquet file, `hf:NAME_OR_PATH`, `wds:PATTERN`, `parquet:PATTERN`,
            `torchvision:NAME` or `scenes:`.
        split: name of the split, such as ``"train"``, ``"val"`` or ``"all"``.
        classes: class names in order. Pass those of the training data when opening other splits, so that labels agree.
        num_classes: number of classes, for data without names.
        allow_empty_classes: whether some of the classes may have no images.
        labels: whether labels are needed. Without them, all images of a folder count, at any depth.
        label_column: for `hf:` and Parquet, the label column if there are several.
        image_column: for Parquet, the column of encoded images or paths if there are several.
        key_column: for Parquet, a column with a unique name for each image; by default file and row.
        length: for `wds:` with URLs, the number of images in all shards.
        root: for `torchvision:`, the folder of the data.
        download: for `torchvision:`, whether to download missing data.

    Raises:
        DataError: if the data does not exist or cannot be used.
    """
    text = str(spec)
    kind, colon, rest = text.partition(":")
    if not colon or kind not in OPTIONS:
        kind, rest = ("parquet", text) if text.endswith(SUFFIX) else ("", text)
    options: dict[str, Any] = {"label_column": label_column, "image_column": image_column, "key_column": key_column}
    options |= {"length": length, "root": root, "download": download}
    given = {name: value for name, value in options.items() if value not in (None, False)}
    for name in given:
        if name not in OPTIONS.get(kind, ()):
            raise DataError(f"{text} does not take {name}, which is for {_kind_of(name)} data.")
    request = Request(split, None if classes is None else tuple(classes), num_classes, allow_empty_classes, labels)
    if kind == "hf":
        return open_hugging_face(rest, request, **given)
    if kind == "parquet":
        return open_parquet(rest, request, **given)
    if kind == "torchvision":
        return open_torchvision(rest, request, **given)
    if kind == "scenes":
        return open_scenes(rest, request)
    return _open_shards(rest, request, length) if kind == "wds" else _open_path(text, request)


def open_for_evaluation(spec: str | Path, split: str | None = None, **options: Any) -> ImageData | StreamedData:
    """Like ``open_data``; without a split, the validation images, or all images if there are no splits."""
    return split_for_evaluation(open_data, spec, split, **options)


def split_for_evaluation(open_split: Callable[..., Data], spec: str | Path, split: str | None, **options: Any) -> Data:
    """Open a split by ``open_split``; without one, the validation images, or all images if there are no splits."""
    if split is not None:
        return open_split(spec, split, **options)
    try:
        return open_split(spec, EVALUATION_SPLITS[0], **options)
    except Undivided:  # other errors are raised, not hidden by a second try
        return open_split(spec, EVALUATION_SPLITS[1], **options)


def open_instances(
    spec: str | Path,
    split: str,
    kind: Kind,
    *,
    with_masks: bool = False,
    classes: Sequence[str] | None = None,
    num_classes: int | None = None,
    allow_empty_classes: bool = False,
) -> InstanceData:
    """Open one split of data with boxes, masks or keypoints: a COCO folder, a COCO file, or ``scenes:objects``.

    Args:
        spec: the folder, the ``.json`` file, or ``scenes:objects``.
        split: name of the split.
        kind: which annotations of COCO data to read.
        with_masks: whether targets need masks.
        classes: class names in order, such as those of the training data.
        num_classes: number of classes.
        allow_empty_classes: whether the data may lack some of ``classes``.

    Raises:
        DataError: if the data cannot be used.
    """
    request = Request(split, None if classes is None else tuple(classes), num_classes, allow_empty_classes)
    text, path = str(spec), Path(spec)
    if text.startswith("scenes:"):
        data = open_scenes(text.removeprefix("scenes:"), request)
        if isinstance(data, InstanceData):
            return data
        raise DataError(f"{text} has one object per scene and no boxes. Use scenes:objects.")
    if is_coco(path):
        return open_coco(path, request, kind, with_masks)
    what = (
        "has no folder 'annotations'" if path.is_dir() else "is not a .json file" if path.exists() else "does not exist"
    )
    raise DataError(f"{text} {what}. Data with boxes can be a COCO folder, a COCO .json file, or scenes:objects.")


def _kind_of(option: str) -> str:
    return " and ".join(f"{kind}:" for kind, names in OPTIONS.items() if option in names)


def _open_shards(pattern: str, request: Request, length: int | None) -> ImageData | StreamedData:
    split, shards = find_shards(pattern, request.split)
    if not shards:
        raise DataError(f"wds:{pattern} matches no shards.")
    if is_url(pattern):
        return open_stream(shards, split, request, length)
    if length is not None:
        raise DataError(f"wds:{pattern} is on disk, so its images are counted. Leave out length.")
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
    raise DataError(f"{text} {what}. Data can be {KINDS}.")
