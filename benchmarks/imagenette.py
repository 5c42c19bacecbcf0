"""Short training runs on the Imagenette folder under FOVEATE_ASSETS, for benchmarks.

The settings of these scripts were chosen on the 600 images of `val`, which therefore cannot confirm them. By default, a
fifth of the training images is held out for evaluation (`--on fresh`); docs/experiments/training.md lists what was
evaluated there before.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import logging
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from photographs import assets, vit_tiny
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import foveate as fv
from foveate.data import Batch, Loader, open_data
from foveate.data.preprocessing import Preprocessing
from foveate.storage import write_text
from foveate.training import Outcome
from foveate.training.recipe import read_recipe

IMAGENET_PLACES = (0, 217, 482, 491, 497, 566, 569, 571, 574, 701)
"""Indices of Imagenette's ten classes, sorted by name, among ImageNet's thousand."""

SHORT = (
    "model.options={}",
    *("optimizer.lr=1e-4", "optimizer.lr_batch=0", "schedule.warmup_epochs=0", "objective.smoothing=0"),
    *("augmentation.mixup=0", "augmentation.cutmix=0", "augmentation.auto_augment=", "augmentation.erase=0"),
    *("augmentation.scale=0.5,1", "augmentation.repeats=1"),
)
"""Weaker regularization, for a few hundred steps on ten classes instead of 30 epochs on a thousand."""


def parser(description: str, steps: int, batch_size: int = 32) -> argparse.ArgumentParser:
    """Return a parser with the options that all training benchmarks share."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--steps", type=int, default=steps, help=f"training steps of each run (default: {steps})")
    made.add_argument("--batch-size", type=int, default=batch_size)
    made.add_argument("--seed", type=int, default=0, help="random seed, also for new weights (default: 0)")
    made.add_argument("--out", type=Path, help="keep the runs here (default: a temporary folder)")
    made.add_argument(
        "--on",
        choices=("fresh", "val"),
        default="fresh",
        help="evaluate on a held-out fifth of the training images (fresh, default) or on the validation split (val)",
    )
    return made


@contextmanager
def folder(kept: Path | None) -> Iterator[Path]:
    """Yield the folder ``kept``, or a temporary one."""
    if kept is not None:
        kept.mkdir(parents=True, exist_ok=True)
        yield kept
        return
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def data() -> str:
    """Return the path of the Imagenette folder."""
    return str(assets() / "imagenette")


@dataclass(frozen=True)
class Verdict:
    """The result of a model on the evaluation images."""

    right: Tensor  # (images,)
    cross_entropy: float

    @property
    def top1(self) -> float:
        return round(100 * self.right.float().mean().item(), 2)

    def against(self, other: Verdict) -> dict[str, int]:
        """Count the images that only one of the two gets right: the accuracies differ by these alone."""
        return {
            "only_this": int((self.right & ~other.right).sum()),
            "only_other": int((~self.right & other.right).sum()),
        }


@dataclass(frozen=True)
class Images:
    """Imagenette, and the split to evaluate on."""

    source: str
    split: str

    def batches(self, model: nn.Module) -> Iterator[Batch]:
        transform = Preprocessing.of(model).evaluation()
        return Loader(open_data(self.source, self.split), transform, 50, seed=0, train=False).epoch(0)

    @torch.inference_mode()
    def judge(self, model: nn.Module) -> Verdict:
        found = [(model(batch.images), batch.targets) for batch in self.batches(model.eval())]
        logits, labels = (torch.cat(part) for part in zip(*found, strict=True))
        return Verdict(logits.argmax(dim=1) == labels, cross_entropy(logits, labels).item())

    def top1(self, model: nn.Module) -> float:
        return self.judge(model).top1


def images(args: argparse.Namespace, place: Path) -> Images:
    return Images(data(), "val") if args.on == "val" else Images(str(held_out(place / "imagenette.csv")), "fresh")


def held_out(path: Path) -> Path:
    """Write a table of Imagenette's training images: every fifth of a class is `fresh`, the others are `train`."""
    rows = [("file", "label", "split")]
    for folder in sorted(Path(data(), "train").iterdir()):
        files = sorted(file.absolute() for file in folder.iterdir())
        rows += [(str(file), folder.name, "train" if n % 5 else "fresh") for n, file in enumerate(files)]
    table = io.StringIO(newline="")
    csv.writer(table).writerows(rows)
    write_text(path, table.getvalue())  # atomic: parallel runs read it
    return path


def ten_way_vit_tiny(size: int = 224) -> Any:
    """Return the pretrained ViT-Tiny with only Imagenette's ten classes."""
    return ten_way(vit_tiny(size))


def ten_way(model: Any) -> Any:
    """Reduce the classifier of ``model`` to Imagenette's ten classes, in place, and return it."""
    rows = torch.tensor(IMAGENET_PLACES)
    weight, bias = model.head.weight[rows].detach(), model.head.bias[rows].detach()
    model.reset_classifier(10)
    with torch.no_grad():
        model.head.weight.copy_(weight)
        model.head.bias.copy_(bias)
    return model


def class_file(place: Path) -> Path:
    """Write ImageNet's thousand classes in their order, with Imagenette's folder names for its ten."""
    ours = dict(zip(IMAGENET_PLACES, sorted(folder.name for folder in Path(data(), "train").iterdir()), strict=True))
    path = place / "classes.txt"
    path.write_text("".join(f"{ours.get(number, number)}\n" for number in range(1000)))
    return path


def train(recipe: str, place: Path, args: argparse.Namespace, *changes: str) -> Outcome:
    """Run a recipe for ``args.steps`` steps on Imagenette."""
    seen = images(args, place.parent)
    count = len(open_data(seen.source, "train"))
    epochs = -(-args.steps // (count // args.batch_size))
    config = read_recipe(recipe)
    values = [f"data.batch_size={args.batch_size}", f"schedule.epochs={epochs}"]
    values += (
        [f"data.val={seen.split}"] if config.data.val else []
    )  # a distillation is evaluated by what is trained on top
    values += [f"run.seed={args.seed}", f"run.steps={args.steps}"]
    logging.basicConfig(level=logging.INFO, format="  %(message)s")
    return fv.train(config, data=seen.source, out=place, overrides=[*values, *changes], resume=True)


def report(**figures: object) -> None:
    """Print measurements as one line of JSON."""
    print(json.dumps(figures), flush=True)
