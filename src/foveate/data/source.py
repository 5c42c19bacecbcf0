"""The common form of all kinds of image data."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from foveate.data.images import BrokenImage, DataError, Sample, as_rgb
from foveate.data.instances import Instances, KeypointNames
from foveate.data.labels import Labels
from foveate.data.targets import UNKNOWN


class Pictures(Protocol):
    """A source of images by number. It must be picklable, for worker processes."""

    def __len__(self) -> int: ...

    def name(self, index: int) -> str:
        """A unique name for each image, used in warnings."""

    def open(self, index: int) -> Image.Image:
        """The image in its stored mode. Any exception means that it is broken."""


@dataclass(frozen=True)
class ImageData:
    """Images that can be read in any order."""

    pictures: Pictures
    split: str
    """The split's name in the data, which may differ from the requested name."""
    labels: NDArray[np.int64] | None
    classes: tuple[str, ...] | None
    num_classes: int | None

    def __len__(self) -> int:
        return len(self.pictures)

    @property
    def labeled(self) -> bool:
        return self.labels is not None

    def read(self, index: int) -> Sample:
        """Read an image.

        Raises:
            BrokenImage: if it cannot be read.
        """
        name = self.pictures.name(index)
        with broken_by_name(name):
            image = as_rgb(self.pictures.open(index))
        return Sample(image, self.target(index), name)

    def target(self, index: int) -> Any:
        """The target of an image; data with other targets than labels overrides this."""
        return UNKNOWN if self.labels is None else int(self.labels[index])


@dataclass(frozen=True)
class InstanceData(ImageData):
    """Images whose targets are ``Instances``: boxes, masks, keypoints."""

    keypoints: KeypointNames | None
    """The keypoints of an object; None if the data have none."""

    @property
    def labeled(self) -> bool:
        return True

    def target(self, index: int) -> Instances:
        raise NotImplementedError


@dataclass(frozen=True)
class ChosenPictures:
    """A selection of pictures."""

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
    """A selection of the images of other data."""

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
    """Draw ``limit`` images at random; the first images of a folder would cover only a few classes."""
    if limit is None or limit >= len(data):
        return data
    return subset(data, sorted(random.Random(seed).sample(range(len(data)), limit)))


def subset(data: ImageData, chosen: Sequence[int]) -> ImageData:
    """Return the images with these numbers, in this order."""
    numbers = tuple(chosen)
    labels = None if data.labels is None else data.labels[list(numbers)]
    pictures = ChosenPictures(data.pictures, numbers)
    return ImageSubset(pictures, data.split, labels, data.classes, data.num_classes, data, numbers)


def object_mask(pictures: Any, index: int) -> NDArray[np.bool_] | None:
    """Mask of the object, if the pictures have masks; else None."""
    return pictures.mask(index) if hasattr(pictures, "mask") else None


@contextmanager
def broken_by_name(name: str) -> Iterator[None]:
    """Turn any exception into `BrokenImage`, because decoders raise many kinds on damaged files."""
    try:
        yield
    except MemoryError:
        raise
    except UnidentifiedImageError as error:  # its message names a buffer in memory
        raise BrokenImage(name, "Pillow does not recognize its image format") from error
    except Exception as error:
        raise BrokenImage(name, f"{type(error).__name__}: {error}") from error


def image_data(pictures: Pictures, split: str, labels: Labels | None, where: str) -> ImageData:
    """Make an ``ImageData``; raise ``DataError`` if it has no images."""
    if not len(pictures):
        raise DataError(f"{where} has no images.")
    if labels is None:
        return ImageData(pictures, split, None, None, None)
    return ImageData(pictures, split, labels.values, labels.classes, labels.num_classes)
