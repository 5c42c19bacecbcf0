"""Paint scenes: colors, patterns of two colors, and clutter that looks like none of the ten kinds.

Positions and lengths are relative to the image's side, so that a scene is the same at any resolution.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from PIL import Image

from foveate.data.scenes.draws import Draws, Floats
from foveate.data.scenes.shapes import polyline

BACKGROUNDS = ("smooth", "gradient", "stripes", "blobs")
TEXTURES = ("plain", "stripes", "dots", "noise", "gradient")
BEHIND, OBJECT, CLUTTER = (0.08, 0.4), (0.6, 0.92), (0.1, 0.9)
"""Ranges of lightness, from black to white. Objects are lighter than the background, whatever their hues."""


@dataclass(frozen=True)
class Canvas:
    """Pixels (size, size, 3) from 0 to 1, and their coordinates in the unit square."""

    pixels: Floats
    x: Floats  # (1, size)
    y: Floats  # (size, 1)

    @staticmethod
    def empty(size: int) -> Canvas:
        centers = (np.arange(size, dtype=np.float32) + 0.5) / size
        return Canvas(np.zeros((size, size, 3), dtype=np.float32), centers[None, :], centers[:, None])

    @property
    def size(self) -> int:
        return len(self.pixels)

    def near(self, x: float, y: float, reach: float) -> tuple[slice, slice]:
        """Rows and columns within ``reach`` of a point, plus one pixel that a soft edge may touch."""
        bounds = [(math.floor((c - reach) * self.size) - 1, math.ceil((c + reach) * self.size) + 1) for c in (y, x)]
        rows, columns = (slice(max(0, first), max(0, end)) for first, end in bounds)
        return rows, columns

    def window(self, rows: slice, columns: slice) -> Canvas:
        """A view of a part of the canvas, on which painting is cheaper."""
        return Canvas(self.pixels[rows, columns], self.x[:, columns], self.y[rows])

    def paint(self, coverage: Floats, color: Floats) -> None:
        """Blend ``color``, one for all or one per pixel, over the canvas."""
        self.pixels[:] += coverage[..., None] * (color - self.pixels)

    def image(self) -> Image.Image:
        """The canvas as a picture."""
        return Image.fromarray((np.clip(self.pixels, 0.0, 1.0) * 255 + 0.5).astype(np.uint8))


def coverage(distance: Floats, pixel: float) -> Floats:
    """Share of each pixel inside an outline, from the distance of its center to the outline."""
    return np.clip(0.5 - distance / pixel, 0.0, 1.0)


def background(draws: Draws, canvas: Canvas) -> None:
    """Fill the canvas with a pattern of two dark colors."""
    kind, first, second = draws.one_of(BACKGROUNDS), color(draws, BEHIND), color(draws, BEHIND)
    if kind == "gradient":
        share = _gradient(draws, canvas.x, canvas.y)
    elif kind == "stripes":
        share = 0.6 * _stripes(draws, canvas.x, canvas.y, 4.0, 10.0)
    else:
        share = smooth_noise(draws, canvas.size, 3 + draws.below(7))
    if kind == "blobs":
        share = np.clip(4 * share - 1.5, 0.0, 1.0)
    canvas.pixels[:] = first + share[..., None] * (second - first)


def clutter(draws: Draws, canvas: Canvas) -> None:
    """Paint short lines, scribbles, flecks and corners, each far smaller than an object."""
    paintings = (_line, _line, _scribble, _fleck, _corner)
    for _ in range(6 + draws.below(9)):
        paint = draws.one_of(paintings)
        x, y, reach = draws.uniform(3).tolist()
        paint(draws, canvas, x, y, 0.03 + 0.05 * reach)


def texture(draws: Draws, x: Floats, y: Floats) -> Floats:
    """Colors (..., 3) of an object at its own coordinates, from -1 to 1."""
    kind, first, second = draws.one_of(TEXTURES), color(draws, OBJECT), color(draws, OBJECT)
    share: Floats = np.zeros_like(x)
    if kind == "stripes":
        share = _stripes(draws, x, y, 1.2, 2.5)
    elif kind == "dots":
        period = draws.between(0.4, 0.7)
        share = _ramp(0.3 - np.hypot(_within(x, period), _within(y, period)) / period, 12.0)
    elif kind == "noise":
        cells = smooth_noise(draws, 24, 24)
        places = [np.clip((axis + 1) * 12, 0, 23).astype(np.int64) for axis in (x, y)]
        share = cells[places[1], places[0]]
    elif kind == "gradient":
        share = _gradient(draws, (x + 1) / 2, (y + 1) / 2)
    return first + (second - first) * np.clip(share, 0.0, 1.0)[..., None]


def grain(draws: Draws, canvas: Canvas) -> None:
    """Add pixel noise, the only part of a scene that depends on the resolution."""
    strength = draws.between(0.02, 0.08)
    canvas.pixels[:] += strength * (draws.uniform(canvas.size, canvas.size, 1) - 0.5)


def smooth_noise(draws: Draws, size: int, cells: int) -> Floats:
    """Random values (size, size) from 0 to 1, smoothly interpolated from a grid of ``cells``."""
    values = draws.uniform(cells + 1, cells + 1)
    place = (np.arange(size, dtype=np.float32) + 0.5) * (cells / size)
    weights = np.clip(1 - np.abs(place[:, None] - np.arange(cells + 1, dtype=np.float32)), 0.0, 1.0)
    weights = weights * weights * (3 - 2 * weights)
    return weights @ values @ weights.T


def color(draws: Draws, lightness: tuple[float, float]) -> Floats:
    """A color of any hue whose mean channel value lies in the range ``lightness``."""
    hue, wanted = draws.uniform(3), draws.between(*lightness)
    mean = float(hue.mean())
    return hue * (wanted / mean) if wanted < mean else 1 - (1 - hue) * ((1 - wanted) / (1 - mean))


def _gradient(draws: Draws, x: Floats, y: Floats) -> Floats:
    angle = draws.between(0, 2 * math.pi)
    return 0.5 + (x - 0.5) * math.cos(angle) + (y - 0.5) * math.sin(angle)


def _stripes(draws: Draws, x: Floats, y: Floats, least: float, most: float) -> Floats:
    """Soft stripes, ``least`` to ``most`` per unit of length."""
    angle, count = draws.between(0, math.pi), draws.between(least, most)
    wave = np.sin(2 * math.pi * (count * (x * math.cos(angle) + y * math.sin(angle)) + draws.between(0, 1)))
    return _ramp(wave, 2.0)


def _ramp(value: Floats, steepness: float) -> Floats:
    return np.clip(0.5 + steepness * value, 0.0, 1.0)


def _within(value: Floats, period: float) -> Floats:
    """Distance to the nearest multiple of ``period``."""
    return value - period * np.round(value / period)


def _line(draws: Draws, canvas: Canvas, x: float, y: float, reach: float) -> None:
    _polyline(draws, canvas, x, y, 1.6 * reach, [draws.between(0, math.pi)])


def _scribble(draws: Draws, canvas: Canvas, x: float, y: float, reach: float) -> None:
    _polyline(draws, canvas, x, y, reach, [draws.between(0, 2 * math.pi) for _ in range(4)])


def _corner(draws: Draws, canvas: Canvas, x: float, y: float, reach: float) -> None:
    angle = draws.between(0, 2 * math.pi)
    _polyline(draws, canvas, x, y, reach, [angle, angle + math.pi / 2])


def _polyline(draws: Draws, canvas: Canvas, x: float, y: float, reach: float, angles: list[float]) -> None:
    """Paint a thin line around (x, y) that turns to each of ``angles`` after ``reach``."""
    paint, width = color(draws, CLUTTER), draws.between(0.006, 0.014)
    corners = [(0.0, 0.0)]
    for angle in angles:
        corners.append((corners[-1][0] + reach * math.cos(angle), corners[-1][1] + reach * math.sin(angle)))
    lows, highs = ([extreme(axis) for axis in zip(*corners, strict=True)] for extreme in (min, max))
    half = max(high - low for low, high in zip(lows, highs, strict=True)) / 2
    corners = [(px + x - (lows[0] + highs[0]) / 2, py + y - (lows[1] + highs[1]) / 2) for px, py in corners]
    window = canvas.window(*canvas.near(x, y, half + width))
    window.paint(coverage(polyline(window.x, window.y, corners) - width, 1 / canvas.size), paint)


def _fleck(draws: Draws, canvas: Canvas, x: float, y: float, reach: float) -> None:
    """Paint a small, elongated spot with an uneven edge."""
    paint, turn, phase = color(draws, CLUTTER), draws.between(0, math.pi), draws.between(0, 2 * math.pi)
    window = canvas.window(*canvas.near(x, y, 1.3 * reach))
    along, across = turned(window.x - x, window.y - y, turn)
    across = across * 2.2
    edge = 1 + 0.25 * np.sin(3 * np.arctan2(across, along) + phase)
    window.paint(coverage(np.hypot(along, across) - reach * edge, 2.2 / canvas.size), paint)


def turned(x: Floats, y: Floats, angle: float) -> tuple[Floats, Floats]:
    """Coordinates in a frame rotated by ``angle``."""
    cos, sin = math.cos(angle), math.sin(angle)
    return x * cos + y * sin, y * cos - x * sin
