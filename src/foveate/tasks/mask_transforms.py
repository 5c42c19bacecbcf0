"""Transforms of an image and its mask together, with torchvision's transforms of tv_tensors.

They are called with a PIL image and a mask (H, W) of class numbers, and return the model's input and the mask.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torchvision.transforms import InterpolationMode, v2
from torchvision.transforms.v2 import functional as together
from torchvision.tv_tensors import Image as TvImage
from torchvision.tv_tensors import Mask as TvMask

from foveate.data.masks import IGNORED
from foveate.data.preprocessing import Preprocessing

Size = tuple[int, int]
LONGEST = 4
"""The longer side may be this many times as long as the shorter: (2048, 512), as in ADE20K's recipes."""
CROPS_TRIED = 10
BRIGHTNESS, CONTRAST, SATURATION, HUE = (0.875, 1.125), (0.5, 1.5), (0.5, 1.5), (-0.1, 0.1)


@dataclass(frozen=True)
class Evaluation:
    """Resizes the image alone: the prediction is judged at the mask's own size."""

    preprocessing: Preprocessing
    keep_ratio: bool = False
    """Scale by the shorter side instead of to height and width of the model's images."""

    def __call__(self, image: Image.Image, mask: NDArray[Any]) -> tuple[Tensor, Tensor]:
        pixels = TvImage(image)
        wanted = (self.preprocessing.height, self.preprocessing.width)
        size = short_side_size(_size(pixels), min(wanted)) if self.keep_ratio else wanted
        resized = together.resize(pixels, list(size), interpolation=_mode(self.preprocessing), antialias=True)
        return self.preprocessing.normalize(resized.as_subclass(Tensor)), torch.from_numpy(mask)


@dataclass(frozen=True)
class Training:
    """Scale at random, crop to the model's size, flip, distort colors; places outside the image get no class."""

    preprocessing: Preprocessing
    scale: tuple[float, float]
    """Smallest and largest factor, relative to the size at which images are evaluated."""
    cat_max_ratio: float
    """Largest share of a crop's labeled pixels that one class may have; up to 10 crops are tried."""
    flip: float
    photometric: bool

    def __call__(self, image: Image.Image, mask: NDArray[Any]) -> tuple[Tensor, Tensor]:
        pixels, labels = TvImage(image), TvMask(torch.from_numpy(mask))
        pixels, labels = self.scaled(pixels, labels)
        pixels, labels = self.cropped(*self.padded(pixels, labels))
        if float(torch.rand(())) < self.flip:
            pixels, labels = together.horizontal_flip(pixels), together.horizontal_flip(labels)
        if self.photometric:
            pixels = v2.RandomPhotometricDistort(BRIGHTNESS, CONTRAST, SATURATION, HUE)(pixels)
        return self.preprocessing.normalize(pixels.as_subclass(Tensor)), labels.as_subclass(Tensor)

    @property
    def crop(self) -> Size:
        return self.preprocessing.height, self.preprocessing.width

    def scaled(self, pixels: Any, labels: Any) -> tuple[Any, Any]:
        low, high = self.scale
        factor = low + (high - low) * float(torch.rand(()))
        rows, columns = short_side_size(_size(pixels), min(self.crop))
        size = [max(1, round(rows * factor)), max(1, round(columns * factor))]
        pixels = together.resize(pixels, size, interpolation=_mode(self.preprocessing), antialias=True)
        return pixels, together.resize(labels, size, interpolation=InterpolationMode.NEAREST_EXACT)

    def padded(self, pixels: Any, labels: Any) -> tuple[Any, Any]:
        """Pad to the crop's size, below and on the right: with the mean color, and without a class."""
        (rows, columns), (tall, wide) = _size(pixels), self.crop
        border = [0, 0, max(0, wide - columns), max(0, tall - rows)]
        if not any(border):
            return pixels, labels
        mean = [round(255 * value) for value in self.preprocessing.mean]
        return together.pad(pixels, border, fill=mean), together.pad(labels, border, fill=IGNORED)

    def cropped(self, pixels: Any, labels: Any) -> tuple[Any, Any]:
        for _ in range(CROPS_TRIED):
            top, left, tall, wide = self._place(_size(pixels))
            part = together.crop(labels, top, left, tall, wide)
            if most_common_share(part) < self.cat_max_ratio:
                break
        return together.crop(pixels, top, left, tall, wide), part

    def _place(self, size: Size) -> tuple[int, int, int, int]:
        (rows, columns), (tall, wide) = size, self.crop
        top, left = (int(torch.randint(room + 1, ())) for room in (rows - tall, columns - wide))
        return top, left, tall, wide


def most_common_share(mask: Tensor) -> float:
    """Share of the largest class among labeled pixels; 1 where there is one class or none."""
    counts = torch.bincount(mask.flatten()[mask.flatten() != IGNORED])
    counts = counts[counts > 0]
    return float(counts.max() / counts.sum()) if len(counts) > 1 else 1.0


def short_side_size(size: Size, short: int) -> Size:
    """The size with its shorter side at ``short``, and the longer at most four times as long."""
    factor = min(short / min(size), LONGEST * short / max(size))
    return max(1, round(size[0] * factor)), max(1, round(size[1] * factor))


def _size(pixels: Any) -> Size:
    return int(pixels.shape[-2]), int(pixels.shape[-1])


def _mode(preprocessing: Preprocessing) -> InterpolationMode:
    modes: dict[str, Any] = {"bicubic": InterpolationMode.BICUBIC, "nearest": InterpolationMode.NEAREST_EXACT}
    return modes.get(preprocessing.interpolation, InterpolationMode.BILINEAR)


MaskTransform = Callable[[Image.Image, NDArray[Any]], tuple[Tensor, Tensor]]
