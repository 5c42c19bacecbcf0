"""COCO's JSON: instances, person keypoints, and COCO-WholeBody, beside a folder of images.

Annotations that cannot be used as they are get repaired or left out by fixed rules (docs/dense.md), each named and
counted in one warning when the data are opened. A missing image file is an error.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from foveate.data.annotations import Annotation, Findings, read_annotation
from foveate.data.coco_masks import decoded_mask
from foveate.data.folder import Files
from foveate.data.images import BrokenImage, DataError
from foveate.data.instances import Instances, KeypointNames
from foveate.data.keypoints import WHOLEBODY, named_keypoints
from foveate.data.labels import Request, check_same_classes, first_few
from foveate.data.limits import check_inside
from foveate.data.source import InstanceData
from foveate.data.splits import ALL, TEST, TRAIN, VALIDATION, check_undivided, choose_split
from foveate.files import parse_json
from foveate.methods.validation import shown

Kind = Literal["instances", "keypoints", "wholebody"]
Kinds = type[int] | type[str] | type[list[Any]]
FILES: dict[Kind, str] = {
    "instances": "instances_*.json",
    "keypoints": "person_keypoints_*.json",
    "wholebody": "*wholebody_*.json",
}
"""What the annotation files of a COCO folder are called."""


KEYS: dict[str, dict[str, Kinds]] = {
    "images": {"id": int, "file_name": str, "height": int, "width": int},
    "annotations": {"image_id": int, "category_id": int, "bbox": list},
    "categories": {"id": int, "name": str},
}
"""What each entry of a COCO file needs, by the list it is in."""


@dataclass(frozen=True)
class CocoImages(Files):
    """Image files, with the size that their annotations were made for."""

    sizes: tuple[tuple[int, int], ...]  # height, width

    def open(self, index: int) -> Image.Image:
        image = super().open(index)
        height, width = self.sizes[index]
        if image.size != (width, height):
            raise ValueError(
                f"it has {image.size[0]} x {image.size[1]} pixels, but its annotations are for {width} x {height}"
            )
        return _as_stored(image)


@dataclass(frozen=True)
class CocoData(InstanceData):
    """Images with COCO annotations."""

    pictures: CocoImages
    image_ids: tuple[int, ...]
    annotations: tuple[tuple[Annotation, ...], ...]
    with_masks: bool
    category_ids: tuple[int, ...]
    """The file's number of each class: COCO's 80 classes are numbered 1 to 90."""
    findings: Findings

    def target(self, index: int) -> Instances:
        size, found = self.pictures.sizes[index], self.annotations[index]
        masks = None
        if self.with_masks:
            masks = self._masks(index)
            whole = np.flatnonzero(masks.any(axis=(1, 2)))  # a sliver that covers no pixel has no mask to learn
            found, masks = tuple(found[i] for i in whole), masks[whole]
        points = None
        if self.keypoints is not None:
            empty = np.zeros((len(self.keypoints), 3), dtype=np.float32)
            points = np.array([empty if one.keypoints is None else one.keypoints for one in found], dtype=np.float32)
            points = points.reshape(-1, len(self.keypoints), 3)
        return Instances(
            size=size,
            image_id=self.image_ids[index],
            boxes=np.array([one.box for one in found], dtype=np.float32).reshape(-1, 4),
            labels=np.array([one.label for one in found], dtype=np.int64),
            areas=np.array([one.area for one in found], dtype=np.float32),
            crowd=np.array([one.crowd for one in found], dtype=bool),
            masks=masks,
            keypoints=points,
        )

    def _masks(self, index: int) -> NDArray[np.bool_]:
        size = self.pictures.sizes[index]
        try:
            found = [decoded_mask(one.segmentation, size) for one in self.annotations[index]]
        except (RuntimeError, ValueError) as error:  # of run lengths that are text
            raise BrokenImage(self.pictures.name(index), f"a mask cannot be decoded: {error}") from error
        return np.array(found, dtype=bool).reshape(-1, *size)


def _as_stored(image: Image.Image) -> Image.Image:
    """The image without its EXIF orientation: annotations are for the pixels as they are stored."""
    image.load()
    plain = image.copy()
    for key in ("exif", "XML:com.adobe.xmp", "xmp"):
        plain.info.pop(key, None)
    return plain


def is_coco(path: Path) -> bool:
    """Whether ``path`` is a COCO file, or a folder with COCO's ``annotations``."""
    return path.suffix == ".json" or (path / "annotations").is_dir()


