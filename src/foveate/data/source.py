"""What every kind of image data looks like once it is open."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from foveate.data.images import BrokenImage, DataError, Sample, as_rgb
from foveate.data.labels import Labels


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
    def labelled(self) -> bool:
        return self.labels is not None

    def read(self, index: int) -> Sample:
        """The image with this number, or `BrokenImage`."""
        name = self.pictures.name(index)
        with broken_by_name(name):
            image = as_rgb(self.pictures.open(index))
        return Sample(image, -1 if self.labels is None else int(self.labels[index]), name)


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
