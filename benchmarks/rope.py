"""Where is a merged token? Representative and mean positions on a ViT-Tiny with rotary positions.

    FOVEATE_ASSETS=... python benchmarks/rope.py train --weights rope-0.safetensors [--steps 600] [--seed 0]
    FOVEATE_ASSETS=... python benchmarks/rope.py measure --weights rope-0.safetensors [--csv results/rope.csv]

No pretrained weights with rotary positions are among the assets. So the pretrained ViT-Tiny loses its learned
positions, gets axial rotary ones in every block (timm's Eva), and is tuned at 128 px to the probabilities of the
ViT-Tiny that it was, on Imagenette's training images without labels. Reported are agreement with the unreduced model's
decisions for both kinds of positions, and the difference of the two on the same images, with its standard error; of
several trainings each, and of their mean for each image.
"""

from __future__ import annotations

import argparse
import csv
import math
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from imagenette import IMAGENET_PLACES
from photographs import assets, logits, vit_tiny
from PIL import Image
from recording import record
from safetensors.torch import load_file, save_file
from timm.layers import LayerNorm
from timm.models.eva import Eva
from torch import Tensor
from torch.nn.functional import interpolate, kl_div
from torchvision.transforms.functional import pil_to_tensor

import foveate as fv
from foveate.methods.options import parse

SIZE, STORED = 128, 160
METHODS = ("ToMe", "Ward", "TokenPooling", "EViT")
BUDGETS = (0.65, 0.5)
PLACES = ("representative", "mean")
JUDGED = ("imagenet_dev", "imagenet_sample", "imagenette/val", "pets")
"""Photographs that are not trained on, and chose no setting: 500, 500, 600 and 600."""
FAMILIAR = "imagenette/val"
"""Those of the classes that the tuning saw."""


def rotary_vit_tiny() -> Any:
    """The pretrained ViT-Tiny with rotary positions instead of its own; its content is kept, its positions are not."""
    sizes = {"img_size": SIZE, "patch_size": 16, "embed_dim": 192, "depth": 12, "num_heads": 3}
    rope = {"use_rot_pos_emb": True, "use_abs_pos_emb": False, "rope_temperature": 100.0, "attn_type": "rope"}
    model = Eva(**sizes, **rope, global_pool="token", norm_layer=partial(LayerNorm, eps=1e-6))
    weights = vit_tiny(SIZE).state_dict()
    places = weights.pop("pos_embed")[0]
    weights["cls_token"] = weights["cls_token"] + places[0]
    weights["patch_embed.proj.bias"] = weights["patch_embed.proj.bias"] + places[1:].mean(dim=0)
    model.load_state_dict(weights)
    return model


def pictures(folder: Path, size: int) -> Tensor:
    """All photographs under ``folder`` as (N, 3, size, size) bytes."""
    kinds = (".jpg", ".jpeg", ".png")
    files = sorted(f for f in folder.rglob("*") if f.suffix.lower() in kinds and "trimaps" not in f.parts)
    found = [Image.open(f).convert("RGB").resize((size, size), Image.Resampling.BICUBIC) for f in files]
    return torch.stack([pil_to_tensor(image) for image in found])


def normalized(images: Tensor) -> Tensor:
    return images.float().div(255).sub(0.5).div(0.5)


