"""Images with a mask each, whose pixels are class numbers: how masks are found, read and checked.

A mask that is missing, of another size, or with numbers outside the class list makes its image a broken one: the loader
names and counts it, replaces it in training and leaves it out in evaluation (docs/dense.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from foveate.data.images import BrokenImage, DataError, Sample
from foveate.data.labels import Request, first_few, read_class_names
from foveate.data.source import ImageData, broken_by_name

IGNORED = 255
"""Class number of pixels that are neither learned nor judged, once a mask is read."""
MOST_CLASSES = 255
PROBED = 8
"""Masks that are looked at before any work begins."""
SCANNED = 2_000
"""Most masks that are read to find out how many classes there are."""
CLASS_FILES = ("classes.txt", "classes.json", "objectInfo150.txt", "labels.txt")
"""Files of class names, in this order; the third is ADE20K's own table."""

Mask = NDArray[np.int64]


@dataclass(frozen=True)
class MaskRules:
    """How the numbers in mask files become classes."""

    ignore: int = IGNORED
    """Number, in the files, of pixels without a class."""
    reduce_zero_label: bool = False
    """Whether 0 means no class, and class numbers start at 1, as in ADE20K."""
    masks: str = ""
    """Name of the folder of masks, or of the column in ``hf:`` data; empty to find it."""
    mask_suffix: str = ""
    """What file names of masks have behind those of their images, such as ``_mask``."""

    def __post_init__(self) -> None:
        for name, kind in (("ignore", int), ("reduce_zero_label", bool), ("masks", str), ("mask_suffix", str)):
            value = getattr(self, name)
            if not isinstance(value, kind) or isinstance(value, bool) != (kind is bool):
                raise DataError(f"{name} must be {'true or false' if kind is bool else kind.__name__}, got {value!r}.")

    def classes_of(self, stored: NDArray[Any]) -> Mask:
        """Class numbers of stored ones; ``IGNORED`` where there is none."""
        values = stored.astype(np.int64)
        without = values == self.ignore
        if self.reduce_zero_label:
            without |= values == 0
            values = values - 1
        return np.where(without, IGNORED, values)


RULE_NAMES = tuple(field.name for field in fields(MaskRules))


class Masks(Protocol):
    """A source of masks by number. It must be picklable, for worker processes."""

    def name(self, index: int) -> str:
        """The mask's name, for warnings."""

    def open(self, index: int) -> Image.Image | None:
        """The mask as it is stored; None if there is none."""


@dataclass(frozen=True)
class MaskData(ImageData):
    """Images whose targets are masks (H, W) of class numbers, ``IGNORED`` where there is none."""

    masks: Masks | None
    """None for images without masks: their targets are all ``IGNORED``."""
    rules: MaskRules

    @property
    def labeled(self) -> bool:
        return self.masks is not None

    def read(self, index: int) -> Sample:
        sample = super().read(index)  # whose target has no size yet
        width, height = sample.image.size
        if self.masks is None:
            return Sample(sample.image, np.full((height, width), IGNORED, dtype=np.int64), sample.name)
        return Sample(sample.image, self.mask(index, (height, width)), sample.name)

    def mask(self, index: int, size: tuple[int, int] | None = None) -> Mask:
        """The mask of an image.

        Raises:
            BrokenImage: if it is missing, cannot be read, or does not fit the image or the class list.
        """
        assert self.masks is not None
        name = self.pictures.name(index)
        with broken_by_name(name):
            stored = self.masks.open(index)
            found = None if stored is None else class_numbers(stored)
        if found is None:
            raise BrokenImage(name, f"its mask {self.masks.name(index)} is missing")
        if size is not None and found.shape != size:
            (rows, columns), (tall, wide) = found.shape, size
            raise BrokenImage(name, f"its mask has {columns} x {rows} pixels, the image {wide} x {tall}")
        classes = self.rules.classes_of(found)
        why = self._why_outside(classes)
        if why:
            raise BrokenImage(name, f"its mask {self.masks.name(index)} {why}")
        return classes

    def _why_outside(self, classes: Mask) -> str:
        if self.num_classes is None:
            return ""
        known = classes != IGNORED
        wrong = np.unique(classes[known & ((classes < 0) | (classes >= self.num_classes))])
        if not len(wrong):
            return ""
        shift = 1 if self.rules.reduce_zero_label else 0
        numbers = first_few(int(value) + shift for value in wrong)
        return f"has the numbers {numbers}, but the classes are {shift}..{self.num_classes - 1 + shift}"

    def target(self, index: int) -> Any:
        return IGNORED


