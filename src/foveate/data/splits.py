"""Match split names: `val` may be called `valid`, and `seg_train` is `train`."""

from __future__ import annotations

import re
from collections.abc import Iterable

from foveate.data.images import DataError

TRAIN = ("train", "training", "trainval")
VALIDATION = ("val", "valid", "validation", "dev")
TEST = ("test", "testing")
ALL = "all"
"""The split that means all images of data without splits."""


class NoSuchSplit(DataError):
    """The data do not have the requested split."""


class Undivided(NoSuchSplit):
    """A split was requested of data without splits."""


def is_training(split: str) -> bool:
    return split_word(split) in TRAIN


def split_word(name: str) -> str | None:
    """The split that a name refers to by its last word: `seg_train`, `train2017`, `imagenet-val-{00..49}`.

    Only the last word counts, because `train_station` is a class.
    """
    words = re.findall("[a-z]+", name.lower())
    return words[-1] if words and words[-1] in (*TRAIN, *VALIDATION, *TEST) else None


def choose_split(split: str, available: Iterable[str], where: str) -> str:
    """The one of ``available`` that ``split`` means.

    The exact name comes first, then another name for the same split, then, for validation, a test split, because many
    published datasets have only that. A test split is never replaced by validation data.

    Raises:
        DataError: if no split matches, or several do.
    """
    names = sorted(available)
    if split in names:
        return split
    word = split_word(split)
    for words in _accepted(word):
        found = [name for name in names if split_word(name) in words]
        if len(found) > 1:
            raise DataError(f"{where} has several splits for {split!r}: {', '.join(found)}. Name one of them.")
        if found:
            return found[0]
    raise NoSuchSplit(f"{where} has no split {split!r}; it has {', '.join(names) or 'none'}.")


def _accepted(word: str | None) -> tuple[tuple[str, ...], ...]:
    if word in TRAIN:
        return (TRAIN,)
    if word in VALIDATION:
        return VALIDATION, TEST
    return (TEST,) if word in TEST else ()


def check_undivided(split: str, name: str, where: str) -> None:
    """Raise ``Undivided`` unless ``split`` is `train`, `all` or in ``name``: training images must not be evaluated."""
    own = split_word(name)
    if split == ALL or is_training(split) or any(own in words for words in _accepted(split_word(split))):
        return
    raise Undivided(
        f"{where} is not divided into splits, so it has no split {split!r}. To evaluate all images: --split {ALL} "
        f"(split={ALL!r} in Python). To train and hold a fifth out: --set data.val_share=0.2; without evaluation: "
        "--set data.val=."
    )
