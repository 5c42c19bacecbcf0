"""What every kind of image data looks like once it is open."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from foveate.data.images import BrokenImage, DataError, Sample, as_rgb
from foveate.data.labels import Labels
from foveate.data.targets import UNKNOWN


class Pictures(Protocol):
    """Where images come from, by number. Must survive being sent to a worker process."""

    def __len__(self) -> int: ...

    def name(self, index: int) -> str:
        """A name of its own for each image: it is what warnings say."""

    def open(self, index: int) -> Image.Image:
        """The image in whatever mode it is stored; any exception means that it is broken."""


@dataclass(frozen=True)
class ImageData:
    """Images that can be read in any order."""

    pictures: Pictures
    split: str
    """The split as the data call it, which may be another name than the one asked for."""
    labels: NDArray[np.int64] | None
    classes: tuple[str, ...] | None
    num_classes: int | None

    def __len__(self) -> int:
        return len(self.pictures)

    @property
    def labeled(self) -> bool:
        return self.labels is not None

    def read(self, index: int) -> Sample:
        """The image with this number, or `BrokenImage`."""
        name = self.pictures.name(index)
        with broken_by_name(name):
            image = as_rgb(self.pictures.open(index))
        return Sample(image, self.target(index), name)

    def target(self, index: int) -> Any:
        """What is known of the image with this number; other kinds of data than labeled images override it."""
        return UNKNOWN if self.labels is None else int(self.labels[index])


@dataclass(frozen=True)
class ChosenPictures:
    """Some of the pictures."""

    pictures: Pictures
    numbers: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.numbers)

    def name(self, index: int) -> str:
        return self.pictures.name(self.numbers[index])

    def open(self, index: int) -> Image.Image:
        return self.pictures.open(self.numbers[index])

    def mask(self, index: int) -> NDArray[np.bool_] | None:
        return object_mask(self.pictures, self.numbers[index])


@dataclass(frozen=True)
class ImageSubset(ImageData):
    """Some images of other data, read as those read them."""

    whole: ImageData
    numbers: tuple[int, ...]

    @property
    def labeled(self) -> bool:
        return self.whole.labeled

    def read(self, index: int) -> Sample:
        return self.whole.read(self.numbers[index])

    def target(self, index: int) -> Any:
        return self.whole.target(self.numbers[index])


def drawn_from(data: ImageData, limit: int | None, seed: int) -> ImageData:
    """``limit`` of the images, drawn from all: the first ones of a folder would be of a few classes only."""
    if limit is None or limit >= len(data):
        return data
    numbers = tuple(sorted(random.Random(seed).sample(range(len(data)), limit)))
    labels = None if data.labels is None else data.labels[list(numbers)]
    pictures = ChosenPictures(data.pictures, numbers)
    return ImageSubset(pictures, data.split, labels, data.classes, data.num_classes, data, numbers)


def object_mask(pictures: Any, index: int) -> NDArray[np.bool_] | None:
    """Where the object is, for pictures that know it."""
    return pictures.mask(index) if hasattr(pictures, "mask") else None


@contextmanager
def broken_by_name(name: str) -> Iterator[None]:
    """Decoders raise nearly anything on damaged files, so anything means that the image is broken."""
    try:
        yield
    except MemoryError:
        raise
    except UnidentifiedImageError as error:  # its own words name a buffer in memory
        raise BrokenImage(name, "it is in no image format that Pillow knows") from error
    except Exception as error:
        raise BrokenImage(name, f"{type(error).__name__}: {error}") from error


def image_data(pictures: Pictures, split: str, labels: Labels | None, where: str) -> ImageData:
    """Open data, which must not be empty."""
    if not len(pictures):
        raise DataError(f"{where} has no images.")
    if labels is None:
        return ImageData(pictures, split, None, None, None)
    return ImageData(pictures, split, labels.values, labels.classes, labels.num_classes)