def open_coco(path: Path, request: Request, kind: Kind, with_masks: bool = False) -> CocoData:
    """Open one split of COCO data.

    Args:
        path: a folder with ``annotations/*.json`` and image folders, or one JSON file, which is a single split.
        request: the split, and the classes of a model, whose order labels then follow.
        kind: which annotations to read.
        with_masks: whether targets have masks.

    Raises:
        DataError: if a file is missing, is not COCO's JSON, or has other classes.
    """
    file, split = _annotation_file(path, request.split, kind)
    content = _read_json(file)
    categories, names = _categories(content, file, kind)
    labels = _labels(categories, request, file)
    keypoints = _keypoint_names(content["categories"], file, kind)
    findings = Findings()
    images = {int(one["id"]): one for one in content["images"]}
    found: dict[int, list[Annotation]] = {number: [] for number in images}
    for raw in content["annotations"]:
        one = read_annotation(raw, images, labels, kind, keypoints, with_masks, findings)
        if one is not None:
            found[int(raw["image_id"])].append(one)
    pictures = _pictures(path, file, split, list(images.values()))
    if findings:
        warnings.warn(f"{file}: {findings}", stacklevel=3)
    classes = request.classes or names
    return CocoData(
        pictures,
        split,
        None,
        classes,
        len(classes),
        keypoints,
        tuple(images),
        tuple(tuple(of_image) for of_image in found.values()),
        with_masks,
        tuple(categories),
        findings,
    )


def _annotation_file(path: Path, split: str, kind: Kind) -> tuple[Path, str]:
    """The JSON of a split, and the split's name."""
    if path.suffix == ".json":
        if not path.is_file():
            raise DataError(f"There is no file {path}.")
        check_undivided(split, path.stem, str(path))
        return path, split
    folder = path / "annotations"
    files = {_split_of(file.stem): file for file in sorted(folder.glob(FILES[kind]))}
    if not files:
        raise DataError(f"{folder} has no {FILES[kind]}. Give the JSON file itself, or put it there.")
    if split == ALL and len(files) == 1:
        return next(iter(files.values())), split
    return files[choose_split(split, files, str(folder))], split


def _split_of(stem: str) -> str:
    """The split in a file's name: ``instances_train2017``, ``coco_wholebody_val_v1.0``."""
    words = re.findall("[a-z]+", stem.lower())
    known = [word for word in words if word in (*TRAIN, *VALIDATION, *TEST)]
    return known[-1] if known else stem


def _read_json(file: Path) -> dict[str, Any]:
    try:
        content = parse_json(file.read_bytes(), file)
    except ValueError as error:
        raise DataError(str(error)) from error
    for name, needed in KEYS.items():
        rows = content.get(name) if isinstance(content, dict) else None
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise DataError(f"{file} has no list {name!r} of objects, so it is not COCO's JSON.")
        for place, row in enumerate(rows):
            _check_row(row, needed, f"{file}: entry {place} of {name!r}")
    if not content["images"]:
        raise DataError(f"{file} lists no images.")
    _check_unique(content["images"], file)
    return content


def _check_row(row: dict[str, Any], needed: Mapping[str, Kinds], where: str) -> None:
    for key, kind in needed.items():
        if key not in row:
            raise DataError(f"{where} has no {key!r}.")
        if not isinstance(row[key], kind) or isinstance(row[key], bool):
            words = "text" if kind is str else "a number" if kind is int else "a list"
            raise DataError(f"{where}: {key!r} must be {words}, got {shown(row[key], 60)}.")
    if "height" in row and not (0 < row["height"] < 2**16 and 0 < row["width"] < 2**16):
        raise DataError(f"{where} has {row['width']} x {row['height']} pixels; an image has 1 to 65535 on a side.")


