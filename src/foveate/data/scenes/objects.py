"""``scenes:objects``: scenes with one to five objects, their boxes, masks and keypoints.

Objects of the ten kinds lie over and under each other and under distractors: shapes in the same colors and textures
that are of none of the kinds. Only the outline tells an object from a distractor, and part of it may be covered.

    objects_scene(3, split="val").instances.boxes
    open_data("scenes:objects,count=500,size=256", "val")
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from foveate.data.images import DataError, Sample
from foveate.data.instances import HIDDEN, VISIBLE, Instances, KeypointNames, tight_boxes
from foveate.data.labels import Request, check_same_classes
from foveate.data.scenes.drawn import DrawnScenes
from foveate.data.scenes.draws import Draws, Floats
from foveate.data.scenes.painting import Canvas, background, clutter, coverage, grain, texture, turned
from foveate.data.scenes.shapes import SHAPES, Shape
from foveate.data.source import InstanceData

KINDS = tuple(SHAPES)
COUNTS = {"train": 20_000, "val": 1_000}
SIZE = 256
SMALLEST = 64
"""Smallest side in pixels at which the smallest objects can be told apart."""
MOST = 5
"""Largest number of objects in a scene."""
RADII = (0.08, 0.25)
"""Smallest and largest radius of the circle around an object, relative to the image's side."""
LEAST_VISIBLE = 0.4
"""Share of an object that later shapes must leave visible."""
TRIES = 20
"""Places to try before a shape is left out: the scene is full."""
PLAN = 128
"""Side in pixels of the grid on which places are chosen, so that every resolution shows the same scene."""
KEYPOINTS = KeypointNames(
    names=("center", "top", "left", "bottom", "right"),
    limbs=((0, 1), (0, 2), (0, 3), (0, 4)),
    mirrored=(0, 1, 4, 3, 2),
    sigmas=(0.05,) * 5,  # ours: between a person's eyes (0.025) and hips (0.107)
)


def _ellipse(x: Floats, y: Floats) -> Floats:
    return np.hypot(x, 2 * y) / 2 - 0.47


def _bar(x: Floats, y: Floats) -> Floats:
    return np.maximum(np.abs(x) - 0.95, np.abs(y) - 0.26)


def _half_disc(x: Floats, y: Floats) -> Floats:
    return np.maximum(np.hypot(x, y) - 0.92, y - 0.1)


def _angle(x: Floats, y: Floats) -> Floats:
    return np.maximum(np.maximum(np.abs(x), np.abs(y)) - 0.68, np.minimum(-x, -y) + 0.2)


def _clover(x: Floats, y: Floats) -> Floats:
    return np.hypot(x, y) - 0.7 - 0.24 * np.cos(3 * np.arctan2(y, x))


DISTRACTORS: tuple[Shape, ...] = (_ellipse, _bar, _half_disc, _angle, _clover)
"""Shapes of none of the kinds, in an object's colors and textures."""


@dataclass(frozen=True)
class ObjectScene:
    """One image with its objects, from back to front."""

    image: Image.Image
    instances: Instances

    @property
    def semantic(self) -> NDArray[np.int64]:
        """The kind of every pixel, plus one; 0 for the background and distractors."""
        return self.instances.semantic()


@dataclass(frozen=True)
class _Placed:
    """A shape and its place, in lengths relative to the image's side."""

    shape: Shape
    label: int  # -1 for a distractor
    x: float
    y: float
    radius: float
    turn: float

    def own(self, x: Floats, y: Floats) -> tuple[Floats, Floats]:
        """The shape's own coordinates of points in the image."""
        return turned((x - self.x) / self.radius, (y - self.y) / self.radius, self.turn)

    def coverage(self, part: Canvas, size: int) -> Floats:
        """Share of each pixel that the shape covers, in a part of an image of this size."""
        return coverage(self.shape(*self.own(part.x, part.y)), 1 / (size * self.radius))


def objects_scene(index: int, *, split: str = "train", size: int = SIZE, seed: int = 0) -> ObjectScene:
    """Draw scene number ``index`` of a split.

    Raises:
        DataError: if an argument is out of range or there is no such split.
    """
    draws = ObjectScenes.draws_of(index, split, size, seed)
    placed, canvas = _plan(draws), Canvas.empty(size)
    background(draws, canvas)
    clutter(draws, canvas)
    masks = [_paint(draws, canvas, one) for one in placed]
    grain(draws, canvas)
    return ObjectScene(canvas.image(), _instances(placed, masks, size, index))


def _plan(draws: Draws) -> list[_Placed]:
    """Choose places from back to front; no shape covers too much of an earlier object."""
    labels = [draws.below(len(KINDS)) for _ in range(1 + draws.below(MOST))]
    labels += [-1] * (1 + draws.below(MOST - 1))
    order = np.argsort(draws.uniform(len(labels)), kind="stable")
    canvas = Canvas.empty(PLAN)
    placed: list[_Placed] = []
    masks: list[NDArray[np.bool_]] = []
    for label in (labels[i] for i in order):
        radius = RADII[0] * (RADII[1] / RADII[0]) ** draws.between(0, 1)
        shape = draws.one_of(DISTRACTORS) if label < 0 else SHAPES[KINDS[label]]
        for _ in range(TRIES):
            x, y = (draws.between(0.7 * radius, 1 - 0.7 * radius) for _ in range(2))
            one = _Placed(shape, label, x, y, radius, draws.between(0, 2 * math.pi))
            mask = one.coverage(canvas, PLAN) > 0.5
            if _leaves_enough([*placed, one], [*masks, mask]):
                placed, masks = [*placed, one], [*masks, mask]
                break
    return placed


