"""Labels as numbers, and everything that can be wrong with them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from foveate.data.images import DataError
from foveate.data.splits import is_training

FEW = 5
CLASSES_FILE = "classes.json"
"""Beside a saved model: the names of its classes, in its order."""


@dataclass(frozen=True)
class Request:
    """What was asked of `open_data`, whatever the kind of data."""

    split: str
    classes: tuple[str, ...] | None = None
    num_classes: int | None = None
    allow_empty_classes: bool = False

    def __post_init__(self) -> None:
        if self.num_classes is not None and self.num_classes < 1:
            raise DataError(f"num_classes is a number of classes, 1 or more; got {self.num_classes}.")
        if self.classes is not None and self.num_classes not in (None, len(self.classes)):
            raise DataError(f"num_classes={self.num_classes} but classes has {len(self.classes)} names.")
        if self.classes is not None and len(set(self.classes)) < len(self.classes):
            twice = first_few(sorted(name for name in set(self.classes) if self.classes.count(name) > 1))
            raise DataError(f"classes has names twice: {twice}.")


@dataclass(frozen=True)
class Labels:
    """One number for each image."""

    values: NDArray[np.int64]
    classes: tuple[str, ...] | None
    num_classes: int


def first_few(names: Iterable[object]) -> str:
    """Some of the names, and how many more there are."""
    all_of_them = [str(name) for name in names]
    more = len(all_of_them) - FEW
    return ", ".join(all_of_them[:FEW]) + (f" and {more} more" if more > 0 else "")


def declared_labels(
    values: Sequence[int] | NDArray[np.int64], found: Sequence[str], request: Request, where: str
) -> Labels:
    """Labels of data that list their classes. With ``request.classes``, numbers become those of that list."""
    classes = tuple(found)
    numbers = np.asarray(values, dtype=np.int64).reshape(-1)
    _check_range(numbers, len(classes), lambda i: f"{where}, image {i}")
    if request.classes is not None:
        check_same_classes(classes, request.classes, where, request.allow_empty_classes)
        numbers = np.array([request.classes.index(name) for name in classes], dtype=np.int64)[numbers]
        classes = request.classes
    if request.num_classes not in (None, len(classes)):
        raise DataError(f"{where} has {len(classes)} classes; {request.num_classes} were asked for.")
    labels = Labels(numbers, classes, len(classes))
    check_no_class_is_empty(labels, request, where)
    return labels


def written_labels(
    raw: Sequence[str], everywhere: Sequence[str], request: Request, where: str, place: Callable[[int], str]
) -> Labels:
    """Labels of data that write one beside each image, as a number or a name.

    ``everywhere`` has those of all splits, so that every split has the same classes; ``place(i)`` names the spot of
    the i-th in errors.
    """
    known = set(request.classes or ())
    if not all(_is_number(text) for text in everywhere) or (known and known.issuperset(raw)):
        labels = _named(raw, everywhere, request, where, place)
    else:
        values = np.array([int(text) for text in raw], dtype=np.int64)
        count = len(known) or request.num_classes or max(0, max(map(int, everywhere))) + 1
        _check_range(values, count, place)
        labels = Labels(values, request.classes, count)
    check_no_class_is_empty(labels, request, where)
    return labels


def _named(
    raw: Sequence[str], everywhere: Sequence[str], request: Request, where: str, place: Callable[[int], str]
) -> Labels:
    if request.classes is None:
        _check_not_numbers(raw, place)
    classes = tuple(sorted(set(everywhere))) if request.classes is None else request.classes
    if request.num_classes not in (None, len(classes)):
        raise DataError(f"{where} has {len(classes)} classes; {request.num_classes} were asked for.")
    numbers = {name: number for number, name in enumerate(classes)}
    for i, name in enumerate(raw):
        if name not in numbers:
            raise DataError(f"{place(i)}: {name!r} is not one of the {len(classes)} classes ({first_few(classes)}).")
    return Labels(np.array([numbers[name] for name in raw], dtype=np.int64), classes, len(classes))


def _check_not_numbers(raw: Sequence[str], place: Callable[[int], str]) -> None:
    """Labels are names here, so that a number among them is a slip: `3.0`, or a column that was mixed up."""
    for i, text in enumerate(raw):
        if _is_number(text, float):
            advice = "Write it without a point." if not _is_number(text) else "Other labels are names; use one kind."
            raise DataError(f"{place(i)}: the label {text!r} is neither an integer nor a name. {advice}")


def _is_number(text: str, kind: Callable[[str], object] = int) -> bool:
    try:
        kind(text)
    except ValueError:
        return False
    return True


def _check_range(values: NDArray[np.int64], count: int, place: Callable[[int], str]) -> None:
    wrong = np.flatnonzero((values < 0) | (values >= count))
    if len(wrong):
        more = f" ({len(wrong)} such labels)" if len(wrong) > 1 else ""
        raise DataError(f"{place(int(wrong[0]))}: label {values[wrong[0]]} is outside 0..{count - 1}{more}.")


def check_same_classes(found: Sequence[str], wanted: Sequence[str], where: str, may_lack: bool = False) -> None:
    """Both lists must name the same classes, unless some may be lacking; the order may differ."""
    missing, extra = sorted(set(wanted) - set(found)), sorted(set(found) - set(wanted))
    missing = [] if may_lack else missing
    if missing or extra:
        parts = [f"{words} {first_few(names)}" for words, names in (("lacks", missing), ("adds", extra)) if names]
        raise DataError(f"{where} has other classes than expected: it {' and '.join(parts)}.")


def check_no_class_is_empty(labels: Labels, request: Request, where: str) -> None:
    """A class without images cannot be learned. A split for evaluation may lack some."""
    if request.allow_empty_classes or not is_training(request.split):
        return
    empty = np.flatnonzero(np.bincount(labels.values, minlength=labels.num_classes) == 0)
    if len(empty):
        names = first_few(empty if labels.classes is None else [labels.classes[i] for i in empty])
        raise DataError(
            f"{where} has no image of {len(empty)} of its {labels.num_classes} classes: {names}. "
            "If that is meant, say allow_empty_classes=True (data.allow_empty_classes=true for a run)."
        )


def read_class_names(path: Path) -> list[str]:
    """Names of a model's classes in its order: a line each, or a list in a ``.json`` file."""
    if not path.is_file():
        raise DataError(f"There is no file {path} of class names.")
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".json":
        return text.splitlines()
    try:
        names = json.loads(text)
    except json.JSONDecodeError as error:
        raise DataError(f"{path} is not valid JSON: {error}.") from error
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise DataError(f"{path} holds no list of class names.")
    return names
