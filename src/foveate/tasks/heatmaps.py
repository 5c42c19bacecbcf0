"""Keypoints as heatmaps and back, and the crop of one person.

Coordinates are continuous: the first pixel reaches from 0 to 1. The value of a heatmap at a pixel belongs to its
center, so a mirrored image has the mirrored heatmap, without a shift.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.nn.functional import conv2d

SIGMA = 2.0
"""Spread of a keypoint, in pixels of the heatmap."""
PADDING = 1.25
"""A person's box is enlarged by this factor."""
BLUR = 5
"""Reach of the blur before decoding, about that of the Gaussian of a keypoint."""
SMALLEST = 1e-10


@dataclass(frozen=True)
class Crop:
    """Where a crop lies in an image: a point (u, v) of the crop is at ``matrix @ (u, v, 1)``."""

    matrix: NDArray[np.float64]  # (2, 3)
    size: tuple[int, int]  # height, width

    def cut(self, image: Image.Image) -> Image.Image:
        """The pixels of the crop; black outside the image."""
        coefficients = tuple(float(value) for value in self.matrix.reshape(-1))
        height, width = self.size
        return image.transform((width, height), Image.Transform.AFFINE, coefficients, Image.Resampling.BILINEAR)

    def to_image(self, points: NDArray[np.floating]) -> NDArray[np.float64]:
        """Points (..., 2) of the crop in the image."""
        return points @ self.matrix[:, :2].T + self.matrix[:, 2]

    def from_image(self, points: NDArray[np.floating]) -> NDArray[np.float64]:
        """Points (..., 2) of the image in the crop."""
        return (points - self.matrix[:, 2]) @ np.linalg.inv(self.matrix[:, :2]).T


def person_crop(
    box: NDArray[np.floating], size: tuple[int, int], zoom: float = 1.0, turn: float = 0.0, padding: float = PADDING
) -> Crop:
    """The crop of ``size`` (height, width) around a box (4,), with room around it and the proportions of ``size``.

    Args:
        box: left, top, right, bottom.
        size: height and width of the crop in pixels.
        zoom: factor by which the person becomes larger.
        turn: angle in degrees by which the crop is turned.
        padding: factor by which the box is enlarged.
    """
    height, width = size
    left, top, right, bottom = (float(side) for side in box)
    step = (
        padding * max((right - left) / width, (bottom - top) / height) / zoom
    )  # pixels of the image in one of the crop
    angle = math.radians(turn)
    turned = step * np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
    center = np.array([(left + right) / 2, (top + bottom) / 2])
    shift = center - turned @ np.array([width / 2, height / 2])
    return Crop(np.concatenate([turned, shift[:, None]], axis=1), size)


def encode(points: Tensor, size: tuple[int, int], stride: int, sigma: float = SIGMA) -> Tensor:
    """Gaussians (K, h, w) of height 1 at points (K, 2) of the crop, at their exact places."""
    height, width = size[0] // stride, size[1] // stride
    rows, columns = torch.arange(height) + 0.5, torch.arange(width) + 0.5
    x, y = points[:, 0] / stride, points[:, 1] / stride
    squared = (columns[None, None, :] - x[:, None, None]) ** 2 + (rows[None, :, None] - y[:, None, None]) ** 2
    return torch.exp(-squared / (2 * sigma**2))


def decode(heatmaps: Tensor, stride: int, sigma: float = SIGMA) -> tuple[Tensor, Tensor]:
    """Places (B, K, 2) in the crop and scores (B, K) of the highest values of heatmaps (B, K, h, w).

    The place within a pixel is where the logarithm of a blurred heatmap, a parabola if it is a Gaussian, has its
    maximum: one Newton step from the highest pixel (distribution-aware coordinates, Zhang et al., CVPR 2020).
    """
    values = heatmaps.float()
    height, width = values.shape[-2:]
    scores, best = values.flatten(2).max(dim=2)
    row, column = best // width, best % width
    near = (row < BLUR) | (row >= height - BLUR) | (column < BLUR) | (column >= width - BLUR)
    smooth = torch.where(near[..., None, None], values, _blurred(values, sigma))  # a blur would pull it off the border
    logs = smooth.clamp(min=SMALLEST).log().flatten(2)
    y, x = row.clamp(2, height - 3), column.clamp(2, width - 3)  # differences reach two pixels to each side

    def at(down: int, right: int) -> Tensor:
        return logs.gather(2, ((y + down) * width + x + right)[..., None])[..., 0]

    middle = at(0, 0)
    slope = torch.stack([(at(0, 1) - at(0, -1)) / 2, (at(1, 0) - at(-1, 0)) / 2], dim=-1)
    along = (at(0, 2) - 2 * middle + at(0, -2)) / 4
    across = (at(2, 0) - 2 * middle + at(-2, 0)) / 4
    mixed = (at(1, 1) - at(-1, 1) - at(1, -1) + at(-1, -1)) / 4
    highest = torch.stack([column, row], dim=-1)
    peak = torch.stack([x, y], dim=-1) + _newton_step(slope, along, mixed, across)
    return (torch.clamp(peak, highest - 1, highest + 1) + 0.5) * stride, scores


def _newton_step(slope: Tensor, along: Tensor, mixed: Tensor, across: Tensor) -> Tensor:
    """From the highest pixel to the maximum of a parabola; zero where the surface is not a peak."""
    determinant = along * across - mixed**2
    peak = (determinant > 1e-12) & (along < 0)
    safe = torch.where(peak, determinant, torch.ones_like(determinant))
    x = -(across * slope[..., 0] - mixed * slope[..., 1]) / safe
    y = -(along * slope[..., 1] - mixed * slope[..., 0]) / safe
    return torch.where(peak[..., None], torch.stack([x, y], dim=-1), torch.zeros_like(slope))


def _blurred(heatmaps: Tensor, sigma: float) -> Tensor:
    """Smooth the noise of a prediction; a Gaussian stays one, with its maximum where it was."""
    steps = torch.arange(-BLUR, BLUR + 1, dtype=torch.float32, device=heatmaps.device)
    line = torch.exp(-(steps**2) / (2 * sigma**2))
    line = line / line.sum()
    batch, count, height, width = heatmaps.shape
    flat = heatmaps.reshape(batch * count, 1, height, width)
    flat = conv2d(flat, line.view(1, 1, 1, -1), padding=(0, BLUR))
    return conv2d(flat, line.view(1, 1, -1, 1), padding=(BLUR, 0)).view(batch, count, height, width)


def mirrored_heatmaps(heatmaps: Tensor, mirror: tuple[int, ...]) -> Tensor:
    """Heatmaps (B, K, h, w) of the mirrored image as those of the image: flipped, left and right exchanged."""
    return heatmaps.flip(-1)[:, list(mirror)]
