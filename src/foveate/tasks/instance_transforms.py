"""Transforms of an image with its boxes and masks, with torchvision's transforms of tv_tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional as together
from torchvision.tv_tensors import BoundingBoxes, Mask
from torchvision.tv_tensors import Image as TvImage

from foveate.data.instances import Instances
from foveate.data.preprocessing import Preprocessing

LEAST_SIDE = 1.0
"""Pixels: a box that a crop leaves narrower than this is dropped."""
Size = tuple[int, int]


def resized_size(size: Size, short: int, long: int) -> Size:
    """Height and width with the short side at ``short``, or less where the long side would exceed ``long``."""
    height, width = size
    factor = min(short / min(size), long / max(size))
    return max(1, round(height * factor)), max(1, round(width * factor))


@dataclass(frozen=True)
class Evaluation:
    """Resizes the image; the objects stay in pixels of the stored image, where predictions are judged."""

    preprocessing: Preprocessing

    def __call__(self, image: Image.Image, instances: Instances) -> tuple[Tensor, tuple[float, float]]:
        """The image, and the factors of its width and height."""
        rows, columns = resized_size(instances.size, *sides(self.preprocessing))
        pixels = together.resize(TvImage(image), [rows, columns], interpolation=InterpolationMode.BILINEAR)
        factors = (columns / instances.size[1], rows / instances.size[0])
        return self.preprocessing.normalize(pixels.as_subclass(Tensor)), factors


@dataclass(frozen=True)
class Training:
    """Resize, crop and flip at random, image and objects together."""

    preprocessing: Preprocessing
    flip: float = 0.0
    short_sides: tuple[int, ...] = ()
    """Smallest and largest length of the short side; empty for the model's."""
    jitter: tuple[float, ...] = ()
    """Large-scale jitter: smallest and largest factor of the size, then a crop or padding to the model's size."""

    def __call__(self, image: Image.Image, instances: Instances) -> tuple[Tensor, dict[str, Tensor]]:
        """The image, and the boxes, labels and masks of its objects; regions of crowds are left out."""
        parts = as_parts(image, instances)
        parts = self._jittered(parts) if self.jitter else self._resized(parts)
        if float(torch.rand(())) < self.flip:
            parts = [together.horizontal_flip(part) for part in parts]
        pixels, boxes, *masks = parts
        labels = torch.from_numpy(instances.labels[~instances.crowd])
        kept = (
            ((boxes[:, 2:] - boxes[:, :2]) >= LEAST_SIDE).all(dim=1) if len(boxes) else torch.zeros(0, dtype=torch.bool)
        )
        target = {"boxes": boxes.as_subclass(Tensor)[kept], "labels": labels[kept]}
        if masks:
            target["masks"] = masks[0].as_subclass(Tensor)[kept]
        return self.preprocessing.normalize(pixels.as_subclass(Tensor)), target

    def _resized(self, parts: list[Any]) -> list[Any]:
        short, long = sides(self.preprocessing)
        if self.short_sides:
            low, high = self.short_sides
            short = low + int(torch.randint(high - low + 1, ()))
        return resized(parts, resized_size(_size(parts), short, long))

    def _jittered(self, parts: list[Any]) -> list[Any]:
        low, high = self.jitter
        factor = low + (high - low) * float(torch.rand(()))
        rows, columns = resized_size(_size(parts), *sides(self.preprocessing))
        parts = resized(parts, (max(1, round(rows * factor)), max(1, round(columns * factor))))
        (height, width), (rows, columns) = (self.preprocessing.height, self.preprocessing.width), _size(parts)
        top, left = (int(torch.randint(max(0, over) + 1, ())) for over in (rows - height, columns - width))
        parts = [together.crop(part, top, left, min(rows, height), min(columns, width)) for part in parts]
        padding = [0, 0, max(0, width - columns), max(0, height - rows)]
        return [together.pad(part, padding) for part in parts]


def sides(preprocessing: Preprocessing) -> tuple[int, int]:
    """The short and the long side of the model's images: 800 and 1,333 of (800, 1333) and of (1333, 800)."""
    lengths = sorted((preprocessing.height, preprocessing.width))
    return lengths[0], lengths[1]


def as_parts(image: Image.Image, instances: Instances) -> list[Any]:
    """Image, boxes and masks, if there are any, as torchvision transforms them together."""
    alone = ~instances.crowd
    boxes = torch.from_numpy(instances.boxes[alone])
    parts: list[Any] = [TvImage(image), BoundingBoxes(boxes, format="XYXY", canvas_size=instances.size)]
    if instances.masks is not None:
        parts.append(Mask(torch.from_numpy(instances.masks[alone])))
    return parts


def resized(parts: list[Any], size: Size) -> list[Any]:
    """All parts at another size; masks keep hard edges."""
    mode = {Mask: InterpolationMode.NEAREST_EXACT}
    return [
        together.resize(part, list(size), interpolation=mode.get(type(part), InterpolationMode.BILINEAR))
        for part in parts
    ]


def _size(parts: list[Any]) -> Size:
    return int(parts[0].shape[-2]), int(parts[0].shape[-1])
