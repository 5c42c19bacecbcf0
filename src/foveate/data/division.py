"""Divide data without splits into a training and a validation part, the same for the same seed."""

from __future__ import annotations

import random
from collections import defaultdict

from foveate.data.images import DataError
from foveate.data.source import ImageData, subset
from foveate.data.stream import StreamedData


def divide(data: ImageData, share: float, seed: int, where: str) -> tuple[ImageData, ImageData]:
    """Return training and validation images. Every class keeps its share in both, as near as whole images allow.

    A class with two images or more has at least one in each part; a class with one is in the training part.

    Args:
        data: The whole.
        share: The part of each class that is held out, in (0, 1).
        seed: The draw; the same data and seed give the same parts.
        where: The name of the data in errors.

    Raises:
        DataError: If no image is left for one of the parts.
    """
    members: dict[int, list[int]] = defaultdict(list)
    for number in range(len(data)):
        members[0 if data.labels is None else int(data.labels[number])].append(number)
    draw = random.Random(seed)
    held_out: set[int] = set()
    for label in sorted(members):
        numbers = members[label]
        count = min(max(1, round(share * len(numbers))), len(numbers) - 1)
        held_out.update(draw.sample(numbers, count))
    if not held_out:
        raise DataError(f"{where} has one image per class, so none can be held out. Leave out data.val_share.")
    rest = [number for number in range(len(data)) if number not in held_out]
    return subset(data, rest), subset(data, sorted(held_out))


def names_of(data: ImageData | StreamedData | None) -> list[str]:
    """Return the names of images that can be read in any order; none of others."""
    return [data.pictures.name(number) for number in range(len(data))] if isinstance(data, ImageData) else []
