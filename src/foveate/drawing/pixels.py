"""Tensors as pixels: bytes (3, H, W) to images, values to colors, grids of patches to squares."""

from __future__ import annotations

import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import interpolate

from foveate.drawing.style import RAMP

WIDTH, SMALLEST_CELL = 252, 4


def to_pil_image(pixels: Tensor) -> Image.Image:
    """Convert bytes (3, H, W) to an image."""
    return Image.fromarray(pixels.permute(1, 2, 0).contiguous().cpu().numpy())


def rescale(values: Tensor) -> Tensor:
    """Rescale ``values`` to 0..1 between their 2nd and 98th percentile, so that outliers do not flatten the rest."""
    low, high = (torch.quantile(values.float(), share) for share in (0.02, 0.98))
    return ((values - low) / (high - low).clamp(min=1e-12)).clamp(0, 1)


def heat(values: Tensor) -> Tensor:
    """Color values (H, W) from dark to bright, as bytes (3, H, W)."""
    ramp = torch.tensor(RAMP, dtype=torch.float32)
    place = rescale(values.float().cpu()) * (len(RAMP) - 1)
    lower = place.floor().long().clamp(max=len(RAMP) - 2)
    share = (place - lower).unsqueeze(-1)
    return (ramp[lower] * (1 - share) + ramp[lower + 1] * share).round().to(torch.uint8).permute(2, 0, 1)


def enlarge(pixels: Tensor, width: int) -> Image.Image:
    """Draw bytes (3, H, W) as squares, ``width`` pixels wide in all; the shape of the grid is kept."""
    _, rows, columns = pixels.shape
    return to_pil_image(pixels).resize((width, round(width * rows / columns)), Image.Resampling.NEAREST)


def fit_to_grid(pixels: Tensor, grid: tuple[int, int], width: int = WIDTH) -> Tensor:
    """Resize bytes (3, H, W) to about ``width``, so that each patch of ``grid`` has equally many whole pixels."""
    given = pixels.shape[1:]
    scale = width / max(given)
    tall, wide = (max(SMALLEST_CELL, round(side * scale / n)) for side, n in zip(given, grid, strict=True))
    size = grid[0] * tall, grid[1] * wide
    if size == tuple(given):
        return pixels.cpu()
    large = interpolate(pixels.cpu().float().unsqueeze(0), size, mode="bicubic", antialias=True)[0]
    return large.round().clamp(0, 255).to(torch.uint8)


def repeat_to(values: Tensor, like: Tensor) -> Tensor:
    """Repeat each value of (..., rows, columns) over its patch, to the height and width of ``like``."""
    tall, wide = (large // small for large, small in zip(like.shape[-2:], values.shape[-2:], strict=True))
    return values.repeat_interleave(tall, dim=-2).repeat_interleave(wide, dim=-1)
