"""Masks on a photograph: parts of it tinted, and lines between parts."""

from __future__ import annotations

import torch
from torch import Tensor

from foveate.drawing.style import OUTLINE, Color, color_tensor


def tint(photo: Tensor, mask: Tensor, color: Color, strength: float) -> Tensor:
    """Mix ``color`` into the pixels of ``photo`` (3, H, W) that ``mask`` (H, W) covers, as floats."""
    share = mask.float() * strength
    return photo.float() * (1 - share) + color_tensor(color) * share


def outline(photo: Tensor, part: Tensor, shown: Tensor) -> Tensor:
    """Draw lines between parts of ``photo`` (3, H, W).

    Args:
        photo: Pixels, as floats.
        part: (H, W) number of the part that each pixel belongs to.
        shown: (H, W) parts that get lines; a border needs one on either side of it.

    Returns:
        The photo with the first pixel behind each border in the color of lines.
    """
    border = torch.zeros_like(shown)
    border[1:] |= (part[1:] != part[:-1]) & (shown[1:] | shown[:-1])
    border[:, 1:] |= (part[:, 1:] != part[:, :-1]) & (shown[:, 1:] | shown[:, :-1])
    return torch.where(border, color_tensor(OUTLINE), photo)