def _check_unique(images: list[dict[str, Any]], file: Path) -> None:
    ids = [one["id"] for one in images]
    if len(set(ids)) < len(ids):
        twice = sorted({i for i in ids if ids.count(i) > 1})
        raise DataError(f"{file} lists images with the same id: {first_few(twice)}.")


def _categories(content: Mapping[str, Any], file: Path, kind: Kind) -> tuple[dict[int, str], tuple[str, ...]]:
    """Names by the file's number, in the order of numbers."""
    found = {int(one["id"]): str(one["name"]) for one in content["categories"]}
    names = tuple(found[number] for number in sorted(found))
    if not names or len(set(names)) < len(names):
        raise DataError(
            f"{file} lists {len(names)} categories, {len(set(names))} of them different. Each needs a name."
        )
    if kind != "instances" and len(names) > 1:
        raise DataError(f"{file} has keypoints of {len(names)} categories; only one is supported, such as person.")
    return {number: found[number] for number in sorted(found)}, names


def _labels(categories: Mapping[int, str], request: Request, file: Path) -> dict[int, int]:
    """Our class number for each of the file's."""
    names = tuple(categories.values())
    if request.num_classes not in (None, len(names)):
        raise DataError(f"{file} has {len(names)} classes, but num_classes={request.num_classes}.")
    if request.classes is not None:
        check_same_classes(names, request.classes, str(file), request.allow_empty_classes)
    order = request.classes or names
    return {number: order.index(name) for number, name in categories.items()}


def _keypoint_names(categories: list[dict[str, Any]], file: Path, kind: Kind) -> KeypointNames | None:
    if kind == "instances":
        return None
    if kind == "wholebody":
        return WHOLEBODY
    names = categories[0].get("keypoints")
    if not isinstance(names, list) or not names:
        raise DataError(f"{file} has no names of keypoints in its category. Use person_keypoints_*.json.")
    return named_keypoints([str(name) for name in names], _limbs(categories[0], len(names), file))


def _limbs(category: Mapping[str, Any], points: int, file: Path) -> list[tuple[int, int]]:
    """The skeleton of a category as pairs of keypoints, counted from 0."""
    found = category.get("skeleton", [])
    pairs = [tuple(one) for one in found if isinstance(one, list)] if isinstance(found, list) else [()]
    known = range(1, points + 1)
    if not all(len(pair) == 2 and all(type(end) is int and end in known for end in pair) for pair in pairs):
        raise DataError(
            f"{file}: 'skeleton' must be pairs of keypoints, counted from 1 to {points}, got {shown(found, 60)}."
        )
    return [(first - 1, last - 1) for first, last in pairs]


def _pictures(path: Path, file: Path, split: str, images: list[dict[str, Any]]) -> CocoImages:
    names = [str(one["file_name"]) for one in images]
    places = list(_image_folders(path, file, split))
    for place in places:
        check_inside([place, *places], names, str(file))
        missing = [name for name in names if not (place / name).is_file()]
        if not missing:
            return CocoImages(place, names, tuple((int(one["height"]), int(one["width"])) for one in images))
        if len(missing) < len(names):  # this is the folder, and some of its images are gone
            raise DataError(
                f"{len(missing)} of {len(names)} images in {file} do not exist in {place}: {first_few(missing)}. "
                "Add them, or remove them from the file."
            )
    raise DataError(f"The images of {file}, such as {names[0]}, are in none of {', '.join(map(str, places))}.")


def _image_folders(path: Path, file: Path, split: str) -> Iterable[Path]:
    """Where images may be: COCO's ``train2017`` beside ``annotations``, ``images``, or the JSON's own folder."""
    root = path if path.is_dir() else file.parent
    own = re.search(r"(train|val|test)\d*", file.stem)
    for above in dict.fromkeys((root, file.parent.parent)):
        inside = sorted(place.name for place in above.iterdir() if place.is_dir())
        same = [name for name in inside if own and name == own[0]]
        same += [name for name in inside if _split_of(name) == _split_of(file.stem) and name not in same]
        for name in same:
            yield above / name
            yield above / "images" / name
        yield above / "images"
    yield root
