"""Settings of ``fv.recover`` side by side: what makes a reduced ViT-Tiny follow the unreduced one elsewhere.

Run as ``FOVEATE_ASSETS=... python benchmarks/recovery_trials.py --budget 0.35 --variant lr=2e-5 --variant lr=6e-5``;
``--csv`` writes a file like results/trials_recovery.csv. Variants that see the same crops share the unreduced model's
outputs. The photographs are pets, COCO's and Imagenette's; those of imagenet_sample and imagenet_dev choose nothing.
Whole classes are drawn until there are 500 photographs to tune, and the other classes judge, since a user's pictures
rarely show all that a model will see. A variant is its running average after the last step, with no check on the way.
"""

from __future__ import annotations

import argparse
import copy
import math
import random
import sys
import time
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from photographs import assets, logits, vit_tiny
from PIL import Image
from recording import record
from torch import Tensor, nn
from torch.nn.functional import layer_norm, mse_loss
from torchvision.transforms.functional import pil_to_tensor

import foveate as fv
from foveate.adapters import inspect, spread_to_patches
from foveate.methods.options import parse
from foveate.tuning import recovering
from foveate.tuning.following import divergence
from foveate.tuning.varying import blended, mixed, random_crops, recolored

FOLDERS = ("pets/train/images", "pets/val/images", "coco_mini/train2017", "coco_mini/val2017", "imagenette/val")
TUNED = 500
COLUMNS = (
    *("method", "budget", "variant", "steps", "core_seconds", "kl_before", "kl_after", "total_variation_before"),
    *("total_variation_after", "agreement_before", "agreement_after", "gain", "gain_standard_error"),
    *("above_first", "above_first_standard_error"),
)


@dataclass(frozen=True)
class Crops:
    """How images are varied. Variants with equal ones see the same crops."""

    smallest: float = 0.5  # side of a crop
    mix: float = 0.5  # share with a pasted rectangle
    blend: float = 0.0  # share that is a mean of two crops
    color: float = 0.0  # largest change of brightness, contrast and saturation


@dataclass(frozen=True)
class Variant:
    text: str
    lr: float = 2e-5
    loss: str = "kl"
    temperature: float = 1.0
    logit: float = 1.0  # weight of the loss on predictions
    cls: float = 0.0  # weight of the class token after every block
    last: int = 12  # blocks whose class token is matched, from the end
    patch: float = 0.0  # weight of patch tokens
    train: str = "all"
    batch: int = 32
    average: float = 0.97
    beta: float = 0.98
    crops: Crops = Crops()


def variant(text: str) -> Variant:
    """Read a variant such as ``lr=5e-5,cls=1,smallest=0.3``."""
    given: dict[str, Any] = {}
    for part in filter(None, text.split(",")):
        name, value = part.split("=")
        given[name] = value if name in ("loss", "train") else int(value) if name in ("batch", "last") else float(value)
    of_crops = {field.name: given.pop(field.name) for field in fields(Crops) if field.name in given}
    return Variant(text, crops=Crops(**of_crops), **given)


def photographs() -> tuple[Tensor, Tensor]:
    """Photographs that tune, and those of other classes, that judge: (N, 3, 224, 224)."""
    groups: dict[str, list[Path]] = {}
    for folder in FOLDERS:
        for path in sorted((assets() / folder).rglob("*.[jJ][pP]*")):
            name = path.stem if "coco" in folder else path.stem.rsplit("_", 1)[0]
            groups.setdefault(name, []).append(path)
    names = sorted(groups)
    random.Random(0).shuffle(names)
    tuned: list[Path] = []
    judged: list[Path] = []
    for name in names:
        (tuned if len(tuned) < TUNED else judged).extend(groups[name])
    random.Random(1).shuffle(tuned)
    return read(tuned[:TUNED]), read(judged)


def read(paths: list[Path]) -> Tensor:
    found = []
    for path in paths:
        image = Image.open(path).convert("RGB")
        side = min(image.size)
        left, top = (image.width - side) // 2, (image.height - side) // 2
        image = image.crop((left, top, left + side, top + side)).resize((224, 224), Image.Resampling.BICUBIC)
        found.append(pil_to_tensor(image).float().div(255).sub(0.5).div(0.5))
    return torch.stack(found)


