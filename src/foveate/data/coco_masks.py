"""Masks in COCO's forms, polygons and run lengths, by faster-coco-eval."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foveate.data.images import DataError

Segmentation = tuple[NDArray[np.float32], ...] | dict[str, Any]
"""Polygons, each x and y in turn, or run lengths with their ``size``."""


def mask_library() -> Any:
    """The functions of faster-coco-eval for masks.

    Raises:
        DataError: if it is not installed.
    """
    try:
        return importlib.import_module("faster_coco_eval.core.mask")
    except ImportError as error:
        raise DataError("COCO's masks need the package faster-coco-eval: pip install foveate[dense]") from error


def decoded_mask(segmentation: Segmentation | None, size: tuple[int, int]) -> NDArray[np.bool_]:
    """The mask (height, width); empty without a segmentation."""
    if segmentation is None:
        return np.zeros(size, dtype=bool)
    library = mask_library()
    if isinstance(segmentation, dict):
        runs = segmentation
        if isinstance(runs["counts"], list):
            runs = library.frPyObjects(runs, *size)
    else:
        runs = library.merge(library.frPyObjects([polygon.tolist() for polygon in segmentation], *size))
    return library.decode(runs).astype(bool)


def run_lengths(mask: NDArray[np.bool_]) -> dict[str, Any]:
    """A mask (height, width) as compressed run lengths, plain data for JSON."""
    runs = mask_library().encode(np.asfortranarray(mask.astype(np.uint8)))
    counts = runs["counts"]
    return {
        "size": [int(side) for side in runs["size"]],
        "counts": counts.decode() if isinstance(counts, bytes) else counts,
    }
