"""``scenes:counting``: scenes with many small objects; the label is how many of them are warm.

One to twenty warm objects, from red to yellow, lie among cool ones, from green to blue, over a cluttered background.
Every object covers about one patch of the built-in model and counts: a method that loses tokens blindly loses count,
and one that merges only the background does not.

    counting_scene(3, split="val").image
    open_data("scenes:counting,count=500,size=96", "val")
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from foveate.data.scenes.draws import Draws, Floats
from foveate.data.scenes.kinds import KINDS, SIZE, Scene, Scenes
from foveate.data.scenes.painting import Canvas, background, clutter, coverage, grain, turned
from foveate.data.scenes.shapes import SHAPES

NUMBERS = tuple(str(number) for number in range(1, 21))
"""Labels: how many objects are warm."""
COOL = (2, 8)
"""Smallest and largest number of cool objects."""
CELLS = 6
"""Objects lie in different cells of a grid with this many rows, so that none hides another."""
RADII = (0.04, 0.055)
"""Smallest and largest radius of the circle around an object, relative to the image's side."""
WARM_COLOR = ((0.8, 1.0), (0.3, 0.7), (0.05, 0.3))
COOL_COLOR = ((0.05, 0.3), (0.5, 0.85), (0.6, 1.0))
"""Ranges of red, green and blue."""


def counting_scene(index: int, *, split: str = "train", size: int = SIZE, seed: int = 0) -> Scene:
    """Draw scene number ``index`` of a split. Twenty consecutive scenes have each label once.

    Raises:
        DataError: if an argument is out of range or there is no such split.
    """
    draws = CountingScenes.draws_of(index, split, size, seed)
    label, canvas = index % len(NUMBERS), Canvas.empty(size)
    background(draws, canvas)
    clutter(draws, canvas)
    warm, cool = label + 1, COOL[0] + draws.below(COOL[1] - COOL[0] + 1)
    places = np.argsort(draws.uniform(CELLS**2), kind="stable")[: warm + cool]
    mask = np.zeros((size, size), dtype=bool)
    for number, place in enumerate(places.tolist()):
        _object(draws, canvas, place, mask if number < warm else None)
    grain(draws, canvas)
    return Scene(canvas.image(), label, mask)


def _object(draws: Draws, canvas: Canvas, place: int, mask: NDArray[np.bool_] | None) -> None:
    """Paint an object in a cell of the grid: a warm one into ``mask`` too, a cool one if there is none."""
    radius = draws.between(*RADII)
    x, y = (cell / CELLS + draws.between(radius, 1 / CELLS - radius) for cell in (place % CELLS, place // CELLS))
    rows, columns = canvas.near(x, y, radius)
    window = canvas.window(rows, columns)
    along, across = turned((window.x - x) / radius, (window.y - y) / radius, draws.between(0, 2 * math.pi))
    covered = coverage(SHAPES[draws.one_of(KINDS)](along, across), 1 / (canvas.size * radius))
    window.paint(covered, _color(draws, COOL_COLOR if mask is None else WARM_COLOR))
    if mask is not None:
        mask[rows, columns] |= covered > 0.5


def _color(draws: Draws, ranges: tuple[tuple[float, float], ...]) -> Floats:
    return np.array([draws.between(*channel) for channel in ranges], dtype=np.float32)


@dataclass(frozen=True)
class CountingScenes(Scenes):
    """Scenes with objects to count."""

    source, smallest, labels, stream = "scenes:counting", 96, NUMBERS, (2,)

    def draw(self, index: int) -> Scene:
        return counting_scene(index, split=self.split, size=self.size, seed=self.seed)
