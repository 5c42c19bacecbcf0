"""Good files to spoil: a saved model, a schedule, a run, a comparison, images, labels, recipes and weights."""

from __future__ import annotations

import csv
import json
import shutil
import tarfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors.torch import save_file

import foveate as fv
from foveate.report.compare.saving import PARTIAL
from foveate.training.config import TrainConfig, read_config

from .values import CLASSES, SHAPE, SIZE, images, segmenter, tiny_model

NAMES = ("bright", "dark")
OPTIONS = {"methods": ["topk"], "budgets": [0.7], "seconds": 0.001, "batch_size": 2, "limit": 2, "name": "tiny"}
RECIPE = """\
source = "a test"
description = "One step."

[model]
name = "vit_tiny_patch16_224"
options = {{img_size = 16, patch_size = 4, embed_dim = 16, depth = 2, num_heads = 2}}

[data]
source = {source}
batch_size = 2
workers = 0

[augmentation]
scale = [0.5, 1.0]
mixup = 0.8

[optimizer]
lr = 1e-3

[schedule]
epochs = 1
warmup_epochs = 0.0

[objective]
smoothing = 0.1

[for.vit_small_patch16_224.optimizer]
lr = 2e-3
"""


@dataclass(frozen=True)
class Files:
    """The materials in a folder of a case."""

    root: Path
    config: TrainConfig

    def __getattr__(self, name: str) -> str:
        return str(self.root / name)


class Materials:
    """Good files, made once in ``root`` and copied for each case."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._saved()
        self._pictures()
        fv.save_schedule(fv.KeepRate(0.6, blocks=(1,)), root / "schedule")
        (root / "recipe.toml").write_text(RECIPE.format(source=json.dumps(str(root / "pictures"))))
        tensors = {name: tensor.clone() for name, tensor in tiny_model().state_dict().items()}
        save_file(tensors, root / "weights.safetensors")
        torch.save(tensors, root / "weights.pth")
        self._masks()
        self._objects()

    def _saved(self) -> None:
        model = tiny_model()
        fv.save(fv.reduce_(model, fv.ToMe(), fv.KeepRate(0.6, blocks=(1,))), self.root / "saved")
        fv.save(tiny_model(), self.root / "plain")

    def _pictures(self) -> None:
        folder, rows = self.root / "pictures", []
        for split in ("train", "val"):
            for label, name in enumerate(NAMES):
                place = folder / split / name
                place.mkdir(parents=True)
                for index in range(2):
                    pixels = np.random.default_rng(index + 10 * label).integers(0, 128, (20, 22, 3), dtype=np.uint8)
                    kind = "png" if index else "jpg"
                    Image.fromarray(pixels + np.uint8(127 * (1 - label))).save(place / f"{index}.{kind}")
                    rows.append((str(place / f"{index}.{kind}"), name, split))
        with (self.root / "labels.csv").open("w", newline="") as file:
            csv.writer(file).writerows([("file", "label", "split"), *rows])
        (self.root / "classes.txt").write_text("bright\ndark\na\nb\nc\n")
        with tarfile.open(self.root / "shard.tar", "w") as archive:
            for number, (path, name, _) in enumerate(rows[:4]):
                archive.add(path, f"{number:04}{Path(path).suffix}")
                text = self.root / "label.cls"
                text.write_text(str(NAMES.index(name)))
                archive.add(text, f"{number:04}.cls")
                text.unlink()

    def _masks(self) -> None:
        """Two pictures with the class of each pixel."""
        for place in ("images", "masks"):
            (self.root / "masks" / "val" / place).mkdir(parents=True)
        for number in range(2):
            picture, mask = drawn_pair(number)
            picture.save(self.root / "masks" / "val" / "images" / f"{number}.png")
            mask.save(self.root / "masks" / "val" / "masks" / f"{number}.png")
        (self.root / "masks" / "classes.json").write_text(json.dumps([f"class {n}" for n in range(CLASSES)]))

    def _objects(self) -> None:
        """COCO's annotations: two objects with masks, and two persons with keypoints."""
        for place in ("annotations", "val2017"):
            (self.root / "coco" / place).mkdir(parents=True)
        for number in range(2):
            drawn_pair(number)[0].save(self.root / "coco" / "val2017" / f"{number}.png")
        for name, data in coco_files().items():
            (self.root / "coco" / "annotations" / name).write_text(json.dumps(data))

    @cached_property
    def exported(self) -> Path:
        """A model that was exported to ONNX."""
        model = fv.reduce_(tiny_model(), fv.ToMe(), fv.KeepRate(0.6, blocks=(1,)))
        return fv.export(model, self.root / "exported", "onnx", data=images())

    @cached_property
    def dense(self) -> Path:
        """A saved encoder with a head for segmentation."""
        fv.save(segmenter(), self.root / "dense")
        return self.root / "dense"

    @property
    def pictures(self) -> Path:
        return self.root / "pictures"

    @cached_property
    def config(self) -> TrainConfig:
        return read_config(
            {
                "model": {"name": "vit_tiny_patch16_224", "options": SHAPE | {"depth": 2}},
                "data": {"source": str(self.pictures), "batch_size": 2, "workers": 0},
                "augmentation": {"scale": [0.5, 1.0]},
                "optimizer": {"lr": 1e-3},
                "schedule": {"epochs": 1, "warmup_epochs": 0},
                "objective": {"smoothing": 0.1},
            }
        )

    @cached_property
    def run(self) -> Path:
        """A finished run with its checkpoint."""
        fv.train(self.config, out=self.root / "run")
        return self.root / "run"

    @cached_property
    def hugging_face(self) -> Path:
        """A classifier that transformers saved."""
        import transformers

        sizes = {"image_size": 16, "patch_size": 4, "hidden_size": 16, "num_attention_heads": 2}
        config = transformers.ViTConfig(**sizes, num_hidden_layers=2, intermediate_size=32, num_labels=5)
        transformers.ViTForImageClassification(config).save_pretrained(self.root / "hf")
        return self.root / "hf"

    @cached_property
    def comparison(self) -> Path:
        """A folder with the results of a comparison, and what it had stored on the way."""
        folder = self.root / "comparison"
        found = self.compare(folder)
        stored = (folder / PARTIAL).read_bytes()
        found.save(folder)
        (folder / PARTIAL).write_bytes(stored)
        return folder

    def compare(self, folder: Path, **options: Any) -> Any:
        return fv.compare(tiny_model(), str(self.pictures), store=folder, **(OPTIONS | options))

    def copied_to(self, folder: Path, call: str = "") -> Files:
        """The small files, in a case's own folder, and what else ``call`` names."""
        for name in ("exported", "dense", "masks", "coco"):
            if name in call:
                shutil.copytree(getattr(self, name, self.root / name), folder / name)
        for name in ("saved", "plain"):
            shutil.copytree(self.root / name, folder / name)
        for name in ("schedule", "recipe.toml", "labels.csv", "classes.txt", "weights.safetensors"):
            shutil.copy(self.root / name, folder / name)
        return Files(folder, self.config)


