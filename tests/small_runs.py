"""A run small enough for tests: images of two classes that a tiny ViT can tell apart."""

from __future__ import annotations

from pathlib import Path

import torch

from foveate.drawing.pixels import to_pil_image
from foveate.training.config import TrainConfig, override, read_config

SMALL = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 3, "num_heads": 2}
DISTILL = ("objective.kind=distill", "objective.smoothing=0", "augmentation.mixup=0", "augmentation.cutmix=0")
LATE = ("reduction.warmup_start=1", "reduction.warmup_epochs=1.5")
SPLITS = {"train": 12, "val": 5}
"""Images of each class."""


def make_images(folder: Path) -> Path:
    """Bright and dark noise, so that a few steps learn something."""
    generator = torch.Generator().manual_seed(0)
    for split, number in SPLITS.items():
        for name, least in (("bright", 128), ("dark", 0)):
            place = folder / split / name
            place.mkdir(parents=True, exist_ok=True)
            for index in range(number):
                noise = torch.randint(0, 128, (3, 40, 36), generator=generator, dtype=torch.uint8)
                to_pil_image(noise + least).save(place / f"{index:02}.png")
    return folder


def small_config(data: Path | str, *changes: str) -> TrainConfig:
    """Two epochs of three steps over 24 images, with every kind of chance a resumed run must repeat."""
    config = read_config(
        {
            "model": {"name": "vit_tiny_patch16_224", "options": SMALL | {"drop_path_rate": 0.1}},
            "data": {"source": str(data), "batch_size": 8, "workers": 0},
            "augmentation": {"scale": [0.5, 1.0], "auto_augment": "rand-m5", "erase": 0.5, "mixup": 0.8, "cutmix": 1.0},
            "optimizer": {"lr": 1e-3, "clip_norm": 1.0, "ema": 0.9},
            "schedule": {"epochs": 2, "warmup_epochs": 0.5},
            "objective": {"smoothing": 0.1},
        }
    )
    return override(config, changes)
