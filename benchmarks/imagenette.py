"""Short training runs on the Imagenette folder under FOVEATE_ASSETS, for benchmarks."""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from photographs import assets, vit_tiny
from torch import nn

import foveate as fv
from foveate.models.by_name import load_model
from foveate.train.config import override
from foveate.train.loop import Outcome, Run
from foveate.train.progress import Reporter
from foveate.train.recipe import read_recipe

IMAGENET_PLACES = (0, 217, 482, 491, 497, 566, 569, 571, 574, 701)
"""Where Imagenette's ten classes, sorted by name, are among ImageNet's thousand."""

SHORT = (
    "model.options={}",
    *("optimiser.lr=1e-4", "optimiser.lr_batch=0", "schedule.warmup_epochs=0", "objective.smoothing=0"),
    *("augmentation.mixup=0", "augmentation.cutmix=0", "augmentation.auto_augment=", "augmentation.erase=0"),
    *("augmentation.scale=0.5,1", "augmentation.repeats=1"),
)
"""What a few hundred steps on ten classes need less of than 30 epochs on a thousand."""


def parser(description: str, steps: int, batch_size: int = 32) -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--steps", type=int, default=steps, help=f"training steps of each run (default: {steps})")
    made.add_argument("--batch-size", type=int, default=batch_size)
    made.add_argument("--seed", type=int, default=0, help="of chance and of new weights (default: 0)")
    made.add_argument("--out", type=Path, help="keep the runs here; default: a folder that is deleted")
    return made


@contextmanager
def folder(kept: Path | None) -> Iterator[Path]:
    if kept is not None:
        kept.mkdir(parents=True, exist_ok=True)
        yield kept
        return
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def data() -> str:
    return str(assets() / "imagenette")


def ten_way_vit_tiny() -> nn.Module:
    """The pretrained ViT-Tiny with the ten rows of its classifier that Imagenette needs."""
    return ten_way(vit_tiny())


def ten_way(model: Any) -> Any:
    """``model`` with ten of its thousand classes, in place; returns it."""
    rows = torch.tensor(IMAGENET_PLACES)
    weight, bias = model.head.weight[rows].detach(), model.head.bias[rows].detach()
    model.reset_classifier(10)
    with torch.no_grad():
        model.head.weight.copy_(weight)
        model.head.bias.copy_(bias)
    return model


def class_file(place: Path) -> Path:
    """ImageNet's thousand classes in their order; those that Imagenette has by the names of its folders."""
    ours = dict(zip(IMAGENET_PLACES, sorted(folder.name for folder in Path(data(), "train").iterdir()), strict=True))
    path = place / "classes.txt"
    path.write_text("".join(f"{ours.get(number, number)}\n" for number in range(1000)))
    return path


def teacher_folder(place: Path, size: int = 224) -> Path:
    """The pretrained ViT-Tiny where a recipe can find it, for images of that size."""
    weights = assets() / "vit_tiny" / "model.safetensors"
    return fv.save(load_model("vit_tiny_patch16_224", weights=weights, options={"img_size": size}), place / "teacher")


def train(recipe: str, place: Path, args: argparse.Namespace, *changes: str) -> Outcome:
    """Run a recipe for ``args.steps`` steps on Imagenette; values are said first, figures come after."""
    steps = [f"data.batch_size={args.batch_size}", f"schedule.epochs={epochs(args.steps, args.batch_size)}"]
    steps += [f"run.seed={args.seed}"]
    config = override(read_recipe(recipe), [f"data.source={data()}", *steps, f"run.steps={args.steps}", *changes])
    run = Run(config, place, Reporter())
    if run.resume():
        print(f"  goes on after step {run.state.step}", flush=True)
    return run.train()


def epochs(steps: int, batch_size: int) -> int:
    """Epochs that hold so many steps; there are 4,500 training images."""
    return -(-steps // (4500 // batch_size))


def say(**figures: object) -> None:
    print(json.dumps(figures), flush=True)