def _leaves_enough(placed: list[_Placed], masks: list[NDArray[np.bool_]]) -> bool:
    rows = zip(placed, masks, _visible(masks), strict=True)
    return all(one.label < 0 or seen.sum() >= LEAST_VISIBLE * mask.sum() for one, mask, seen in rows)


def _visible(masks: list[NDArray[np.bool_]]) -> list[NDArray[np.bool_]]:
    """What later shapes leave of each mask."""
    return [mask & ~over for mask, over in zip(masks, _covering(masks), strict=True)]


def _covering(masks: list[NDArray[np.bool_]]) -> list[NDArray[np.bool_]]:
    """Where later shapes lie over each mask."""
    over = [np.zeros_like(masks[-1])]
    for mask in masks[:0:-1]:
        over.append(over[-1] | mask)
    return over[::-1]


def _paint(draws: Draws, canvas: Canvas, one: _Placed) -> NDArray[np.bool_]:
    """Paint a shape and return where it is."""
    rows, columns = canvas.near(one.x, one.y, one.radius)
    window = canvas.window(rows, columns)
    covered = one.coverage(window, canvas.size)
    window.paint(covered, texture(draws, *one.own(window.x, window.y)))
    mask = np.zeros((canvas.size, canvas.size), dtype=bool)
    mask[rows, columns] = covered > 0.5
    return mask


def _instances(placed: list[_Placed], masks: list[NDArray[np.bool_]], size: int, index: int) -> Instances:
    objects = [i for i, one in enumerate(placed) if one.label >= 0]
    seen, over = _visible(masks), _covering(masks)
    visible = np.stack([seen[i] for i in objects])
    return Instances(
        size=(size, size),
        image_id=index,
        boxes=tight_boxes(visible),
        labels=np.array([placed[i].label for i in objects], dtype=np.int64),
        areas=visible.sum(axis=(1, 2)).astype(np.float32),
        crowd=np.zeros(len(objects), dtype=bool),
        masks=visible,
        keypoints=np.stack([_keypoints(placed[i], over[i]) for i in objects]),
    )


def _keypoints(one: _Placed, over: NDArray[np.bool_]) -> NDArray[np.float32]:
    """Center and outermost points (5, 3) of the whole shape, in pixels; those outside the image are unlabeled."""
    offsets = np.linspace(-1, 1, 81, dtype=np.float32)
    x, y = one.x + one.radius * offsets[None, :], one.y + one.radius * offsets[:, None]
    row, column = np.nonzero(one.shape(*one.own(x, y)) < 0)
    points = np.stack([offsets[column], offsets[row]], axis=1)
    outermost = [points[_near_largest(sign * points[:, axis])].mean(axis=0) for axis, sign in SIDES]
    places = np.array([one.x, one.y]) + one.radius * np.stack([np.zeros(2), *outermost])
    found = np.zeros((len(KEYPOINTS), 3), dtype=np.float32)
    size = len(over)
    for point, place in zip(found, places * size, strict=True):
        column, row = (math.floor(c) for c in place)
        if 0 <= column < size and 0 <= row < size:
            point[:] = *place, HIDDEN if over[row, column] else VISIBLE
    return found


SIDES = ((1, -1), (0, -1), (1, 1), (0, 1))
"""Axis and direction of the outermost points: top, left, bottom, right."""


def _near_largest(values: Floats) -> NDArray[np.bool_]:
    """The points at a side, all of a flat one: their mean moves little when the shape turns a little."""
    return values >= values.max() - 0.06


@dataclass(frozen=True)
class ObjectScenes(DrawnScenes):
    """Scenes with several objects."""

    split: str = "train"
    count: int = COUNTS["train"]
    size: int = SIZE
    seed: int = 0

    source, counts, smallest, stream = "scenes:objects", COUNTS, SMALLEST, (1,)

    def draw(self, index: int) -> ObjectScene:
        return objects_scene(index, split=self.split, size=self.size, seed=self.seed)

    def mask(self, index: int) -> NDArray[np.bool_]:
        """Where any object is."""
        return self.scene(index).semantic > 0

    def as_data(self, request: Request | None = None) -> ObjectData:
        classes = KINDS
        if request is not None and request.classes is not None:
            check_same_classes(KINDS, request.classes, "scenes:objects", request.allow_empty_classes)
            classes = request.classes
        if request is not None and request.num_classes not in (None, len(classes)):
            raise DataError(f"scenes:objects has {len(classes)} classes, but num_classes={request.num_classes}.")
        return ObjectData(self, self.split, None, classes, len(classes), KEYPOINTS)


@dataclass(frozen=True)
class ObjectData(InstanceData):
    """Scenes of several objects."""

    pictures: ObjectScenes

    def read(self, index: int) -> Sample:
        scene = self.pictures.scene(index)  # once, for image and target
        return Sample(scene.image, self._numbered(scene.instances), self.pictures.name(index))

    def target(self, index: int) -> Instances:
        return self._numbered(self.pictures.scene(index).instances)

    def _numbered(self, instances: Instances) -> Instances:
        """The objects with their classes numbered as in ``classes``."""
        assert self.classes is not None
        numbers = np.array([self.classes.index(kind) for kind in KINDS], dtype=np.int64)
        return replace(instances, labels=numbers[instances.labels])