def varied(images: Tensor, crops: Crops, generator: torch.Generator) -> Tensor:
    """Crops of images (B, C, H, W), changed as ``crops`` asks."""
    found = random_crops(images, generator, crops.smallest)
    found = mixed(recolored(found, generator, crops.color), generator, crops.mix)
    return blended(found, generator, crops.blend)


class Outputs:
    """Predictions of a model, and its tokens after every block."""

    def __init__(self, model: nn.Module, images: Tensor, part: slice, blocks: bool) -> None:
        family = inspect(model)
        with torch.autocast("cpu", torch.bfloat16):
            if blocks:
                self.encoded = family.encode(images[part], record=True)
                self.logits = family.head(self.encoded).float()
            else:
                self.logits = model(images[part]).float()

    def cls(self, last: int) -> Tensor:
        return torch.stack([o.stream.tokens[:, 0].float() for o in self.encoded.blocks[-last:]])

    def patches(self) -> list[Tensor]:
        return [spread_to_patches(self.encoded, block, 1)[0].float() for block in (4, 7, 10)]


def standardized_error(ours: Tensor, theirs: Tensor) -> Tensor:
    size = ours.shape[-1:]
    return mse_loss(layer_norm(ours, size), layer_norm(theirs, size))


class Trial:
    """One variant on its way."""

    def __init__(self, model: nn.Module, variant: Variant) -> None:
        self.variant, self.student, self.averaged = variant, copy.deepcopy(model), copy.deepcopy(model)
        self.student.requires_grad_(False)
        trained = [p.requires_grad_() for name, p in self.student.named_parameters() if self._trains(name, p)]
        groups = [
            {"params": [p for p in trained if p.dim() > 1], "weight_decay": 0.01},
            {"params": [p for p in trained if p.dim() <= 1], "weight_decay": 0.0},
        ]
        self.optimizer = torch.optim.AdamW(groups, lr=variant.lr, betas=(0.9, variant.beta))
        self.done, self.seconds, self.losses = 0, 0.0, [0.0, 0.0, 0.0]

    def _trains(self, name: str, parameter: Tensor) -> bool:
        return {
            "all": True,
            "small": parameter.dim() <= 1,
            "attention": "attn" in name or "norm" in name,
            "headless": not name.startswith("head"),
            "blocks": name.startswith(("blocks", "norm")),
        }[self.variant.train]

    def step(self, crops: Tensor, target: Outputs, share: float) -> None:
        started = time.process_time()
        rate = min(1.0, share / recovering.WARMUP + 0.02) * 0.5 * (1 + math.cos(math.pi * share))
        for group in self.optimizer.param_groups:
            group["lr"] = self.variant.lr * rate
        for start in range(0, len(crops), self.variant.batch):
            part = slice(start, start + self.variant.batch)
            self._update(crops, target, part)
        self.seconds += time.process_time() - started

    def _update(self, crops: Tensor, target: Outputs, part: slice) -> None:
        v = self.variant
        found = Outputs(self.student, crops, part, bool(v.cls or v.patch))
        parts = [v.logit * self._of_predictions(found.logits, target.logits[part])]
        if v.cls:
            parts += [v.cls * standardized_error(found.cls(v.last), target.cls(v.last)[:, part])]
        if v.patch:
            pairs = zip(found.patches(), target.patches(), strict=True)
            parts += [v.patch * sum(standardized_error(ours, theirs[part]) for ours, theirs in pairs) / 3]
        for number, one in enumerate(parts):
            self.losses[number] += 0.05 * (float(one.detach()) - self.losses[number])
        self.optimizer.zero_grad(set_to_none=True)
        sum(parts).backward()
        nn.utils.clip_grad_norm_(self.student.parameters(), 1.0)
        self.optimizer.step()
        self.done += 1
        keep = min(v.average, self.done / (self.done + 10))
        with torch.no_grad():
            for ours, theirs in zip(self.averaged.parameters(), self.student.parameters(), strict=True):
                ours.lerp_(theirs, 1 - keep)

    def _of_predictions(self, ours: Tensor, theirs: Tensor) -> Tensor:
        t = self.variant.temperature
        if self.variant.loss == "kl":
            return t * t * divergence(ours / t, theirs / t, True)
        if self.variant.loss == "mse":
            return mse_loss(ours - ours.mean(1, keepdim=True), theirs - theirs.mean(1, keepdim=True))
        p, q = theirs.softmax(1), ours.softmax(1)
        if self.variant.loss == "tv":
            return (p - q).abs().sum(1).mean() / 2
        middle = ((p + q) / 2).clamp_min(1e-12).log()
        log_p, log_q = theirs.log_softmax(1), ours.log_softmax(1)
        return ((p * (log_p - middle)).sum(1) + (q * (log_q - middle)).sum(1)).mean() / 2  # js