def class_numbers(image: Image.Image) -> NDArray[Any]:
    """The numbers in a mask: indices of a palette, or gray values of 8 or 16 bits."""
    values = np.asarray(image)
    if values.ndim == 3 and (values[..., :1] == values[..., :3]).all():
        values = values[..., 0]  # gray, stored as RGB
    if values.ndim != 2 or values.dtype.kind not in "uib":
        raise ValueError(
            f"its mask is in color ({image.mode}); store class numbers in one channel, such as mode L or P"
        )
    return values


def checked_masks(data: MaskData, request: Request, names: Sequence[str] | None, where: str) -> MaskData:
    """``data`` with its classes, after a look at some of its masks.

    Raises:
        DataError: if the class list does not fit the masks, or nothing tells how many classes there are.
    """
    if data.masks is None:
        return data
    classes = request.classes or (None if names is None else tuple(names))
    count = len(classes) if classes is not None else request.num_classes
    if count is not None and request.num_classes not in (None, count):
        raise DataError(f"{where} has {count} class names, but num_classes={request.num_classes}.")
    count = found_classes(data, where) if count is None else count
    if not 1 <= count <= MOST_CLASSES:
        raise DataError(f"{where} has {count} classes; masks may have 1 to {MOST_CLASSES}.")
    whole = MaskData(data.pictures, data.split, None, classes, count, data.masks, data.rules)
    probe(whole, where)
    return whole


def found_classes(data: MaskData, where: str) -> int:
    """The number of classes in masks without a class list: one more than the largest number."""
    if len(data) > SCANNED:
        raise DataError(
            f"{where} has no list of classes, and too many masks ({len(data)}) to look into each. Name their number "
            "(num_classes), or put the names into classes.txt."
        )
    largest = -1
    for index in range(len(data)):
        try:
            numbers = data.mask(index)
        except BrokenImage:
            continue  # the loader names it
        known = numbers[numbers != IGNORED]
        largest = max(largest, int(known.max()) if len(known) else -1)
    if largest < 0:
        raise DataError(f"{where}: none of the {len(data)} masks has a class.")
    return largest + 1


def probe(data: MaskData, where: str) -> None:
    """Raise a DataError if most of a few images do not fit their masks, before any work begins."""
    numbers = sorted({i * (len(data) - 1) // max(1, PROBED - 1) for i in range(min(PROBED, len(data)))})
    broken: list[BrokenImage] = []
    for number in numbers:
        try:
            data.read(number)
        except BrokenImage as error:
            broken.append(error)
    if 2 * len(broken) > len(numbers):
        raise DataError(
            f"{len(broken)} of {len(numbers)} images of {where} do not fit their masks. {broken[0]}. Options: "
            "num_classes, ignore, reduce_zero_label, masks, mask_suffix."
        )


def class_names_near(folders: Sequence[Path]) -> list[str] | None:
    """Class names from a file in one of ``folders``; None if there is none."""
    for folder in folders:
        for name in CLASS_FILES:
            path = folder / name
            if path.is_file():
                return ade20k_names(path) if name == "objectInfo150.txt" else [n for n in read_class_names(path) if n]
    return None


def ade20k_names(path: Path) -> list[str]:
    """Names in ADE20K's table of objects: the first of the synonyms in its last column."""
    rows = [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines()[1:] if line.strip()]
    names = [row[-1].split(",")[0].strip() for row in rows]
    return [name if names.count(name) == 1 else f"{name} {names[:i].count(name) + 1}" for i, name in enumerate(names)]
