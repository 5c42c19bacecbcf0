"""HVT against DeiT-S: how much of the saved MACs becomes speed.

    python benchmarks/hvt_speed.py [--batch-size 16] [--threads 2] [--seconds 60]

Models take turns within a round; ratios are paired within rounds and their median is printed.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import median, quantiles

import timm
import torch
from recording import record

import foveate as fv
from foveate.evaluation.environment import describe_environment
from foveate.evaluation.timing import interleave, timer

BASE, MODELS = "deit_small_patch16_224", ("hvt_small_0", "hvt_small_1", "hvt_small_4")
TARGETS = {"hvt_small_1": 0.97, "hvt_small_4": 0.90}  # for the share of the MAC ratio that becomes speed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--csv", type=Path, help="also write the figures to this file, as in results/")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    models = {name: timm.create_model(name).eval() for name in (BASE, *MODELS)}
    images = torch.randn(args.batch_size, 3, 224, 224)
    timers = {name: timer(model, images) for name, model in models.items()}
    with torch.inference_mode():
        interleave(timers, rounds=1)  # warms up
        rounds = interleave(timers, None, args.seconds)
    costs = {name: fv.cost(model).macs for name, model in models.items()}
    machine = describe_environment(torch.device("cpu"), torch.float32)
    print(f"{machine}; batch {args.batch_size}, {len(rounds)} rounds")
    rows = []
    for name in MODELS:
        ratios = [r[BASE] / r[name] for r in rounds]
        low, _, high = quantiles(ratios, n=4)
        macs = costs[BASE] / costs[name]
        rate = args.batch_size / median(r[name] for r in rounds)
        print(
            f"{name}: {rate:.1f} img/s, {median(ratios):.3f}x ({low:.3f}-{high:.3f}) of {BASE}, "
            f"MAC ratio {macs:.3f}, realized {median(ratios) / macs:.3f}"
        )
        realized = median(ratios) / macs
        figures = f"{rate:.1f} {median(ratios):.2f} {low:.2f} {high:.2f} {macs:.3f} {realized:.2f}".split()
        rows.append([name, *figures, TARGETS.get(name)])
    if args.csv:
        columns = ("model", "images_per_second", "of_deit_small", "q1", "q3", "mac_ratio", "realized", "target")
        record(args.csv, columns, rows, f"batch {args.batch_size}, 224 px, {len(rounds)} rounds in turns with DeiT-S")


if __name__ == "__main__":
    main()
