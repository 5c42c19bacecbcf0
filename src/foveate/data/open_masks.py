"""Open images with masks by a short text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from foveate.data.coco import is_coco
from foveate.data.images import DataError, Sample
from foveate.data.labels import Request
from foveate.data.mask_folder import open_mask_folder
from foveate.data.mask_tables import open_mask_table
from foveate.data.masks import IGNORED, MaskData, MaskRules
from foveate.data.open import open_instances
from foveate.data.source import ImageData, InstanceData

BACKGROUND = "background"


@dataclass(frozen=True)
class SemanticInstances(ImageData):
    """Images with instance masks, whose targets are the class of each pixel; 0 is the background."""

    whole: InstanceData

    @property
    def labeled(self) -> bool:
        return True

    def read(self, index: int) -> Sample:
        sample = self.whole.read(index)
        mask = sample.target.semantic()
        return Sample(sample.image, np.asarray(mask, dtype=np.int64), sample.name)


def open_masks(
    spec: str | Path,
    split: str,
    *,
    rules: MaskRules | None = None,
    classes: Sequence[str] | None = None,
    num_classes: int | None = None,
    allow_empty_classes: bool = False,
    label_column: str | None = None,
    **options: Any,
) -> ImageData:
    """Open one split of images with masks.

    Args:
        spec: a folder of images and masks, ``hf:NAME_OR_PATH``, or data with instance masks such as ``scenes:objects``.
        split: name of the split, such as ``"train"``, ``"val"`` or ``"all"``.
        rules: how numbers in masks become classes.
        classes: class names in order.
        num_classes: number of classes, for data without names.
        allow_empty_classes: accepted as for other data; masks may always lack classes.
        label_column: for ``hf:``, the column of masks.
        options: none; others than those above are refused.

    Raises:
        DataError: if the data do not exist or cannot be used.
    """
    text, rules = str(spec), rules or MaskRules()
    request = Request(split, None if classes is None else tuple(classes), num_classes, allow_empty_classes)
    if options:
        raise DataError(f"{text} does not take {next(iter(options))}: segmentation reads folders, hf: and COCO data.")
    if text.startswith("hf:"):
        column = replace(rules, masks=rules.masks or label_column or "")
        return open_mask_table(text.removeprefix("hf:"), request, column)
    if text.startswith("scenes:") or _holds_coco(Path(text)):
        return _semantic(open_instances(text, split, "instances", with_masks=True), request, text)
    if not Path(text).is_dir():
        what = "is not a folder" if Path(text).exists() else "does not exist"
        raise DataError(
            f"{text} {what}. Segmentation takes a folder of images and masks, hf: data with an image column of masks, "
            "a COCO folder, or scenes:objects."
        )
    return open_mask_folder(Path(text), request, rules)


def _holds_coco(path: Path) -> bool:
    """Whether annotations are COCO's JSON; ADE20K has a folder of that name too, with masks in it."""
    return is_coco(path) and (path.suffix == ".json" or any((path / "annotations").glob("*.json")))


def _semantic(data: InstanceData, request: Request, text: str) -> ImageData:
    classes = (BACKGROUND, *(data.classes or ()))
    if request.classes is not None and request.classes != classes:
        raise DataError(f"{text} has the classes {', '.join(classes[:3])}, ..., and others were expected.")
    return SemanticInstances(data.pictures, data.split, None, classes, len(classes), data)


__all__ = ["IGNORED", "MaskData", "MaskRules", "SemanticInstances", "open_masks"]