def crops(images: Tensor, generator: torch.Generator) -> Tensor:
    """One square of the images at a random place, two thirds of them or more, mirrored in half of all batches."""
    side = int(torch.randint(STORED * 2 // 3, STORED + 1, (1,), generator=generator))
    top, left = (int(torch.randint(0, STORED - side + 1, (1,), generator=generator)) for _ in range(2))
    cut = normalized(images[:, :, top : top + side, left : left + side])
    cut = interpolate(cut, (SIZE, SIZE), mode="bilinear", antialias=True)
    return cut.flip(-1) if torch.rand(1, generator=generator) < 0.5 else cut


class Run:
    """A training that goes on where it was stopped: its whole state lies beside the weights until it is done."""

    def __init__(self, args: argparse.Namespace) -> None:
        torch.manual_seed(args.seed)
        self.file = args.weights[0].with_suffix(".state")
        self.model = rotary_vit_tiny().train()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=args.lr, weight_decay=0.05)
        self.generator = torch.Generator().manual_seed(args.seed)
        self.order, self.step = torch.empty(0, dtype=torch.long), 0
        if self.file.is_file():
            state = torch.load(self.file, weights_only=True)
            self.model.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])
            self.generator.set_state(state["generator"])
            self.order, self.step = state["order"], state["step"]
            print(f"going on after step {self.step}", flush=True)

    def save(self) -> None:
        parts = {"model": self.model, "optimizer": self.optimizer}
        state = {name: part.state_dict() for name, part in parts.items()}
        state |= {"generator": self.generator.get_state(), "order": self.order, "step": self.step}
        torch.save(state, self.file.with_suffix(".writing"))
        self.file.with_suffix(".writing").replace(self.file)

    def batch(self, images: Tensor, size: int) -> Tensor:
        """The next images in a random order, every one once before any comes again."""
        if len(self.order) < size:
            self.order = torch.randperm(len(images), generator=self.generator)
        chosen, self.order = self.order[:size], self.order[size:]
        return crops(images[chosen], self.generator)

    def learn(self, loss: Tensor, rate: float) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.step += 1


def train(args: argparse.Namespace) -> None:
    """Tune the model; started again with the same arguments, go on after the last hundred steps."""
    run, teacher = Run(args), vit_tiny(SIZE).eval()
    images = pictures(assets() / "imagenette" / "train", STORED)
    start, shown = time.perf_counter(), 0.0
    while run.step < args.steps:
        batch = run.batch(images, args.batch_size)
        with torch.no_grad():
            wanted = teacher(batch).log_softmax(dim=1)
        loss = kl_div(run.model(batch).log_softmax(dim=1), wanted, log_target=True, reduction="batchmean")
        decay = (1 + math.cos(math.pi * run.step / args.steps)) / 2
        run.learn(loss, args.lr * min(1, (run.step + 1) / 50) * decay)
        shown += loss.item() / 20
        if run.step % 20 == 0:
            print(f"step {run.step} KL {shown:.3f} {(time.perf_counter() - start) / 60:.1f} min", flush=True)
            shown = 0.0
        if run.step % 100 == 0:
            run.save()
    save_file(run.model.state_dict(), args.weights[0])
    run.file.unlink(missing_ok=True)


@dataclass(frozen=True)
class Result:
    """One method at one budget, for each kind of positions; the mean of several is the methods' mean for each image."""

    method: str
    budget: float
    macs: float
    agrees: dict[str, Tensor]  # (images,) 1 where the decision is the unreduced model's
    divergence: dict[str, Tensor]  # (images,) KL(unreduced || reduced)

    def row(self, training: str, part: str, chosen: Tensor) -> tuple[object, ...]:
        """Figures of the chosen photographs: means, and paired differences with their standard errors."""
        cells: list[str] = []
        for found, scale, digits in ((self.agrees, 100, 2), (self.divergence, 1, 4)):
            pairs = scale * (found["mean"] - found["representative"])[chosen]
            cells += [f"{scale * found[place][chosen].mean():.{digits}f}" for place in PLACES]
            cells += [f"{pairs.mean():+.{digits}f}", f"{pairs.std() / len(pairs) ** 0.5:.{digits}f}"]
        return (training, self.method, self.budget, part, int(chosen.sum()), f"{self.macs:.3f}", *cells)


def together(results: list[Result], name: str) -> Result:
    """The mean over methods or trainings, image by image, which tells smaller differences apart."""
    agrees = {place: torch.stack([r.agrees[place] for r in results]).mean(dim=0) for place in PLACES}
    divergence = {place: torch.stack([r.divergence[place] for r in results]).mean(dim=0) for place in PLACES}
    macs = sum(r.macs for r in results) / len(results)
    return Result(name, results[0].budget, macs, agrees, divergence)


