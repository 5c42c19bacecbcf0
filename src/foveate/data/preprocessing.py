"""How a model wants its images: size, crop, interpolation, mean and standard deviation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image, UnidentifiedImageError
from timm.data import create_transform, resolve_model_data_config
from timm.data.constants import (
    IMAGENET_DEFAULT_MEAN,
    IMAGENET_DEFAULT_STD,
    IMAGENET_INCEPTION_MEAN,
    IMAGENET_INCEPTION_STD,
    OPENAI_CLIP_MEAN,
    OPENAI_CLIP_STD,
)
from torch import Tensor, nn

from foveate.adapters import find_keeper
from foveate.data.images import as_rgb

Colour = tuple[float, float, float]

# transformers keeps these in its image processors, apart from the model; by model_type, where they are not ImageNet's
TRANSFORMERS_COLOURS: dict[str, tuple[Colour, Colour]] = {
    "vit": (IMAGENET_INCEPTION_MEAN, IMAGENET_INCEPTION_STD),
    "siglip_vision_model": (IMAGENET_INCEPTION_MEAN, IMAGENET_INCEPTION_STD),
    "clip_vision_model": (OPENAI_CLIP_MEAN, OPENAI_CLIP_STD),
}


@dataclass(frozen=True)
class Preprocessing:
    """What happens to a photograph before a model sees it."""

    height: int
    width: int
    mean: Colour = IMAGENET_DEFAULT_MEAN
    std: Colour = IMAGENET_DEFAULT_STD
    interpolation: str = "bicubic"
    crop_pct: float = 0.875
    crop_mode: str = "center"

    @staticmethod
    def of(model: nn.Module) -> Preprocessing:
        """What ``model`` was made for, as far as it says so; ImageNet's colours where it does not."""
        _, height, width = find_keeper(model).image_size(model)
        if getattr(model, "pretrained_cfg", None):
            known = resolve_model_data_config(model)
            options = {name: known[name] for name in ("mean", "std", "interpolation", "crop_pct", "crop_mode")}
            return Preprocessing(height, width, **options)
        kind = getattr(getattr(model, "config", None), "model_type", "")
        mean, std = TRANSFORMERS_COLOURS.get(kind, (IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD))
        return Preprocessing(height, width, mean, std)

    def crop(self, image: Image.Image) -> Tensor:
        """The part of ``image`` the model sees, as bytes (3, H, W)."""
        return self._transform(normalize=False)(image)

    def normalise(self, pixels: Tensor) -> Tensor:
        """Bytes (..., 3, H, W) as the numbers a model reads."""
        mean, std = (torch.tensor(c, device=pixels.device).view(3, 1, 1) for c in (self.mean, self.std))
        return (pixels.float() / 255 - mean) / std

    def pixels(self, images: Tensor) -> Tensor:
        """The inverse of ``normalise``, from 0 to 255."""
        mean, std = (torch.tensor(c, device=images.device).view(3, 1, 1) for c in (self.mean, self.std))
        return (images.float() * std + mean) * 255

    def evaluation(self) -> Callable[[Image.Image], Tensor]:
        """timm's transform for evaluation: an image in, the model's numbers out."""
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
    """A photograph as it is meant to be seen: turned as its camera says, in RGB."""
    try:
        with Image.open(path) as image:
            return as_rgb(image)
    except FileNotFoundError as error:
        raise ValueError(f"There is no image {path}.") from error
    except (UnidentifiedImageError, OSError, ValueError, Image.DecompressionBombError) as error:
        raise ValueError(f"{path} cannot be read as an image: {error}") from error
