"""The objects of one image: boxes, classes, masks and keypoints, as detection, segmentation and pose read them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
UNLABELED, HIDDEN, VISIBLE = 0, 1, 2
"""Visibility of a keypoint, as COCO numbers it: not labeled, labeled but covered, visible."""


@dataclass(frozen=True)
class Instances:
    """The objects of one image, in pixels of the stored image."""

    size: tuple[int, int]  # height, width
    image_id: int
    boxes: Floats  # (n, 4) left, top, right, bottom
    labels: NDArray[np.int64]  # (n,)
    areas: Floats  # (n,) pixels of each object, by which evaluators sort small from large
    crowd: NDArray[np.bool_]  # (n,) a region of many objects, which is neither found nor missed
    masks: NDArray[np.bool_] | None = None  # (n, height, width)
    keypoints: Floats | None = None  # (n, K, 3) x, y, visibility

    def __len__(self) -> int:
        return len(self.boxes)

    def semantic(self, background: int = 0) -> NDArray[np.int64]:
        """Return the class of every pixel (height, width): 1 + the object's class, later objects over earlier ones."""
        found = np.full(self.size, background, dtype=np.int64)
        for label, mask in zip(self.labels, () if self.masks is None else self.masks, strict=True):
            found[mask] = 1 + label
        return found


@dataclass(frozen=True)
class KeypointNames:
    """The keypoints of a kind of object: their names, the limbs of a skeleton, and which swap in a mirror."""

    names: tuple[str, ...]
    limbs: tuple[tuple[int, int], ...]  # pairs of keypoints that a skeleton connects
    mirrored: tuple[int, ...]  # for each keypoint, the one that it becomes in a mirror
    sigmas: tuple[float, ...]
    """Spread of human annotations, relative to the object's size: what OKS divides distances by."""

    def __len__(self) -> int:
        return len(self.names)


def tight_boxes(masks: NDArray[np.bool_]) -> Floats:
    """Return the smallest box (n, 4) around each mask (n, height, width); an empty mask has a box of zeros."""
    boxes = np.zeros((len(masks), 4), dtype=np.float32)
    for box, mask in zip(boxes, masks, strict=True):
        rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
        if len(rows):
            box[:] = columns[0], rows[0], columns[-1] + 1, rows[-1] + 1
    return boxes
