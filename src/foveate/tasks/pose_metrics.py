"""OKS AP and AR of keypoints, of the whole and of parts of a body."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from foveate.data.instances import Instances
from foveate.methods.validation import shown
from foveate.tasks.base import Metrics
from foveate.tasks.coco_evaluation import average_precision
from foveate.tasks.heatmaps import Crop, decode

Row = dict[str, Any]


@dataclass(frozen=True)
class PersonTruth:
    """What is known of a person that is evaluated."""

    crop: Crop
    instance: Instances | None
    """One object, in pixels of the stored image; None if unknown."""


@dataclass
class PoseMetrics(Metrics):
    """COCO's AP and AR of keypoints, with boxes from the annotations."""

    sigmas: list[float] = field(default_factory=list)
    parts: dict[str, list[int]] = field(default_factory=dict)
    """First and last keypoint of each part that is judged; the figures of an unnamed part have no prefix of it."""
    stride: int = 4
    truth: list[Row] = field(default_factory=list)
    found: list[Row] = field(default_factory=list)
    people: int = 0

    @property
    def images(self) -> int:  # type: ignore[override]
        return self.people

    def update(self, prediction: Tensor, targets: Sequence[PersonTruth], reference: Any = None) -> None:
        places, scores = (value.cpu().numpy() for value in decode(prediction, self.stride))
        known = [i for i, target in enumerate(targets) if target.instance is not None]
        self.people += len(targets)
        self.truth = [*self.truth, *(_truth(targets[i]) for i in known)]
        self.found = [*self.found, *(_found(targets[i], places[i], scores[i]) for i in known)]

    def merge(self, other: PoseMetrics) -> None:
        self.people += other.people
        self.truth, self.found = [*self.truth, *other.truth], [*self.found, *other.found]

    def compute(self) -> dict[str, float]:
        figures: dict[str, float] = {}
        images = [{"id": number, "height": 1, "width": 1} for number in sorted({row["image_id"] for row in self.truth})]
        for name, (first, end) in self.parts.items():
            truth, found = ([_part(row, first, end) for row in rows] for rows in (self.truth, self.found))
            values = average_precision(images, truth, found, "keypoints", self.sigmas[first:end])
            figures |= {f"{name}_{figure}": value for figure, value in values.items()}
        return figures

    def state(self) -> dict[str, Any]:
        return dict(vars(self))

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> PoseMetrics:
        found = cls(**state)
        for name in ("truth", "found", "sigmas"):
            if not isinstance(getattr(found, name), list):
                raise ValueError(f"{name} must be a list, got {shown(getattr(found, name))}.")
        if len(found.truth) != len(found.found) or len(found.truth) > found.people:
            raise ValueError(f"There are {len(found.truth)} persons with keypoints, but {len(found.found)} were found.")
        return found


def _truth(target: PersonTruth) -> Row:
    person = target.instance
    assert person is not None
    assert person.keypoints is not None
    left, top, right, bottom = (float(side) for side in person.boxes[0])
    return {
        "image_id": person.image_id,
        "category_id": 1,
        "bbox": [left, top, right - left, bottom - top],
        "area": float(person.areas[0]),
        "iscrowd": 0,
        "keypoints": [float(value) for value in person.keypoints[0].reshape(-1)],
    }


def _found(target: PersonTruth, places: NDArray[np.floating], scores: NDArray[np.floating]) -> Row:
    """One person, scored by the mean height of its heatmaps."""
    assert target.instance is not None
    points = target.crop.to_image(places)
    values = np.concatenate([points, scores[:, None]], axis=1)
    return {
        "image_id": target.instance.image_id,
        "category_id": 1,
        "score": float(scores.mean()),
        "keypoints": [float(value) for value in values.reshape(-1)],
    }


def _part(row: Row, first: int, end: int) -> Row:
    """A row with some of its keypoints."""
    values = row["keypoints"][3 * first : 3 * end]
    return row | {"keypoints": values, "num_keypoints": sum(value > 0 for value in values[2::3])}
