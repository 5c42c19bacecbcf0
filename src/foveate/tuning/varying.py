"""Many pictures from few: crops, colors, pasted parts and means of two.

Whatever comes out, the unreduced model has a prediction for it, so a picture may show what no label could name.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import interpolate

SMALLEST_CROP = 0.35
"""Smallest share of an image's sides that a crop shows."""
COLOR = 0.3
"""Largest change of contrast, saturation, and brightness in standard deviations."""
MIXED = 0.5
"""Share of the crops into which a part of another is pasted."""
PASTED = (0.3, 0.7)
"""Smallest and largest side of that part, relative to the image's."""
BLENDED = 0.5
"""Share of the crops that become a weighted mean with another."""


def varied(images: Tensor, generator: torch.Generator) -> Tensor:
    """Pictures to tune on, from images (B, C, H, W)."""
    crops = recolored(random_crops(images, generator), generator)
    return blended(mixed(crops, generator), generator)


def random_crops(images: Tensor, generator: torch.Generator, smallest: float = SMALLEST_CROP) -> Tensor:
    """A random part of each image (B, C, H, W) at its own size again, mirrored half of the time."""
    height, width = images.shape[-2:]
    draws = torch.rand(len(images), 4, generator=generator).tolist()
    crops = []
    for image, (scale, down, right, mirror) in zip(images, draws, strict=True):
        side = smallest + (1 - smallest) * scale
        rows, columns = max(1, round(side * height)), max(1, round(side * width))
        top, left = round(down * (height - rows)), round(right * (width - columns))
        part = image[:, top : top + rows, left : left + columns].unsqueeze(0)
        part = interpolate(part.float(), (height, width), mode="bicubic", antialias=True, align_corners=False)
        crops.append(part.flip(-1) if mirror < 0.5 else part)
    return torch.cat(crops).to(images.dtype)


def recolored(crops: Tensor, generator: torch.Generator, strength: float = COLOR) -> Tensor:
    """Change each normalized crop's contrast, brightness and saturation by up to ``strength``."""
    draws = torch.rand(3, len(crops), 1, 1, 1, generator=generator).to(crops)
    contrast, brightness, saturation = strength * (2 * draws - 1)
    found = crops * (1 + contrast) + brightness
    gray = found.mean(1, keepdim=True)
    return gray + (found - gray) * (1 + saturation)


def mixed(crops: Tensor, generator: torch.Generator, share: float = MIXED) -> Tensor:
    """Paste a rectangle of the next crop into some of them (B, C, H, W), at its own place."""
    height, width = crops.shape[-2:]
    draws = torch.rand(len(crops), 5, generator=generator).tolist()
    found = crops.clone()
    for number, (chance, tall, wide, down, right) in enumerate(draws):
        if chance < share:
            rows, columns = (
                round((PASTED[0] + (PASTED[1] - PASTED[0]) * part) * side)
                for part, side in ((tall, height), (wide, width))
            )
            top, left = round(down * (height - rows)), round(right * (width - columns))
            place = slice(top, top + rows), slice(left, left + columns)
            found[number][:, *place] = crops[(number + 1) % len(crops)][:, *place]
    return found


def blended(crops: Tensor, generator: torch.Generator, share: float = BLENDED) -> Tensor:
    """Turn some of the crops into a mean with the next one, of which they are at least half."""
    chance, weight = torch.rand(2, len(crops), 1, 1, 1, generator=generator).to(crops)
    own = 0.5 + 0.5 * weight
    return torch.where(chance < share, own * crops + (1 - own) * crops.roll(-1, 0), crops)
