"""The ten kinds of objects, each as a signed distance to its outline: negative inside, positive outside.

All fit into the unit circle around the origin, and none can be rotated or scaled into another. Distances are exact near
the outline, where smooth edges need them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np

from foveate.data.scenes.draws import Floats

Corner = tuple[float, float]
Shape = Callable[[Floats, Floats], Floats]


def disc(x: Floats, y: Floats) -> Floats:
    return np.hypot(x, y) - 0.9


def ring(x: Floats, y: Floats) -> Floats:
    return np.abs(np.hypot(x, y) - 0.74) - 0.22


def square(x: Floats, y: Floats) -> Floats:
    return _box(x, y, 0.7, 0.7)


def cross(x: Floats, y: Floats) -> Floats:
    return np.minimum(_box(x, y, 0.92, 0.29), _box(x, y, 0.29, 0.92))


def crescent(x: Floats, y: Floats) -> Floats:
    return np.maximum(np.hypot(x, y) - 0.96, 0.74 - np.hypot(x - 0.46, y))


def heart(x: Floats, y: Floats) -> Floats:
    """A square on its corner, with a half disc on each upper side."""
    half, y = 0.52, y - 0.1
    corner = _box((x + y) * math.sqrt(0.5), (x - y) * math.sqrt(0.5), half, half)
    side = half * math.sqrt(0.5)
    lobes = np.hypot(np.abs(x) - side, y + side) - half
    return np.minimum(corner, lobes)


def triangle(x: Floats, y: Floats) -> Floats:
    return _polygon(x, y, _around(3, 1.0))


def star(x: Floats, y: Floats) -> Floats:
    return _polygon(x, y, _around(10, 1.0, 0.42))


def arrow(x: Floats, y: Floats) -> Floats:
    half = [(1.0, 0.0), (0.15, 0.66), (0.15, 0.24), (-0.96, 0.24)]
    return _polygon(x, y, [*half, *((px, -py) for px, py in reversed(half[1:]))])


def hourglass(x: Floats, y: Floats) -> Floats:
    return _polygon(x, y, [(0.62, 0.78), (-0.62, 0.78), (-0.1, 0.0), (-0.62, -0.78), (0.62, -0.78), (0.1, 0.0)])


SHAPES: dict[str, Shape] = {
    "arrow": arrow,
    "crescent": crescent,
    "cross": cross,
    "disc": disc,
    "heart": heart,
    "hourglass": hourglass,
    "ring": ring,
    "square": square,
    "star": star,
    "triangle": triangle,
}
"""Shapes by name, in the order of labels."""


def polyline(x: Floats, y: Floats, corners: Sequence[Corner]) -> Floats:
    """Distance to a line through ``corners``."""
    return np.sqrt(np.minimum.reduce([_squared_distance(x, y, *ends) for ends in pairwise(corners)]))


def _box(x: Floats, y: Floats, width: float, height: float) -> Floats:
    """A rectangle of twice these sides. Distances outside its corners are slightly too small, which is not visible."""
    return np.maximum(np.abs(x) - width, np.abs(y) - height)


def _around(count: int, *radii: float) -> list[Corner]:
    """Corners around the origin, at each of ``radii`` in turn."""
    angles = [2 * math.pi * i / count for i in range(count)]
    return [
        (radii[i % len(radii)] * math.cos(angle), radii[i % len(radii)] * math.sin(angle))
        for i, angle in enumerate(angles)
    ]


def _polygon(x: Floats, y: Floats, corners: Sequence[Corner]) -> Floats:
    """Distance to the nearest edge, negative inside: where a ray from the point crosses an odd number of edges."""
    closed = [*corners, corners[0]]
    inside = np.zeros(x.shape, dtype=bool)
    for start, end in pairwise(closed):
        if start[1] != end[1]:
            slope = (end[0] - start[0]) / (end[1] - start[1])
            inside ^= ((start[1] > y) != (end[1] > y)) & (x < start[0] + slope * (y - start[1]))
    distance = polyline(x, y, closed)
    return np.where(inside, -distance, distance)


def _squared_distance(x: Floats, y: Floats, start: Corner, end: Corner) -> Floats:
    along_x, along_y = end[0] - start[0], end[1] - start[1]
    from_x, from_y = x - start[0], y - start[1]
    share = np.clip((from_x * along_x + from_y * along_y) / (along_x**2 + along_y**2), 0.0, 1.0)
    return (from_x - share * along_x) ** 2 + (from_y - share * along_y) ** 2
