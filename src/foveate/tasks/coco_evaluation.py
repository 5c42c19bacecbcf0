"""Average precision and recall as COCO defines them, by faster-coco-eval."""

from __future__ import annotations

import copy
import importlib
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

Kind = Literal["bbox", "segm", "keypoints"]
Row = dict[str, Any]
"""An annotation or a detection, as in COCO's files."""
DETECTION = {"ap": 0, "ap50": 1, "ap75": 2, "ap_small": 3, "ap_medium": 4, "ap_large": 5, "ar": 8}
KEYPOINTS = {"ap": 0, "ap50": 1, "ap75": 2, "ar": 5}
"""Where faster-coco-eval keeps each figure."""


def evaluator() -> Any:
    """faster-coco-eval.

    Raises:
        ImportError: if it is not installed.
    """
    try:
        return importlib.import_module("faster_coco_eval")
    except ImportError as error:
        raise ImportError("Average precision needs faster-coco-eval: pip install foveate[dense]") from error


def average_precision(
    images: Sequence[Mapping[str, Any]],
    truth: Sequence[Row],
    found: Sequence[Row],
    kind: Kind,
    sigmas: Sequence[float] | None = None,
) -> dict[str, float]:
    """AP and AR in percent, over all classes that have objects.

    Args:
        images: ``id``, ``height`` and ``width`` of every image that was evaluated.
        truth: annotations with ``image_id``, ``category_id``, ``bbox``, ``area``, ``iscrowd``, and ``segmentation`` or
            ``keypoints``.
        found: detections with ``image_id``, ``category_id``, ``score`` and the same.
        kind: what is compared.
        sigmas: for keypoints, the spread of each.

    Returns:
        The figures by name, without those that no object counts for, such as ``ap_small`` without small objects.
    """
    if not any(_counts(row, kind) for row in truth):
        return {}
    library = evaluator()
    rows = [{**copy.copy(row), "id": number} for number, row in enumerate(truth, start=1)]
    categories = [{"id": number, "name": str(number)} for number in sorted({row["category_id"] for row in rows})]
    known = library.COCO({"images": list(map(dict, images)), "annotations": rows, "categories": categories})
    listed = {one["id"] for one in categories}
    guesses = known.loadRes([dict(row) for row in found if row["category_id"] in listed])
    judge = library.COCOeval_faster(known, guesses, kind, print_function=_silent, kpt_oks_sigmas=_array(sigmas))
    judge.evaluate()
    judge.accumulate()
    judge.summarize()
    places = KEYPOINTS if kind == "keypoints" else DETECTION
    return {name: 100 * float(judge.stats[i]) for name, i in places.items() if judge.stats[i] >= 0}


def _counts(row: Row, kind: Kind) -> bool:
    return not row.get("iscrowd") and (kind != "keypoints" or row["num_keypoints"] > 0)


def _array(sigmas: Sequence[float] | None) -> Any:
    return None if sigmas is None else np.array(sigmas)


def _silent(*_: Any) -> None:
    """The evaluator prints a table; we return its figures."""
