"""The preprocessing of a model: size, crop, interpolation, mean and standard deviation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image, UnidentifiedImageError
from timm.data import create_transform
from timm.data.constants import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from torch import Tensor, nn

from foveate.adapters import inspect
from foveate.data.folder import open_image_file
from foveate.data.images import as_rgb

Color = tuple[float, float, float]


@dataclass(frozen=True)
class Preprocessing:
    """How an image is prepared for a model."""

    height: int
    width: int
    mean: Color = IMAGENET_DEFAULT_MEAN
    std: Color = IMAGENET_DEFAULT_STD
    interpolation: str = "bicubic"
    crop_pct: float = 0.875
    crop_mode: str = "center"

    @staticmethod
    def of(model: nn.Module) -> Preprocessing:
        """The preprocessing ``model`` was trained with, as far as known; otherwise with ImageNet's colors."""
        family = inspect(model)
        _, height, width = family.image_size
        return Preprocessing(height, width, **family.preprocessing())

    def crop(self, image: Image.Image) -> Tensor:
        """The part of ``image`` that the model sees, as bytes (3, H, W)."""
        return self._transform(normalize=False)(image)

    def normalize(self, pixels: Tensor) -> Tensor:
        """Normalize bytes (..., 3, H, W) to the model's input."""
        mean, std = (torch.tensor(c, device=pixels.device).view(3, 1, 1) for c in (self.mean, self.std))
        return (pixels.float() / 255 - mean) / std

    def pixels(self, images: Tensor) -> Tensor:
        """The inverse of ``normalize``, from 0 to 255."""
        mean, std = (torch.tensor(c, device=images.device).view(3, 1, 1) for c in (self.mean, self.std))
        return (images.float() * std + mean) * 255

    def evaluation(self) -> Callable[[Image.Image], Tensor]:
        """timm's evaluation transform, from an image to the model's input."""
        return self._transform(normalize=True)

    def _transform(self, normalize: bool) -> Any:
        return create_transform(
            (3, self.height, self.width),
            is_training=False,
            mean=self.mean,
            std=self.std,
            interpolation=self.interpolation,
            crop_pct=self.crop_pct,
            crop_mode=self.crop_mode,
            normalize=normalize,
        )


def open_image(path: Path) -> Image.Image:
    """Open an image in RGB, turned upright by its EXIF orientation."""
    try:
        return as_rgb(open_image_file(path))
    except FileNotFoundError as error:
        raise ValueError(f"There is no image {path}.") from error
    except (UnidentifiedImageError, OSError, ValueError, Image.DecompressionBombError) as error:
        raise ValueError(f"{path} cannot be read as an image: {error}") from error