def labels(folder: str) -> Tensor | None:
    """Classes of ImageNet of the photographs in a folder, in the order of ``pictures``; None if they have none."""
    place = assets() / folder
    if folder == FAMILIAR:
        classes = sorted(f.name for f in place.iterdir())
        counts = [len(list((place / name).iterdir())) for name in classes]
        return torch.tensor(IMAGENET_PLACES).repeat_interleave(torch.tensor(counts))
    if folder == "pets":
        return None
    with (place / "labels.csv").open() as file:
        known = {row["file"]: int(row["label"]) for row in csv.DictReader(file)}
    return torch.tensor([known[name] for name in sorted(known)])


def judged(model: Any) -> tuple[Tensor, Tensor, Tensor, list[str]]:
    """All judged photographs, the unreduced logits, which of them are of familiar classes, and accuracies as text."""
    images, found, familiar, notes = [], [], [], []
    for folder in JUDGED:
        images.append(normalized(pictures(assets() / folder, SIZE)))
        found.append(logits(model, images[-1]))
        familiar += [folder == FAMILIAR] * len(images[-1])
        known = labels(folder)
        if known is not None:
            right = (found[-1].argmax(1) == known).float().mean()
            notes.append(f"unreduced top-1 of a thousand on {folder}: {right:.1%} of {len(known)}")
            print(notes[-1], flush=True)
    return torch.cat(images), torch.cat(found), torch.tensor(familiar), notes


def measure(model: Any, name: str, budget: float, images: Tensor, whole: Tensor) -> Result:
    agrees, divergence, share, unreduced = {}, {}, 0.0, fv.cost(model).macs
    for place in PLACES:
        fv.reduce_(model, parse(name), fv.Budget(budget), exact_last_block=True, positions=place)
        share, kept = fv.cost(model).macs / unreduced, logits(model, images)
        fv.restore_(model)
        agrees[place] = (kept.argmax(1) == whole.argmax(1)).double()
        apart = kl_div(kept.log_softmax(1), whole.log_softmax(1), log_target=True, reduction="none")
        divergence[place] = apart.sum(dim=1).double()
    return Result(name, budget, share, agrees, divergence)


def compare(args: argparse.Namespace) -> None:
    """Measure every method at every budget, for every training."""
    trainings: dict[str, list[Result]] = {}
    notes: list[str] = []
    for file in args.weights:
        model = rotary_vit_tiny().eval()
        model.load_state_dict(load_file(file))
        images, whole, familiar, accuracies = judged(model)
        notes += [f"{file.stem}: {note}" for note in accuracies]
        trainings[file.stem] = measured(model, images, whole)
    names = list(trainings)
    if len(names) > 1:
        pairs = zip(*trainings.values(), strict=True)
        trainings["mean of both" if len(names) == 2 else "mean"] = [together(list(p), p[0].method) for p in pairs]
    parts = {"all": torch.ones_like(familiar), "familiar classes": familiar}
    rows = [r.row(name, part, parts[part]) for name, found in trainings.items() for r in found for part in parts]
    for row in rows:
        print(*row)
    if args.csv:
        columns = ["training", "method", "budget", "photographs", "count", "macs"]
        for figure in ("agreement_percent", "kl"):
            columns += [f"{figure}_{place}" for place in PLACES]
            columns += [f"{figure}_mean_minus_representative", f"{figure}_standard_error"]
        sample = f"{len(names)} ViT-Tiny with rotary positions, {len(images)} photographs at {SIZE} px"
        record(args.csv, columns, rows, sample, *notes)


def measured(model: Any, images: Tensor, whole: Tensor) -> list[Result]:
    """Every method at every budget, and the mean of the methods."""
    found: list[Result] = []
    for budget in BUDGETS:
        results = []
        for name in METHODS:
            results.append(measure(model, name, budget, images, whole))
            print(*results[-1].row("", "all", torch.ones(len(images), dtype=torch.bool)), flush=True)
        found += [*results, together(results, "mean of the four")]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("job", choices=("train", "measure"))
    parser.add_argument("--weights", type=Path, nargs="+", required=True, help="the file to write, or those to measure")
    parser.add_argument("--seed", type=int, default=0, help="of training (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=600, help="of training (default: %(default)s)")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--csv", type=Path, help="also write the figures to this file, as in results/")
    args = parser.parse_args()
    if args.job == "train":
        train(args)
    else:
        compare(args)


if __name__ == "__main__":
    main()