def drawn_pair(number: int) -> tuple[Image.Image, Image.Image]:
    """A picture and the class of each of its pixels."""
    drawn = np.random.default_rng(number)
    mask = drawn.integers(0, CLASSES, (20, 22), dtype=np.uint8)
    return Image.fromarray(drawn.integers(0, 256, (20, 22, 3), dtype=np.uint8)), Image.fromarray(mask)


def coco_files() -> dict[str, Any]:
    """The content of COCO's files by their names."""
    images = [{"id": n + 1, "file_name": f"{n}.png", "height": 20, "width": 22} for n in range(2)]
    plain = {"iscrowd": 0, "area": 64.0, "bbox": [2.0, 3.0, 8.0, 8.0], "category_id": 3}
    polygon = {"segmentation": [[2.0, 3.0, 10.0, 3.0, 10.0, 11.0]]}
    runs = {"segmentation": {"size": [20, 22], "counts": [50, 40, 350]}, "iscrowd": 1}
    text = {"segmentation": {"size": [20, 22], "counts": "b1X1n:"}}
    points = {"keypoints": [3, 4, 2, 5, 6, 1], "num_keypoints": 2} | polygon
    cats = [{"id": 3, "name": "cat"}, {"id": 7, "name": "dog"}]
    person = [{"id": 3, "name": "person", "keypoints": ["nose", "tail"], "skeleton": [[1, 2]]}]

    def content(categories: list[Any], *own: dict[str, Any]) -> dict[str, Any]:
        found = [plain | one | {"id": 10 + n, "image_id": n % 2 + 1} for n, one in enumerate(own)]
        return {"images": images, "categories": categories, "annotations": found}

    return {
        "instances_val2017.json": content(cats, polygon, runs, text),
        "person_keypoints_val2017.json": content(person, points, points),
    }


assert SIZE == 16, "the recipe writes the size out"
