"""How well ``fv.search`` predicts speeds: its latency model against timings of reduced models.

    python benchmarks/latency_model.py [--model deit_small_patch16_224] [--batch-size 1 16] [--threads 2] [--csv FILE]

Every method is fitted once and predicts the speed-up of its default schedules; each is then timed in turns with the
unreduced model. Weights are random, which does not change the time.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from statistics import median

import timm
import torch
from recording import record

import foveate as fv
from foveate.methods.options import parse
from foveate.tuning.expenses import Seconds

COLUMNS = ("method", "batch_size", "budget", "predicted_speedup", "measured_speedup", "error_percent", "fit_seconds")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="deit_small_patch16_224")
    parser.add_argument("--methods", nargs="+", default=["ToMe", "TokenPooling", "Ward", "EViT"])
    parser.add_argument("--budgets", nargs="+", type=float, default=[0.8, 0.65, 0.5, 0.35])
    parser.add_argument("--batch-size", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--seconds", type=float, default=5.0, help="for each timing of a reduced model")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--csv", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    model = timm.create_model(args.model).eval()
    rows = []
    for name in args.methods:
        method = parse(name)
        for batch_size in args.batch_size:
            start = time.perf_counter()
            fitted = Seconds(model, [method], batch_size, exact_last_block=True)
            fit = time.perf_counter() - start
            for budget in args.budgets:
                reduction = fv.Reduction(method, fv.Budget(budget), exact_last_block=True)
                with fv.reduced(model, reduction):
                    counts = [tokens - 1 for tokens in fv.cost(model).tokens]
                predicted = fitted.whole() / fitted.total(method, counts, fitted.patches)
                found = fv.measure_speed(model, reduction, batch_size=batch_size, seconds=args.seconds).speed_up
                figures = (f"{predicted:.2f}", f"{found:.2f}", f"{100 * (predicted / found - 1):+.1f}", f"{fit:.0f}")
                rows.append((name, batch_size, budget, *figures))
                print(*rows[-1], flush=True)
    errors = [abs(float(row[5])) for row in rows]
    print(f"error: median {median(errors):.1f} %, largest {max(errors):.1f} %")
    if args.csv:
        record(args.csv, COLUMNS, rows, f"{args.model}, random weights, default schedules with the exact last block")


if __name__ == "__main__":
    main()
