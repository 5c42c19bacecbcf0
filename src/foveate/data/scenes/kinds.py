"""``scenes:``: scenes with one object, whose kind is the label.

The object is of ten kinds, at a random position, size and rotation, in random colors and texture, over a cluttered
background. Only its shape tells its kind.

    scene(3, split="val").image
    open_data("scenes:count=500,size=96", "val")
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from foveate.data.labels import Request, declared_labels
from foveate.data.scenes.drawn import DrawnScenes
from foveate.data.scenes.draws import Draws
from foveate.data.scenes.painting import Canvas, background, clutter, coverage, grain, texture, turned
from foveate.data.scenes.shapes import SHAPES
from foveate.data.source import ImageData, image_data

KINDS = tuple(SHAPES)
"""Kinds of objects, in the order of labels."""
COUNTS = {"train": 30_000, "val": 2_000}
"""Splits and their default number of scenes."""
SIZE = 96
SMALLEST = 32
"""Smallest side in pixels at which kinds can be told apart."""
RADII = (0.17, 0.32)
"""Smallest and largest radius of the circle around an object, relative to the image's side."""


@dataclass(frozen=True)
class Scene:
    """One image with its label and mask."""

    image: Image.Image
    label: int
    """Index in the names of the labels: ``KINDS``, or ``NUMBERS`` where objects are counted."""
    mask: NDArray[np.bool_]  # (size, size), true on what the label is about


def scene(index: int, *, split: str = "train", size: int = SIZE, seed: int = 0) -> Scene:
    """Draw scene number ``index`` of a split. Ten consecutive scenes show each kind once.

    Raises:
        DataError: if an argument is out of range or there is no such split.
    """
    draws = Scenes.draws_of(index, split, size, seed)
    label, canvas = index % len(KINDS), Canvas.empty(size)
    background(draws, canvas)
    clutter(draws, canvas)
    mask = _object(draws, canvas, label)
    grain(draws, canvas)
    return Scene(canvas.image(), label, mask)


def _object(draws: Draws, canvas: Canvas, label: int) -> NDArray[np.bool_]:
    """Paint the object and return where it is."""
    radius = draws.between(*RADII)
    x, y = (draws.between(radius, 1 - radius) for _ in range(2))
    rows, columns = canvas.near(x, y, radius)
    window = canvas.window(rows, columns)
    turn = draws.between(0, 2 * math.pi)
    along, across = turned((window.x - x) / radius, (window.y - y) / radius, turn)
    covered = coverage(SHAPES[KINDS[label]](along, across), 1 / (canvas.size * radius))
    window.paint(covered, texture(draws, along, across))
    mask = np.zeros((canvas.size, canvas.size), dtype=bool)
    mask[rows, columns] = covered > 0.5
    return mask


@dataclass(frozen=True)
class Scenes(DrawnScenes):
    """Scenes with one object."""

    split: str = "train"
    count: int = COUNTS["train"]
    size: int = SIZE
    seed: int = 0

    source, counts, smallest = "scenes:", COUNTS, SMALLEST
    labels: ClassVar[tuple[str, ...]] = KINDS
    """Names of the labels, which take turns: scene number i has the label i modulo their number."""

    def draw(self, index: int) -> Scene:
        return scene(index, split=self.split, size=self.size, seed=self.seed)

    def mask(self, index: int) -> NDArray[np.bool_]:
        """Mask of what this scene's label is about."""
        return self.scene(index).mask

    def as_data(self, request: Request | None = None) -> ImageData:
        labels = np.arange(self.count, dtype=np.int64) % len(self.labels)
        request = Request(self.split) if request is None else request
        return image_data(self, self.split, declared_labels(labels, self.labels, request, self.source), self.source)
