"""Task-agnostic distillation into EViT: does it help, and do patch tokens help more than the class token alone?

    FOVEATE_ASSETS=... python benchmarks/distillation.py [--steps 2000] [--keep 0.7 0.5] [--out DIR]

A pretrained ViT-Tiny teaches a smaller EViT student on Imagenette's training images, at 128 px, without labels; then a
linear classifier is trained on the frozen student. The student from scratch is trained with labels for as many steps
and images as both together. Accuracy is that of the best epoch, as in the paper. Students train in parallel, each with
its share of the cores; their progress is in DIR/*.log.
"""

from __future__ import annotations

import argparse
import os
from concurrent.futures import ProcessPoolExecutor
from contextlib import redirect_stderr
from functools import partial
from itertools import product
from multiprocessing import get_context
from pathlib import Path

import torch
from imagenette import folder, parser, report, train
from photographs import vit_tiny

import foveate as fv

SIZE = 128  # pixels; the teacher is still right on 92 % of the validation images, at a third of the cost
STUDENT = {"img_size": SIZE, "depth": 4}  # of the teacher's twelve blocks
SITES = "1,2,3"
PROBE_STEPS = 400
KINDS = ("all", "class", "scratch")  # the longest first, so that no core idles for long at the end
SHORT = (
    "augmentation.scale=0.5,1",
    "optimizer.clip_norm=1",
)  # a crop of a tenth of an image teaches too little in few steps


def main() -> None:
    made = parser(__doc__ or "", steps=2000, batch_size=16)
    made.add_argument("--keep", type=float, nargs="+", default=[0.7, 0.5])
    made.add_argument("--kinds", nargs="+", default=list(KINDS), choices=KINDS)
    made.add_argument("--lr", type=float, default=4e-4, help="learning rate of a distillation (default: %(default)s)")
    made.add_argument(
        "--scratch-lr",
        type=float,
        default=3e-4,
        help="learning rate of the student from scratch (default: %(default)s)",
    )
    made.add_argument("--patch-weight", type=float, default=4.0)
    args = made.parse_args()
    students = list(product(args.kinds, args.keep))
    cores = os.cpu_count() or 1
    together = min(cores, len(students))
    with folder(args.out) as place:
        fv.save(vit_tiny(SIZE), place / "teacher")
        print(f"Progress: {place}/*.log", flush=True)
        workers = ProcessPoolExecutor(together, get_context("spawn"), torch.set_num_threads, (cores // together,))
        with workers:
            list(workers.map(partial(learn, place, args), students))


def learn(place: Path, args: argparse.Namespace, chosen: tuple[str, float]) -> None:
    """Train one student and report its accuracy."""
    kind, keep = chosen
    with (place / f"{kind}-{keep}.log").open("a", buffering=1) as log, redirect_stderr(log):
        if kind == "scratch":
            top1 = from_scratch(place / f"scratch-{keep}", args, keep)
            report(keep=keep, start="scratch", steps=args.steps + PROBE_STEPS, top1=top1)
        else:
            loss, top1 = distilled(place / f"{kind}-{keep}", place / "teacher", args, keep, kind)
            report(keep=keep, start=f"distill {kind}", steps=args.steps, probe=PROBE_STEPS, loss=loss, top1=top1)


def student(keep: float) -> list[str]:
    """Return the overrides that define the student, for any recipe."""
    options = [f"model.options.{name}={value}" for name, value in STUDENT.items()]
    pruned = ["reduction.method=evit", f"reduction.keep_rate={keep}", f"reduction.blocks={SITES}"]
    return ["model.name=vit_tiny_patch16_224", "model.pretrained=false", *options, *pruned]


def from_scratch(place: Path, args: argparse.Namespace, keep: float) -> float | None:
    longer = argparse.Namespace(**{**vars(args), "steps": args.steps + PROBE_STEPS})
    rates = [f"optimizer.lr={args.scratch_lr}", "schedule.warmup_epochs=0.2"]
    return train("finetune", place, longer, *student(keep), *rates, *SHORT).best


def distilled(
    place: Path, teacher: Path, args: argparse.Namespace, keep: float, kind: str
) -> tuple[float | None, float | None]:
    """Return the last loss of a distillation, and the accuracy of a linear classifier on top."""
    recipe = "distill-all" if kind == "all" else "distill-cls"
    overrides = [f"objective.teacher={teacher}", "objective.teacher_options={}", f"optimizer.lr={args.lr}"]
    overrides += [f"objective.patch_weight={args.patch_weight}", "schedule.warmup_epochs=0.2", *SHORT]
    run = train(recipe, place, args, *student(keep), *overrides)
    probe = argparse.Namespace(**{**vars(args), "steps": PROBE_STEPS})
    head = train(
        "linear-probe",
        place.with_name(place.name + "-probe"),
        probe,
        f"model.name={place / 'model'}",
        "optimizer.lr=3e-2",
        *SHORT,
    )
    return sum(run.history[-1]["train"].values()), head.best


if __name__ == "__main__":
    main()
