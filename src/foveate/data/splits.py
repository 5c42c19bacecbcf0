"""Which of the splits that exist is meant: `val` may be called `valid`, `seg_train` is `train`."""

from __future__ import annotations

import re
from collections.abc import Iterable

from foveate.data.images import DataError

TRAIN = ("train", "training", "trainval")
VALIDATION = ("val", "valid", "validation", "dev")
TEST = ("test", "testing")
ALL = "all"
"""The split to ask for where data are not divided and all of them are meant."""


class Undivided(DataError):
    """Data that have no splits were asked for one."""


def is_training(split: str) -> bool:
    return split_word(split) in TRAIN


def split_word(name: str) -> str | None:
    """The split a name speaks of, by its last word: `seg_train`, `train2017` and `imagenet-val-{00..49}` do.

    The last word only, because `train_station` is a class.
    """
    words = re.findall("[a-z]+", name.lower())
    return words[-1] if words and words[-1] in (*TRAIN, *VALIDATION, *TEST) else None


def choose_split(split: str, available: Iterable[str], where: str) -> str:
    """The one of ``available`` that ``split`` means.

    Its own name comes first, then another name for the same, then, for validation data, a test split: many
    published sets have only that. A test split is never replaced by validation data.
    """
    names = sorted(available)
    if split in names:
        return split
    asked = split_word(split)
    for words in _accepted(asked):
        found = [name for name in names if split_word(name) in words]
        if len(found) > 1:
            raise DataError(f"{where} has several splits for {split!r}: {', '.join(found)}. Ask for one of them.")
        if found:
            return found[0]
    raise DataError(f"{where} has no split {split!r}; it has {', '.join(names) or 'none'}.")


def _accepted(asked: str | None) -> tuple[tuple[str, ...], ...]:
    if asked in TRAIN:
        return (TRAIN,)
    if asked in VALIDATION:
        return VALIDATION, TEST
    return (TEST,) if asked in TEST else ()


def check_undivided(split: str, name: str, where: str) -> None:
    """Refuse to take training images for evaluation: undivided data are `train`, `all`, or the split in their name."""
    own = split_word(name)
    if split == ALL or is_training(split) or any(own in words for words in _accepted(split_word(split))):
        return
    raise Undivided(
        f"{where} is not divided into splits, so it has no split {split!r}. Divide it, or ask for {ALL!r} to take all; "
        "a run goes without evaluation by data.val= (nothing)."
    )
