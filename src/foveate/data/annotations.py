"""One annotation of a COCO file: what of it can be used, and what was found wrong."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from foveate.data.coco_masks import Segmentation
from foveate.data.instances import Floats, KeypointNames

FEW = 3
RULES = {
    "image": "of images that are not listed were left out",
    "category": "with a category that is not listed were left out",
    "box": "with a box that is not four numbers, has no area or lies outside the image were left out",
    "clipped": "with a box that crosses the border were clipped to the image",
    "mask": "with an empty mask or one of another size were left out",
    "keypoints": "with another number of keypoints are treated as unlabeled",
    "outside": "with keypoints outside the image had those set to unlabeled",
}
"""What may be wrong with an annotation, and what is done about it."""
CROSSING = 1.0
"""Pixels by which a box may cross the border unmentioned: COCO's own boxes are rounded."""
PART_KEYS = ("keypoints", "foot_kpts", "face_kpts", "lefthand_kpts", "righthand_kpts")
"""Keys of COCO-WholeBody, in the order of its 133 keypoints."""


@dataclass(frozen=True)
class Annotation:
    """One object, in pixels of its image."""

    box: tuple[float, float, float, float]  # left, top, right, bottom
    label: int
    area: float
    crowd: bool
    segmentation: Segmentation | None = None
    keypoints: Floats | None = None  # (K, 3)


@dataclass
class Findings:
    """What was wrong with annotations: their ids by rule."""

    found: dict[str, list[Any]] = field(default_factory=dict)

    def add(self, rule: str, annotation: Mapping[str, Any]) -> None:
        """Count an annotation under one of ``RULES``."""
        self.found.setdefault(rule, []).append(annotation.get("id", "without id"))

    def count(self, rule: str) -> int:
        return len(self.found.get(rule, ()))

    def __bool__(self) -> bool:
        return bool(self.found)

    def __str__(self) -> str:
        return "; ".join(f"{len(ids)} annotations {RULES[rule]} (id {_few(ids)})" for rule, ids in self.found.items())


def _few(ids: list[Any]) -> str:
    return ", ".join(map(str, ids[:FEW])) + (", ..." if len(ids) > FEW else "")


def read_annotation(
    raw: Mapping[str, Any],
    images: Mapping[int, Mapping[str, Any]],
    labels: Mapping[int, int],
    kind: str,
    keypoints: KeypointNames | None,
    with_masks: bool,
    findings: Findings,
) -> Annotation | None:
    """What can be used of an annotation; None if it is left out."""
    image = images.get(raw["image_id"])
    if image is None:
        findings.add("image", raw)
        return None
    if raw["category_id"] not in labels:
        findings.add("category", raw)
        return None
    size = (int(image["height"]), int(image["width"]))
    box = _clipped_box(raw, size, findings)
    if box is None:
        findings.add("box", raw)
        return None
    segmentation = _segmentation(raw.get("segmentation"), size) if with_masks else None
    if with_masks and segmentation is None:
        findings.add("mask", raw)
        return None
    crowd = bool(raw.get("iscrowd", 0))
    points = None if keypoints is None else _keypoints(raw, kind, keypoints, size, findings)
    return Annotation(box, labels[raw["category_id"]], _area(raw.get("area"), box), crowd, segmentation, points)


def _area(given: Any, box: tuple[float, float, float, float]) -> float:
    """The annotation's area; that of its box if it has none."""
    usable = _is_number(given) and given > 0
    return float(given) if usable else (box[2] - box[0]) * (box[3] - box[1])


def _clipped_box(
    raw: Mapping[str, Any], size: tuple[int, int], findings: Findings
) -> tuple[float, float, float, float] | None:
    values = raw["bbox"]
    if not isinstance(values, list) or len(values) != 4 or not all(map(_is_number, values)):
        return None
    (left, top, wide, tall), (height, width) = values, size
    box = (max(0.0, left), max(0.0, top), min(float(width), left + wide), min(float(height), top + tall))
    if wide <= 0 or tall <= 0 or box[2] <= box[0] or box[3] <= box[1]:
        return None
    if max(-left, -top, left + wide - width, top + tall - height) > CROSSING:
        findings.add("clipped", raw)
    return box


def _segmentation(raw: Any, size: tuple[int, int]) -> Segmentation | None:
    """Polygons or run lengths that fit the image; None if there are none."""
    if isinstance(raw, dict):
        counts = raw.get("counts")
        fits = isinstance(raw.get("size"), list) and tuple(raw["size"]) == size
        if isinstance(counts, list):
            whole = all(type(run) is int and run >= 0 for run in counts)
            usable = whole and sum(counts) == size[0] * size[1] and sum(counts[1::2]) > 0
        else:
            usable = isinstance(counts, str) and bool(counts)  # decoded when the image is read
        return {"size": list(size), "counts": counts} if fits and usable else None
    if not isinstance(raw, list):
        return None
    polygons = [one for one in raw if isinstance(one, list) and len(one) >= 6 and len(one) % 2 == 0]
    arrays = tuple(np.array(one, dtype=np.float32) for one in polygons if all(map(_is_number, one)))
    return arrays if any(_polygon_area(one) > 0 for one in arrays) else None


def _polygon_area(points: Floats) -> float:
    x, y = points[0::2].astype(np.float64), points[1::2].astype(np.float64)
    return abs(float(np.dot(x, np.roll(y, 1)) - np.dot(y, np.roll(x, 1)))) / 2


def _keypoints(
    raw: Mapping[str, Any], kind: str, names: KeypointNames, size: tuple[int, int], findings: Findings
) -> Floats | None:
    """Keypoints (K, 3), those outside the image unlabeled; None if their number is another."""
    values = _joined_parts(raw) if kind == "wholebody" else raw.get("keypoints", [])
    whole = isinstance(values, list) and len(values) == 3 * len(names)
    if not whole or not all(map(_is_number, values)):
        findings.add("keypoints", raw)
        return None
    points = np.array(values, dtype=np.float32).reshape(-1, 3)
    inside = (points[:, 0] >= 0) & (points[:, 1] >= 0) & (points[:, 0] <= size[1]) & (points[:, 1] <= size[0])
    if (~inside & (points[:, 2] > 0)).any():
        findings.add("outside", raw)
    points[~inside | (points[:, 2] <= 0)] = 0
    return points


def _joined_parts(raw: Mapping[str, Any]) -> list[Any]:
    """The 133 keypoints of COCO-WholeBody; a part that is marked as not valid is unlabeled."""
    joined: list[Any] = []
    for key in PART_KEYS:
        values = raw.get(key)
        if not isinstance(values, list):
            return []
        valid = raw.get(f"{key.removesuffix('_kpts')}_valid", True)
        joined += values if valid else [0] * len(values)
    return joined


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
