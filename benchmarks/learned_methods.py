"""Learned methods after the same short training, beside methods that need none, at equal cost on Imagenette.

A pretrained ViT-Tiny is reduced to the same share of its MACs by each method. All weights are trained for the same few
steps to give the unreduced model's outputs (KL of the thousand classes, without labels), on the training images of
Imagenette; its 600 validation images judge: decisions equal to the unreduced model's, before and after. Run as
``FOVEATE_ASSETS=... python benchmarks/learned_methods.py --csv results/learned_methods.csv``; figures are kept in
--store and the run continues from there.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

import torch
from photographs import assets, logits, opened, vit_tiny
from recording import record
from torch import Tensor, nn
from torch.nn.functional import kl_div

import foveate as fv
from foveate.files import write_text
from foveate.methods.options import parse

METHODS = ("PatchMerger", "SiT", "Sinkhorn:epsilon=0.1", "DynamicViT", "DTEM", "ToMe", "Ward")
COLUMNS = ("method", "learned", "macs_percent", "before_percent", "after_percent", "error_percent")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", nargs="+", default=list(METHODS))
    parser.add_argument("--budget", type=float, default=0.65)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--rate", type=float, default=1e-4, help="learning rate of AdamW; new modules get ten times it")
    parser.add_argument("--judges", type=int, default=300, help="validation images")
    parser.add_argument("--store", type=Path, default=Path("out/learned_methods.json"))
    parser.add_argument("--csv", type=Path)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    found: dict[str, Any] = json.loads(args.store.read_text()) if args.store.is_file() else {}
    teacher, judges = vit_tiny(), pictures("val", args.judges)
    whole = logits(teacher, judges).argmax(1)
    batches = pictures("train", args.steps * args.batch_size).split(args.batch_size)
    for name in args.methods:
        if name not in found:
            found[name] = one(name, teacher, batches, judges, whole, args)
            write_text(args.store, json.dumps(found, indent=1))
            print(name, found[name], flush=True)
    if args.csv:
        sample = f"ViT-Tiny, budget {args.budget}, {args.steps} steps of {args.batch_size} images, AdamW {args.rate}"
        note = f"percent of decisions equal to the unreduced model's, {len(judges)} validation images; no labels used"
        record(args.csv, COLUMNS, [found[name] for name in args.methods], sample, note)


def pictures(part: str, number: int) -> Tensor:
    """Images (N, 3, 224, 224) of Imagenette, in turns from its classes."""
    folders = sorted((assets() / "imagenette" / part).iterdir())
    by_class = [sorted(folder.iterdir()) for folder in folders]
    files = [files[i % len(files)] for i in range(math.ceil(number / len(folders))) for files in by_class][:number]
    return opened(files)


def one(
    name: str, teacher: nn.Module, batches: Any, judges: Tensor, whole: Tensor, args: argparse.Namespace
) -> list[Any]:
    """A row of the results."""
    method = parse(name)
    model = fv.reduce_(vit_tiny(), method, fv.Budget(args.budget))
    share = fv.cost(model).macs / fv.cost(teacher).macs
    before = (logits(model, judges).argmax(1) == whole).float().mean().item()
    train(model, teacher, batches, args.rate)
    after = (logits(model.eval(), judges).argmax(1) == whole).float().mean().item()
    error = math.sqrt(max(after * (1 - after), 1e-9) / len(judges))
    figures = (f"{100 * value:.1f}" for value in (share, before, after, error))
    return [name, "no" if method.training_free else "yes", *figures]


def train(model: Any, teacher: nn.Module, batches: Any, rate: float) -> None:
    torch.manual_seed(0)
    new = {id(parameter) for parameter in model.foveate.parameters()}
    groups = [
        {"params": [p for p in model.parameters() if id(p) not in new], "lr": rate},
        {"params": [p for p in model.parameters() if id(p) in new], "lr": 10 * rate},
    ]
    optimizer = torch.optim.AdamW([group for group in groups if group["params"]], weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, len(batches))
    model.train()
    for images in batches:
        with torch.no_grad():
            target = teacher(images).log_softmax(1)
        loss = kl_div(model(images).log_softmax(1), target, log_target=True, reduction="batchmean")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    model.eval()


if __name__ == "__main__":
    main()
