"""Box and mask AP of detections, over images that may come from several processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from foveate.data.coco_masks import run_lengths
from foveate.data.instances import Instances
from foveate.methods.validation import shown
from foveate.models.dense.detectors import pasted_masks
from foveate.tasks.base import Metrics
from foveate.tasks.coco_evaluation import average_precision

Row = dict[str, Any]


@dataclass(frozen=True)
class Truth:
    """What is known of an image that is evaluated: its objects as COCO writes them, in pixels of the stored image."""

    image_id: int
    size: tuple[int, int]  # height, width
    factors: tuple[float, float]
    """Factors by which the model's image is wider and higher than the stored one."""
    rows: tuple[Row, ...] | None
    """None if the objects are unknown."""


def truth_of(instances: Instances, factors: tuple[float, float]) -> Truth:
    """The objects of an image as COCO's rows."""
    rows = []
    for number in range(len(instances)):
        left, top, right, bottom = (float(side) for side in instances.boxes[number])
        row: Row = {
            "image_id": instances.image_id,
            "category_id": int(instances.labels[number]),
            "bbox": [left, top, right - left, bottom - top],
            "area": float(instances.areas[number]),
            "iscrowd": int(instances.crowd[number]),
        }
        if instances.masks is not None:
            row["segmentation"] = run_lengths(instances.masks[number])
        rows.append(row)
    return Truth(instances.image_id, instances.size, factors, tuple(rows))


def restored(found: Mapping[str, Tensor], size: tuple[int, int], factors: tuple[float, float]) -> dict[str, Tensor]:
    """Detections in pixels of the stored image, clipped to it, with whole masks (n, height, width)."""
    height, width = size
    boxes = found["boxes"].detach().cpu().float() / torch.tensor([*factors, *factors])
    boxes = torch.minimum(boxes.clamp(min=0), torch.tensor([width, height, width, height], dtype=torch.float32))
    kept = ((boxes[:, 2:] - boxes[:, :2]) > 0).all(dim=1)
    whole = {"boxes": boxes[kept], **{name: found[name].detach().cpu()[kept] for name in ("labels", "scores")}}
    if "masks" in found:
        whole["masks"] = pasted_masks(found["masks"].detach().cpu()[kept], whole["boxes"], size)
    return whole


def rows_of(found: Mapping[str, Tensor], truth: Truth) -> list[Row]:
    """Detections as COCO's rows."""
    whole = restored(found, truth.size, truth.factors)
    rows: list[Row] = []
    for number, box in enumerate(whole["boxes"].tolist()):
        left, top, right, bottom = box
        row: Row = {
            "image_id": truth.image_id,
            "category_id": int(whole["labels"][number]),
            "bbox": [left, top, right - left, bottom - top],
            "score": float(whole["scores"][number]),
        }
        if "masks" in whole:
            row["segmentation"] = run_lengths(whole["masks"][number].numpy())
        rows.append(row)
    return rows


@dataclass
class DetectionMetrics(Metrics):
    """COCO's AP of boxes, and of masks where the model predicts them."""

    with_masks: bool = False
    seen: list[Row] = field(default_factory=list)
    """Id, height and width of each image."""
    truth: list[Row] = field(default_factory=list)
    found: list[Row] = field(default_factory=list)

    @property
    def images(self) -> int:  # type: ignore[override]
        return len(self.seen)

    def update(
        self, prediction: Sequence[Mapping[str, Tensor]], targets: Sequence[Truth], reference: Any = None
    ) -> None:
        known = [(one, truth) for one, truth in zip(prediction, targets, strict=True)]
        sizes = [{"id": t.image_id, "height": t.size[0], "width": t.size[1]} for _, t in known]
        self.seen = [*self.seen, *sizes]
        self.truth = [*self.truth, *(row for _, truth in known for row in truth.rows or ())]
        self.found = [*self.found, *(row for one, t in known if t.rows is not None for row in rows_of(one, t))]

    def merge(self, other: DetectionMetrics) -> None:
        self.seen, self.truth = [*self.seen, *other.seen], [*self.truth, *other.truth]
        self.found = [*self.found, *other.found]

    def compute(self) -> dict[str, float]:
        boxes = average_precision(self.seen, self.truth, self.found, "bbox")
        figures = {f"box_{name}": value for name, value in boxes.items()}
        if self.with_masks:
            masks = average_precision(self.seen, self.truth, self.found, "segm")
            figures |= {f"mask_{name}": value for name, value in masks.items()}
        return figures

    def state(self) -> dict[str, Any]:
        return {"with_masks": self.with_masks, "seen": self.seen, "truth": self.truth, "found": self.found}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> DetectionMetrics:
        found = cls(**state)
        for name in ("seen", "truth", "found"):
            rows = getattr(found, name)
            if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
                raise ValueError(f"{name} must be a list of rows, got {shown(rows)}.")
        ids = {row.get("id") for row in found.seen}
        if any(row.get("image_id") not in ids for row in (*found.truth, *found.found)):
            raise ValueError("An object is of an image that was not seen.")
        return found
