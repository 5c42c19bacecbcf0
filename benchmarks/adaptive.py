"""Different counts for different images against the same counts for all, at equal average MACs, on a real ViT-Tiny.

The threshold is fitted on half of ``imagenet_dev``; ``imagenet_sample`` judges. Run as
``FOVEATE_ASSETS=... python benchmarks/adaptive.py --csv results/adaptive.csv``; with ``--speed`` it measures seconds at
batches of 1 and 16 instead, on a quiet machine: --csv results/adaptive_speed.csv.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
from photographs import assets, logits, photographs, vit_tiny
from recording import record
from torch import Tensor, nn

import foveate as fv
from foveate.adapters.adaptive import plans_of_levels
from foveate.costs import count
from foveate.methods.options import parse

COLUMNS = ("method", "budget", "fixed", "adaptive", "error_of_difference", "fixed_macs", "adaptive_macs", "levels")
SPEEDS = ("method", "batch", "way", "milliseconds_per_image", "q1", "q3", "speedup_over_fixed")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", nargs="+", default=["Ward", "ToMe", "TopK"])
    parser.add_argument("--budgets", nargs="+", type=float, default=[0.5, 0.35])
    parser.add_argument("--limit", type=int, help="judge by the first N photographs only")
    parser.add_argument("--fit", type=int, default=128, help="photographs to fit thresholds on")
    parser.add_argument("--csv", type=Path, help="also write the figures to this file, as in results/")
    parser.add_argument("--speed", action="store_true", help="measure seconds at half of the MACs instead")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    fit, _ = photographs(assets() / "imagenet_dev", args.fit)
    images, _ = photographs(assets() / "imagenet_sample", args.limit)
    (measure_speeds if args.speed else measure_decisions)(fit, images, args)


def adaptive(name: str, budget: float, fit: Tensor) -> Any:
    model = fv.reduce_(vit_tiny(), parse(name), fv.Adaptive(budget), exact_last_block=True)
    return fv.fit_adaptive_(model, fit.split(32))


def fixed_like(model: Any, name: str, budget: float) -> Any:
    """The same method at the same blocks with the same counts for all images."""
    plan = model.foveate.plan
    blocks = tuple(block for block in range(len(plan.counts)) if plan.acts_in(block))
    return fv.reduce_(vit_tiny(), parse(name), fv.Budget(budget, blocks), exact_last_block=True)


def measure_decisions(fit: Tensor, images: Tensor, args: argparse.Namespace) -> None:
    plain, rows = vit_tiny(), []
    whole, unreduced = logits(plain, images).argmax(1), fv.cost(plain).macs
    for name, budget in product(args.methods, args.budgets):
        model = adaptive(name, budget, fit)
        fixed = fixed_like(model, name, budget)
        decisions, levels = decisions_and_levels(model, images)
        agrees = [(found == whole).float() for found in (logits(fixed, images).argmax(1), decisions)]
        plans = plans_of_levels(model.foveate, model.foveate.shape.grid)
        spent = torch.tensor([count(model.foveate.shape, plan, parse(name), 0).macs / unreduced for plan in plans])
        error = (agrees[1] - agrees[0]).std().item() / math.sqrt(len(images))
        shares = (*(one.mean().item() for one in agrees), error, fv.cost(fixed).macs / unreduced, spent[levels].mean())
        used = "+".join(map(str, levels.bincount(minlength=len(plans)).tolist()))
        rows.append([name, budget, *(f"{100 * share:.1f}" for share in shares), used])
        print(*rows[-1], flush=True)
    if args.csv:
        sample = (
            f"ViT-Tiny, {len(images)} photographs of imagenet_sample judge, {len(fit)} of imagenet_dev fit thresholds"
        )
        note = (
            "percent; decisions that are the unreduced model's; the error is of adaptive minus fixed, over photographs"
        )
        record(args.csv, COLUMNS, rows, sample, note)


def decisions_and_levels(model: Any, images: Tensor) -> tuple[Tensor, Tensor]:
    """The decision and the level of each image."""
    chosen: list[Tensor] = []
    original = fv.Adaptive.choose

    def watched(self: fv.Adaptive, *args: Any) -> Tensor:
        chosen.append(original(self, *args))
        return chosen[-1]

    fv.Adaptive.choose = watched  # type: ignore[method-assign]
    try:
        return logits(model, images).argmax(1), torch.cat(chosen)
    finally:
        fv.Adaptive.choose = original  # type: ignore[method-assign]


def measure_speeds(fit: Tensor, images: Tensor, args: argparse.Namespace) -> None:
    rows = []
    for name in args.methods:
        model = adaptive(name, 0.5, fit)
        fixed = fixed_like(model, name, 0.5)
        for batch, number in ((1, 32), (16, 128)):
            batches = list(images[:number].split(batch))
            ways = {"fixed": partial(each, fixed, batches), "adaptive": partial(each, model, batches)}
            if batch > 1:
                ways["adaptive, grouped over 128"] = partial(grouped, model, batches)
            times = in_turns(ways, args.rounds)
            for way, seconds in times.items():
                low, middle, high = (1000 * q / number for q in statistics.quantiles(seconds, n=4))
                gain = statistics.median(a / b for a, b in zip(times["fixed"], seconds, strict=True))
                rows.append([name, batch, way, *(f"{value:.2f}" for value in (middle, low, high, gain))])
                print(*rows[-1], flush=True)
    if args.csv:
        sample = (
            f"ViT-Tiny, half of the MACs on average, {args.rounds} rounds in turns over photographs of imagenet_sample"
        )
        record(args.csv, SPEEDS, rows, sample)


@torch.inference_mode()
def each(model: nn.Module, batches: list[Tensor]) -> None:
    for batch in batches:
        model(batch)


def grouped(model: nn.Module, batches: list[Tensor]) -> None:
    list(fv.predict_grouped(model, batches, 128))


def in_turns(ways: dict[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(rounds + 1):
        for name, run in ways.items():
            start = time.perf_counter()
            run()
            if turn:  # the first warms up
                times[name].append(time.perf_counter() - start)
    return times


if __name__ == "__main__":
    main()
