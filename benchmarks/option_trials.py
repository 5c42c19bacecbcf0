"""Options of methods side by side, on photographs that judge no claim: which keeps a ViT-Tiny closer to itself?

Methods of one name are compared with the first of them, on the same photographs, under equal true budgets. Run as
``FOVEATE_ASSETS=... python benchmarks/option_trials.py --methods ward:size_damping=0 ward --budgets 0.5 0.35``.
Photographs are those of pets/val, coco_mini and imagenette/val; those of imagenet_sample and imagenet_dev judge what is
chosen here, and are not read.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import NamedTuple

import torch
from photographs import assets, logits, opened, vit_tiny
from recording import record
from torch import Tensor, nn

import foveate as fv
from foveate.methods.options import parse

COLUMNS = (
    *("budget", "method", "options", "agreement_percent", "difference", "difference_error"),
    *("kl", "kl_difference", "kl_difference_error"),
)
FOLDERS = {"pets/val/images": 200, "coco_mini/train2017": 80, "coco_mini/val2017": 79}
PER_CLASS = 30
"""Photographs of each class of imagenette/val."""


class Found(NamedTuple):
    """What is known of each photograph."""

    same: Tensor  # 100 if the decision stayed
    kl: Tensor


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", nargs="+", required=True)
    parser.add_argument("--budgets", nargs="+", type=float, default=(0.8, 0.65, 0.5, 0.35))
    parser.add_argument("--csv", type=Path, help="also write the figures to this file, as in results/")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    model, images = vit_tiny(), pictures()
    whole = logits(model, images).log_softmax(1)
    rows = []
    for budget in args.budgets:
        first: dict[str, Found] = {}
        for text in args.methods:
            found, name = measured(model, text, budget, images, whole), parse(text).name
            rows.append(
                (budget, name, text.partition(":")[2] or "default", *compared(found, first.setdefault(name, found)))
            )
            print(*rows[-1], flush=True)
    if args.csv:
        sample = f"ViT-Tiny, {len(images)} photographs of pets, coco_mini and imagenette/val, exact last block"
        note = "differences: to the first row of the method at this budget, paired, with standard errors"
        record(args.csv, COLUMNS, rows, sample, note)


def pictures() -> Tensor:
    """The photographs that choose."""
    files = [file for name, number in FOLDERS.items() for file in sorted((assets() / name).iterdir())[:number]]
    for folder in sorted((assets() / "imagenette" / "val").iterdir()):
        files += sorted(folder.iterdir())[:PER_CLASS]
    return opened(files)


def measured(model: nn.Module, text: str, budget: float, images: Tensor, whole: Tensor) -> Found:
    fv.reduce_(model, parse(text), fv.Budget(budget), exact_last_block=True)
    reduced = logits(model, images).log_softmax(1)
    fv.restore_(model)
    same = (reduced.argmax(1) == whole.argmax(1)).float() * 100
    return Found(same, (whole.exp() * (whole - reduced)).sum(1))


def compared(found: Found, first: Found) -> tuple[str, ...]:
    """Means, and their differences to ``first`` with standard errors."""
    cells = []
    for ours, theirs, digits in ((found.same, first.same, 1), (found.kl, first.kl, 4)):
        difference = ours - theirs
        figures = (ours.mean(), difference.mean(), difference.std() / len(difference) ** 0.5)
        cells += [f"{float(figure):.{digits}f}" for figure in figures]
    return tuple(cells)


if __name__ == "__main__":
    main()
