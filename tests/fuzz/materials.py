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

from .values import SHAPE, SIZE, tiny_model

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

    def copied_to(self, folder: Path) -> Files:
        """The small files, in a case's own folder."""
        for name in ("saved", "plain"):
            shutil.copytree(self.root / name, folder / name)
        for name in ("schedule", "recipe.toml", "labels.csv", "classes.txt", "weights.safetensors"):
            shutil.copy(self.root / name, folder / name)
        return Files(folder, self.config)


assert SIZE == 16, "the recipe writes the size out"