def figures(whole: Tensor, reduced: Tensor) -> tuple[float, float, Tensor]:
    """Mean KL and total variation from the unreduced model, and which decisions are its own."""
    kl = divergence(reduced, whole, True)
    variation = (whole.softmax(1) - reduced.softmax(1)).abs().sum(1).mean() / 2
    return float(kl), float(variation), (whole.argmax(1) == reduced.argmax(1)).float() * 100


def paired(one: Tensor, other: Tensor) -> tuple[str, str]:
    change = one - other
    return f"{float(change.mean()):.1f}", f"{float(change.std() / len(change) ** 0.5):.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method", default="Ward", help="name:option=value,...")
    parser.add_argument("--budget", type=float, default=0.35, help="share of the MACs")
    parser.add_argument("--variant", action="append", required=True, help="settings that differ from the first ones")
    parser.add_argument("--steps", type=int, default=200, help="batches of 32 crops")
    parser.add_argument("--threads", type=int, default=1, help="threads torch may use")
    parser.add_argument("--csv", type=Path, help="also write the figures to this file")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    learning, judging = photographs()
    print(len(learning), "tune,", len(judging), "judge", file=sys.stderr)
    teacher, model = vit_tiny().requires_grad_(False), vit_tiny()
    fv.reduce_(model, parse(args.method), fv.Budget(args.budget), exact_last_block=True)
    whole = logits(teacher, judging)
    before = figures(whole, logits(model, judging))
    trials = [Trial(model, variant(text)) for text in args.variant]
    run(trials, teacher, learning, args.steps)
    rows: list[tuple[object, ...]] = []
    first = before[2]
    for trial in trials:
        after = figures(whole, logits(trial.averaged, judging))
        first = after[2] if trial is trials[0] else first
        numbers = (f"{before[0]:.4f}", f"{after[0]:.4f}", f"{before[1]:.4f}", f"{after[1]:.4f}")
        shares = (f"{float(before[2].mean()):.1f}", f"{float(after[2].mean()):.1f}")
        ends = (*paired(after[2], before[2]), *paired(after[2], first))
        head = (args.method, args.budget, trial.variant.text, trial.done, round(trial.seconds))
        rows += [(*head, *numbers, *shares, *ends)]
        print(rows[-1], flush=True)
    if args.csv:
        record(args.csv, COLUMNS, rows, f"ViT-Tiny, {len(learning)} photographs to tune, {len(judging)} to judge")


def run(trials: list[Trial], teacher: nn.Module, images: Tensor, steps: int) -> None:
    """All variants, step by step on the same crops."""
    kinds = {trial.variant.crops: torch.Generator().manual_seed(0) for trial in trials}
    for step in range(steps):
        for kind, generator in kinds.items():
            chosen = torch.randint(len(images), (32,), generator=generator)
            crops = varied(images[chosen], kind, generator)
            ours = [trial for trial in trials if trial.variant.crops == kind]
            with torch.no_grad():
                target = Outputs(teacher, crops, slice(None), any(t.variant.cls or t.variant.patch for t in ours))
            for trial in ours:
                trial.step(crops, target, step / steps)
        if step % 20 == 19 or step == 0:
            losses = ["/".join(f"{loss:.3f}" for loss in trial.losses) for trial in trials]
            print(f"step {step + 1}:", *losses, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
