"""Labels as numbers, and checks of labels and classes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from timm.data import ImageNetInfo

from foveate.data.images import DataError
from foveate.data.limits import CLASSES
from foveate.data.splits import is_training
from foveate.files import parse_json
from foveate.methods.validation import shown

FEW = 5
IMAGENET_CLASSES, WORDNET_ID = 1000, re.compile(r"n\d{8}")
CLASSES_FILE = "classes.json"
"""File next to a saved model with its class names, in order."""


@dataclass(frozen=True)
class Request:
    """The arguments of `open_data` that apply to every kind of data."""

    split: str
    classes: tuple[str, ...] | None = None
    num_classes: int | None = None
    allow_empty_classes: bool = False
    labels: bool = True
    """Whether labels are read; without them a folder may hold images at any depth."""

    def __post_init__(self) -> None:
        if self.num_classes is not None and self.num_classes < 1:
            raise DataError(f"num_classes must be at least 1, got {self.num_classes}.")
        CLASSES.check(self.num_classes or 0, f"num_classes is {self.num_classes}")
        if self.classes is not None and self.num_classes not in (None, len(self.classes)):
            raise DataError(f"num_classes={self.num_classes} but classes has {len(self.classes)} names.")
        if self.classes is not None and len(set(self.classes)) < len(self.classes):
            twice = first_few(sorted(name for name in set(self.classes) if self.classes.count(name) > 1))
            raise DataError(f"classes has repeated names: {twice}.")


@dataclass(frozen=True)
class Labels:
    """One class number for each image."""

    values: NDArray[np.int64]
    classes: tuple[str, ...] | None
    num_classes: int


def first_few(names: Iterable[object]) -> str:
    """The first few names, and how many more there are."""
    all_of_them = [str(name) for name in names]
    more = len(all_of_them) - FEW
    return ", ".join(all_of_them[:FEW]) + (f" and {more} more" if more > 0 else "")


def declared_labels(
    values: Sequence[int] | NDArray[np.int64], found: Sequence[str], request: Request, where: str
) -> Labels:
    """Labels of data that list their classes. With ``request.classes``, numbers refer to that list."""
    classes = tuple(found)
    numbers = np.asarray(values, dtype=np.int64).reshape(-1)
    _check_range(numbers, len(classes), lambda i: f"{where}, image {i}")
    if request.classes is not None:
        check_same_classes(classes, request.classes, where, request.allow_empty_classes)
        numbers = np.array([request.classes.index(name) for name in classes], dtype=np.int64)[numbers]
        classes = request.classes
    if request.num_classes not in (None, len(classes)):
        raise DataError(f"{where} has {len(classes)} classes, but num_classes={request.num_classes}.")
    labels = Labels(numbers, classes, len(classes))
    check_no_class_is_empty(labels, request, where)
    return labels


def written_labels(
    raw: Sequence[str], everywhere: Sequence[str], request: Request, where: str, place: Callable[[int], str]
) -> Labels:
    """Labels of data that store a number or a name with each image.

    ``everywhere`` holds the labels of all splits, so that every split has the same classes; ``place(i)`` locates the
    i-th label in errors.
    """
    known = set(request.classes or ())
    if not all(_is_number(text) for text in everywhere) or (known and known.issuperset(raw)):
        labels = _named(raw, everywhere, request, where, place)
    else:
        numbers = [int(text) for text in raw]
        count = len(known) or request.num_classes or max(0, max(map(int, everywhere))) + 1
        CLASSES.check(count, f"{where} has {count} classes, counted by its largest label")
        _check_range(numbers, count, place)
        labels = Labels(np.array(numbers, dtype=np.int64), request.classes, count)
    check_no_class_is_empty(labels, request, where)
    return labels


def label_text(value: object, where: str) -> str:
    """A stored label as text.

    Raises:
        DataError: if it is more than one value, such as a one-hot label.
    """
    if isinstance(value, str | int | float):
        return str(value)
    raise DataError(
        f"{where}: the label {shown(value)} is neither an integer nor a name. Of a one-hot label, store the index of "
        "its 1."
    )


def _named(
    raw: Sequence[str], everywhere: Sequence[str], request: Request, where: str, place: Callable[[int], str]
) -> Labels:
    if request.classes is None:
        _check_not_numbers(raw, place)
    classes = tuple(sorted(set(everywhere))) if request.classes is None else request.classes
    if request.num_classes not in (None, len(classes)):
        raise DataError(f"{where} has {len(classes)} classes, but num_classes={request.num_classes}.")
    numbers = {name: number for number, name in enumerate(classes)}
    for i, name in enumerate(raw):
        if name not in numbers:
            raise DataError(f"{place(i)}: {name!r} is not one of the {len(classes)} classes ({first_few(classes)}).")
    return Labels(np.array([numbers[name] for name in raw], dtype=np.int64), classes, len(classes))


def _check_not_numbers(raw: Sequence[str], place: Callable[[int], str]) -> None:
    """Raise ``DataError`` for a number among names, which is a mistake: `3.0`, or a wrong column."""
    for i, text in enumerate(raw):
        if _is_number(text, float):
            advice = (
                "Write it without a decimal point." if not _is_number(text) else "Other labels are names; use one kind."
            )
            raise DataError(f"{place(i)}: the label {text!r} is neither an integer nor a name. {advice}")


def _is_number(text: str, kind: Callable[[str], object] = int) -> bool:
    try:
        kind(text)
    except ValueError:
        return False
    return True


def _check_range(values: Sequence[int] | NDArray[np.int64], count: int, place: Callable[[int], str]) -> None:
    found = np.asarray(values)  # of objects where a number is too large for 64 bits
    wrong = np.flatnonzero((found < 0) | (found >= count))
    if len(wrong):
        more = f" ({len(wrong)} such labels)" if len(wrong) > 1 else ""
        raise DataError(f"{place(int(wrong[0]))}: label {values[wrong[0]]} is outside 0..{count - 1}{more}.")


def check_same_classes(found: Sequence[str], wanted: Sequence[str], where: str, may_lack: bool = False) -> None:
    """Raise ``DataError`` unless both lists have the same classes, in any order; ``may_lack`` allows missing ones."""
    missing, extra = sorted(set(wanted) - set(found)), sorted(set(found) - set(wanted))
    missing = [] if may_lack else missing
    if missing or extra:
        parts = [f"{words} {first_few(names)}" for words, names in (("lacks", missing), ("adds", extra)) if names]
        raise DataError(f"{where} has other classes than expected: it {' and '.join(parts)}.")


def check_no_class_is_empty(labels: Labels, request: Request, where: str) -> None:
    """Raise ``DataError`` if a class of a training split has no images."""
    if request.allow_empty_classes or not is_training(request.split):
        return
    empty = np.flatnonzero(np.bincount(labels.values, minlength=labels.num_classes) == 0)
    if len(empty):
        names = first_few(empty if labels.classes is None else [labels.classes[i] for i in empty])
        raise DataError(
            f"{where} has no image of {len(empty)} of its {labels.num_classes} classes: {names}. "
            "To allow this, set allow_empty_classes=True (data.allow_empty_classes=true for a run)."
        )


def imagenet_folders(found: Sequence[str] | None, num_classes: int | None) -> tuple[str, ...] | None:
    """The 1,000 folder names of ImageNet (WordNet ids) in the models' order, if ``found`` are some of them; else None.

    A model of another number of classes does not have this order.
    """
    if num_classes != IMAGENET_CLASSES or not found or not all(WORDNET_ID.fullmatch(name) for name in found):
        return None
    known = tuple(ImageNetInfo("imagenet-1k").label_names())
    return known if set(found) <= set(known) else None


def read_class_names(path: Path) -> list[str]:
    """Read a model's class names, in order: one per line, or a list in a ``.json`` file."""
    if not path.is_file():
        raise DataError(f"There is no file of class names {path}.")
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text ({error}). Save it as UTF-8.") from error
    if path.suffix != ".json":
        return text.splitlines()
    try:
        names = parse_json(text, path)
    except ValueError as error:
        raise DataError(str(error)) from error
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise DataError(f"{path} does not hold a list of class names.")
    return names
