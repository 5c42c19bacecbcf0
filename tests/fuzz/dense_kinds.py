"""Files of dense tasks and of exported models that are spoiled: how each is placed, and how it is read."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import foveate as fv
from foveate.data.loader import Loader
from foveate.data.preprocessing import Preprocessing
from foveate.tasks import find_task

from .kind import Kind
from .materials import Materials
from .values import SIZE, images


def _in_folder(name: str, file: str) -> Callable[[Materials, Path], Path]:
    """A copy of one of the materials' folders, and the file in it to spoil."""

    def place(materials: Materials, folder: Path) -> Path:
        shutil.copytree(getattr(materials, name, materials.root / name), folder / name)
        return next((folder / name).glob(file))

    return place


def _read_as(task: str) -> Callable[[Path, Materials], Any]:
    """Every image and target below the folder, as an evaluation reads them."""

    def read(path: Path, materials: Materials) -> Any:
        kind = find_task(task)
        root = next(above for above in path.parents if above.name in ("masks", "coco") and above.parent.name != "val")
        data = kind.open(str(root), "val")
        rules = kind.for_data(data)
        transform = rules.evaluation_transform(Preprocessing(SIZE, SIZE))
        loader = Loader(data, transform, 1, seed=0, train=False, workers=0, max_broken=0.5, rules=rules)
        return [batch.images.shape for batch in loader.epoch(0)]

    return read


def _run_exported(path: Path, materials: Materials) -> Any:
    return fv.load_exported(path.parent)(images())


def _run_saved(path: Path, materials: Materials) -> Any:
    with torch.no_grad():
        return fv.load(path.parent)(images())


DENSE_KINDS = (
    Kind("mask", _in_folder("masks", "val/masks/0.png"), _read_as("segmentation"), weight=0.6),
    Kind("names of mask classes", _in_folder("masks", "classes.json"), _read_as("segmentation"), "json", weight=0.4),
    Kind("COCO instances", _in_folder("coco", "*/instances*"), _read_as("instance-segmentation"), "json", weight=1.5),
    Kind("COCO boxes", _in_folder("coco", "*/instances*"), _read_as("detection"), "json"),
    Kind("COCO keypoints", _in_folder("coco", "*/person*"), _read_as("pose"), "json", weight=1.5),
    Kind("saved dense model", _in_folder("dense", "foveate.json"), _run_saved, "json", exact=True),
    Kind("saved dense model, sealed again", _in_folder("dense", "foveate.json"), _run_saved, "sealed", weight=1.5),
    Kind("exported foveate.json", _in_folder("exported", "foveate.json"), _run_exported, "json", exact=True),
    Kind("exported model", _in_folder("exported", "model.onnx"), _run_exported, exact=True, weight=0.6),
    Kind("exported foveate.json, sealed again", _in_folder("exported", "foveate.json"), _run_exported, "sealed"),
)
