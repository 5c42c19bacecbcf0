"""``scenes:crowd``: scenes with nine small objects; the label is the kind that most of them are.

No single object tells the label, and neighbors in number differ by one or two objects. A model must look at all of
them, so that it matters which tokens a reduction keeps, and that merged tokens weigh as much as their members.

    crowd_scene(3, split="val").image
    open_data("scenes:crowd,count=500", "val")
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
from foveate.data.scenes.painting import OBJECT, Canvas, color, coverage, grain, quiet_background, turned
from foveate.data.scenes.shapes import SHAPES
from foveate.data.source import ImageData, image_data
from foveate.data.splits import choose_split

KINDS = tuple(SHAPES)
COUNTS = {"train": 30_000, "val": 2_000}
SIZE = 80
SMALLEST = 64
"""Smallest side in pixels at which kinds can be told apart."""
CELLS = 4
"""Rows and columns of cells, each with at most one object."""
RADII = (0.085, 0.115)
"""Smallest and largest radius of the circle around an object, relative to the image's side."""
GROUPS = ((5, 2, 2), (4, 3, 2), (5, 3, 1), (4, 2, 2, 1), (4, 3, 1, 1), (3, 2, 2, 2))
"""How many objects of each kind a scene shows; the first are of the kind that is its label."""
OWN_STREAM = 2
"""Keeps the random numbers apart from those of other scenes."""


@dataclass(frozen=True)
class CrowdScene:
    """One image with its label, and where the objects of that kind are."""

    image: Image.Image
    label: int
    """Index in ``KINDS``."""
    mask: NDArray[np.bool_]  # (size, size), true on objects of the most frequent kind


def crowd_scene(index: int, *, split: str = "train", size: int = SIZE, seed: int = 0) -> CrowdScene:
    """Draw scene number ``index`` of a split. Ten consecutive scenes have each label once.

    Raises:
        DataError: if an argument is out of range or there is no such split.
    """
    CrowdScenes.check(size, seed)
    if index < 0:
        raise DataError(f"Scenes count from 0, got index={index}.")
    names = tuple(COUNTS)
    draws = Draws(seed, names.index(choose_split(split, names, "scenes:crowd")), index, OWN_STREAM)
    label, canvas = index % len(KINDS), Canvas.empty(size)
    quiet_background(draws, canvas)
    mask = np.zeros((size, size), dtype=bool)
    for kind, cell in zip(_kinds(draws, label), draws.order(CELLS**2), strict=False):
        covered = _paint(draws, canvas, kind, cell)
        mask |= covered & (kind == label)
    grain(draws, canvas)
    pixels = (np.clip(canvas.pixels, 0.0, 1.0) * 255 + 0.5).astype(np.uint8)
    return CrowdScene(Image.fromarray(pixels), label, mask)


def _kinds(draws: Draws, label: int) -> list[int]:
    """The kind of every object, the most frequent first."""
    others = [kind for kind in draws.order(len(KINDS)) if kind != label]
    counts = draws.one_of(GROUPS)
    return [kind for kind, count in zip([label, *others], counts, strict=False) for _ in range(count)]


def _paint(draws: Draws, canvas: Canvas, kind: int, cell: int) -> NDArray[np.bool_]:
    """Paint an object into a cell and return where it is."""
    radius, side = draws.between(*RADII), 1 / CELLS
    room = side - 2 * radius
    x, y = (radius + place * side + room * draws.between(0, 1) for place in (cell % CELLS, cell // CELLS))
    rows, columns = canvas.near(x, y, radius)
    window = canvas.window(rows, columns)
    own = turned((window.x - x) / radius, (window.y - y) / radius, draws.between(0, 2 * math.pi))
    covered = coverage(SHAPES[KINDS[kind]](*own), 1 / (canvas.size * radius))
    window.paint(covered, color(draws, OBJECT))
    mask = np.zeros((canvas.size, canvas.size), dtype=bool)
    mask[rows, columns] = covered > 0.5
    return mask


@dataclass(frozen=True)
class CrowdScenes(DrawnScenes):
    """Scenes with nine objects."""

    split: str = "train"
    count: int = COUNTS["train"]
    size: int = SIZE
    seed: int = 0

    source, counts, smallest = "scenes:crowd", COUNTS, SMALLEST

    def draw(self, index: int) -> CrowdScene:
        return crowd_scene(index, split=self.split, size=self.size, seed=self.seed)

    def mask(self, index: int) -> NDArray[np.bool_]:
        """Where the objects are that give this scene its label."""
        return self.scene(index).mask

    def as_data(self, request: Request | None = None) -> ImageData:
        labels = np.arange(self.count, dtype=np.int64) % len(KINDS)
        request = Request(self.split) if request is None else request
        return image_data(self, self.split, declared_labels(labels, KINDS, request, self.source), self.source)
