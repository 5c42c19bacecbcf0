"""Scenes: images drawn by foveate, for demonstrations and tests without other images.

Each shows one object of ten kinds, at a random position, size and rotation, in random colors and texture, over a
cluttered background. Only its shape tells its kind. A scene depends only on (seed, split, index), can be drawn at any
resolution, and has the object's mask, so that one can measure how many of a model's tokens lie on the object.

    scene(3, split="val").image
    open_data("scenes:count=500,size=96", "val")
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
from foveate.data.scenes.objects import ObjectScenes
from foveate.data.scenes.painting import Canvas, background, clutter, coverage, grain, texture, turned
from foveate.data.scenes.shapes import SHAPES
from foveate.data.source import ImageData, image_data
from foveate.data.splits import choose_split

KINDS = tuple(SHAPES)
"""Kinds of objects, in the order of labels."""
COUNTS = {"train": 30_000, "val": 2_000}
"""Splits and their default number of scenes."""
SIZE = 96
SMALLEST = 32
"""Smallest side in pixels at which kinds can be told apart."""
RADII = (0.17, 0.32)
"""Smallest and largest radius of the circle around an object, relative to the image's side."""
OPTIONS = ("count", "size", "seed")


@dataclass(frozen=True)
class Scene:
    """One image with its label and mask."""

    image: Image.Image
    label: int
    """Index in ``KINDS``."""
    mask: NDArray[np.bool_]  # (size, size), true on the object


def scene(index: int, *, split: str = "train", size: int = SIZE, seed: int = 0) -> Scene:
    """Draw scene number ``index`` of a split. Ten consecutive scenes show each kind once.

    Raises:
        DataError: if an argument is out of range or there is no such split.
    """
    Scenes.check(size, seed)
    if index < 0:
        raise DataError(f"Scenes count from 0, got index={index}.")
    names = tuple(COUNTS)
    draws = Draws(seed, names.index(choose_split(split, names, "scenes:")), index)
    label, canvas = index % len(KINDS), Canvas.empty(size)
    background(draws, canvas)
    clutter(draws, canvas)
    mask = _object(draws, canvas, label)
    grain(draws, canvas)
    pixels = (np.clip(canvas.pixels, 0.0, 1.0) * 255 + 0.5).astype(np.uint8)
    return Scene(Image.fromarray(pixels), label, mask)


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

    def draw(self, index: int) -> Scene:
        return scene(index, split=self.split, size=self.size, seed=self.seed)

    def mask(self, index: int) -> NDArray[np.bool_]:
        """Mask of the object of this scene."""
        return self.scene(index).mask

    def as_data(self, request: Request | None = None) -> ImageData:
        labels = np.arange(self.count, dtype=np.int64) % len(KINDS)
        request = Request(self.split) if request is None else request
        return image_data(self, self.split, declared_labels(labels, KINDS, request, "scenes:"), "scenes:")


SPECIAL: dict[str, type[Scenes | ObjectScenes]] = {"objects": ObjectScenes}
"""Other scenes, by the word that comes first."""


def open_scenes(text: str, request: Request) -> ImageData:
    """Open scenes with the options in ``text``: ``objects,count=500,size=96,seed=1``, each of them optional."""
    first, _, rest = text.partition(",")
    kind = SPECIAL.get(first.strip(), Scenes)
    given = [_option(part) for part in (text if kind is Scenes else rest).split(",") if part.strip()]
    options = dict(given)
    if len(options) < len(given):
        raise DataError(f"scenes:{text} sets an option twice. Set it once.")
    split = choose_split(request.split, kind.counts, kind.source)
    return kind(split, **{"count": kind.counts[split], **options}).as_data(request)


def _option(text: str) -> tuple[str, int]:
    name, _, value = (part.strip() for part in text.partition("="))
    if name not in OPTIONS:
        raise DataError(f"scenes: has no option {name!r}. Write scenes:count=500,size=96,seed=1, or a part of it.")
    try:
        return name, int(value)
    except ValueError:
        raise DataError(f"scenes: {name} takes a whole number; got {value!r}.") from None
