"""ClusTR against PVT v2: the cost of clustering, and how time grows with the image size.

    python benchmarks/clustr_speed.py [--batch-size 8] [--threads 2] [--seconds 60] [--sizes 224 448 896]

First at 224 px, in turns: clustr_small as in the paper, with options for speed, and timm's pvt_v2_b2. "realized" is
images per second divided by (pvt_v2_b2's times the ratio of their MACs without the clustering). Then the time per pixel
at each size, one image at a time, relative to the first size. Ratios are paired within rounds; medians are printed.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from statistics import median, quantiles

import timm
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import foveate as fv
from foveate.evaluation.environment import describe_environment
from foveate.evaluation.timing import interleave
from foveate.models.clustr_attention import TokenClusters

BASE = "pvt_v2_b2"
VARIANTS: dict[str, dict[str, object]] = {
    "faithful": {},
    "window 14": {"window": 14},
    "share": {"share": True},
    "project 16": {"project": 16},
    "window 14, share": {"window": 14, "share": True},
}
GROWING: dict[str, dict[str, object]] = {
    "faithful": {},
    "window 14, share": {"window": 14, "share": True},
    "attend within 224 px": {"attend_within": 224},
    "attend within 224 px, window 14": {"attend_within": 224, "window": 14},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--rounds", type=int, default=2, help="rounds for each size")
    parser.add_argument("--growth-only", action="store_true")
    parser.add_argument("--skip", nargs="+", default=[], help="variants whose growth is not measured: faithful, ...")
    parser.add_argument("--sizes", type=int, nargs="+", default=[224, 448, 896])
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    print(f"{describe_environment(torch.device('cpu'), torch.float32)}; batch {args.batch_size}", flush=True)
    if not args.growth_only:
        compare_with_pvt(args)
    growth(args)


def clustr(options: dict[str, object]) -> nn.Module:
    torch.manual_seed(0)
    return timm.create_model("clustr_small", clustering=options).eval()


def compare_with_pvt(args: argparse.Namespace) -> None:
    models = {BASE: timm.create_model(BASE).eval(), **{name: clustr(options) for name, options in VARIANTS.items()}}
    clocks = {name: Clock(model) for name, model in models.items()}
    images = torch.randn(args.batch_size, 3, 224, 224)
    timers = {name: timer(model, images, clocks[name]) for name, model in models.items()}
    interleave(timers, rounds=1)
    for clock in clocks.values():
        clock.shares.clear()
    rounds = interleave(timers, None, args.seconds)
    base_macs = counted(models[BASE])
    print("\n| clustr_small | GMACs | clustering | img/s | of pvt_v2_b2's | quartiles | realized | clustering's time |")
    print("|---|---|---|---|---|---|---|---|")
    for name in VARIANTS:
        cost = fv.cost(models[name])
        ratios = [r[BASE] / r[name] for r in rounds]
        low, _, high = quantiles(ratios, n=4)
        realized = median(ratios) * (cost.macs - cost.reduction_macs) / base_macs
        rate, share = args.batch_size / median(r[name] for r in rounds), median(clocks[name].shares)
        print(
            f"| {name} | {cost.macs / 1e9:.2f} | {cost.reduction_macs / 1e9:.2f} | {rate:.2f} | {median(ratios):.3f} | "
            f"{low:.3f}-{high:.3f} | {realized:.3f} | {share:.1%} |"
        )
    print(f"{len(rounds)} rounds; {BASE}: {base_macs / 1e9:.2f} GMACs", flush=True)


def growth(args: argparse.Namespace) -> None:
    print("\n| time per pixel | " + " | ".join(f"{size} px" for size in args.sizes) + " |")
    print("|---" * (len(args.sizes) + 1) + "|")
    models = {name: clustr(options) for name, options in GROWING.items() if name not in args.skip} | {
        BASE: timm.create_model(BASE).eval()
    }
    for name, model in models.items():
        timers = {str(size): timer(model, torch.randn(1, 3, size, size)) for size in args.sizes}
        timers[str(args.sizes[0])]()  # warms up; the largest takes a minute
        rounds = interleave(timers, rounds=args.rounds)
        first = args.sizes[0]
        times = [median(r[str(s)] / r[str(first)] for r in rounds) * (first / s) ** 2 for s in args.sizes]
        print(f"| {name} | " + " | ".join(f"{value:.2f}" for value in times) + " |", flush=True)


class Clock:
    """Measures the share of its time that a model spends on clustering."""

    def __init__(self, model: nn.Module) -> None:
        self.shares: list[float] = []
        self.seconds = 0.0
        for module in model.modules():
            if isinstance(module, TokenClusters):
                module.register_forward_pre_hook(self.begin)
                module.register_forward_hook(self.end)

    def begin(self, *_: object) -> None:
        self.started = time.perf_counter()

    def end(self, *_: object) -> None:
        self.seconds += time.perf_counter() - self.started


def timer(model: nn.Module, images: torch.Tensor, clock: Clock | None = None) -> Callable[[], float]:
    """Return a timer for one pass."""

    @torch.no_grad()
    def run_once() -> float:
        if clock is not None:
            clock.seconds = 0.0
        start = time.perf_counter()
        model(images)
        seconds = time.perf_counter() - start
        if clock is not None:
            clock.shares.append(clock.seconds / seconds)
        return seconds

    return run_once


def counted(model: nn.Module) -> int:
    """Count the MACs of a model that foveate does not know, with torch's counter."""
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(torch.randn(1, 3, 224, 224))
    return counter.get_total_flops() // 2


if __name__ == "__main__":
    main()
