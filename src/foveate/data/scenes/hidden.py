"""``scenes:hidden``: one small object of ten kinds, hidden among small shapes of none of the kinds.

All of them look alike but for their outlines, so that nothing tells early where the object is, and nearly all that
tells the label lies in a few patches. It matters which tokens a reduction keeps.

    hidden_scene(3, split="val").image
    open_data("scenes:hidden,count=500", "val")
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from foveate.data.images import DataError
from foveate.data.labels import Request, declared_labels
from foveate.data.scenes.drawn import DrawnScenes
from foveate.data.scenes.draws import Draws
from foveate.data.scenes.objects import DISTRACTORS
from foveate.data.scenes.painting import OBJECT, Canvas, color, coverage, grain, quiet_background, turned
from foveate.data.scenes.shapes import SHAPES, Shape
from foveate.data.source import ImageData, image_data
from foveate.data.splits import choose_split

KINDS = tuple(SHAPES)
COUNTS = {"train": 30_000, "val": 2_000}
SIZE = 96
SMALLEST = 64
"""Smallest side in pixels at which kinds can be told apart."""
CELLS = 4
"""Rows and columns of cells, each with at most one object."""
RADII = (0.085, 0.115)
"""Smallest and largest radius of the circle around an object, relative to the image's side."""
OTHERS = 5
"""Shapes of none of the kinds in a scene; in training at most as many, because easy scenes teach a model to begin."""
OWN_STREAM = 3
"""Keeps the random numbers apart from those of other scenes."""


@dataclass(frozen=True)
class HiddenScene:
    """One image with its label, and where the object is."""

    image: Image.Image
    label: int
    """Index in ``KINDS``."""
    mask: NDArray[np.bool_]  # (size, size), true on the object


def hidden_scene(index: int, *, split: str = "train", size: int = SIZE, seed: int = 0) -> HiddenScene:
    """Draw scene number ``index`` of a split. Ten consecutive scenes have each label once.

    Raises:
        DataError: if an argument is out of range or there is no such split.
    """
    HiddenScenes.check(size, seed)
    if index < 0:
        raise DataError(f"Scenes count from 0, got index={index}.")
    names = tuple(COUNTS)
    split = choose_split(split, names, "scenes:hidden")
    draws = Draws(seed, names.index(split), index, OWN_STREAM)
    label, canvas = index % len(KINDS), Canvas.empty(size)
    quiet_background(draws, canvas)
    cells = draws.order(CELLS**2)
    mask = _paint(draws, canvas, SHAPES[KINDS[label]], cells[0])
    others = draws.below(OTHERS + 1) if split == "train" else OTHERS
    for cell in cells[1 : 1 + others]:
        _paint(draws, canvas, draws.one_of(DISTRACTORS), cell)
    grain(draws, canvas)
    pixels = (np.clip(canvas.pixels, 0.0, 1.0) * 255 + 0.5).astype(np.uint8)
    return HiddenScene(Image.fromarray(pixels), label, mask)


def _paint(draws: Draws, canvas: Canvas, shape: Shape, cell: int) -> NDArray[np.bool_]:
    """Paint a shape into a cell and return where it is."""
    radius, side = draws.between(*RADII), 1 / CELLS
    room = side - 2 * radius
    x, y = (radius + place * side + room * draws.between(0, 1) for place in (cell % CELLS, cell // CELLS))
    rows, columns = canvas.near(x, y, radius)
    window = canvas.window(rows, columns)
    own = turned((window.x - x) / radius, (window.y - y) / radius, draws.between(0, 2 * math.pi))
    covered = coverage(shape(*own), 1 / (canvas.size * radius))
    window.paint(covered, color(draws, OBJECT))
    mask = np.zeros((canvas.size, canvas.size), dtype=bool)
    mask[rows, columns] = covered > 0.5
    return mask


@dataclass(frozen=True)
class HiddenScenes(DrawnScenes):
    """Scenes with one object among other shapes."""

    split: str = "train"
    count: int = COUNTS["train"]
    size: int = SIZE
    seed: int = 0

    source, counts, smallest = "scenes:hidden", COUNTS, SMALLEST

    def draw(self, index: int) -> HiddenScene:
        return hidden_scene(index, split=self.split, size=self.size, seed=self.seed)

    def mask(self, index: int) -> NDArray[np.bool_]:
        """Where the object is."""
        return self.scene(index).mask

    def as_data(self, request: Request | None = None) -> ImageData:
        labels = np.arange(self.count, dtype=np.int64) % len(KINDS)
        request = Request(self.split) if request is None else request
        return image_data(self, self.split, declared_labels(labels, KINDS, request, self.source), self.source)
