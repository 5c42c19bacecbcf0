"""Masks on a photograph: tint parts of it, and draw lines between parts."""

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
        part: (H, W) index of the part that each pixel belongs to.
        shown: (H, W) pixels of the parts to outline; a border is drawn if either side is among them.

    Returns:
        The photo, with the first pixel after each border in the outline color.
    """
    border = torch.zeros_like(shown)
    border[1:] |= (part[1:] != part[:-1]) & (shown[1:] | shown[:-1])
    border[:, 1:] |= (part[:, 1:] != part[:, :-1]) & (shown[:, 1:] | shown[:, :-1])
    return torch.where(border, color_tensor(OUTLINE), photo)
