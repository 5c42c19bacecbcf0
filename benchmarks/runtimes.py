"""Reduced models in every runtime, as multiples of the unreduced model in eager PyTorch.

    python benchmarks/runtimes.py [--model deit_small_patch16_224] [--batch-size 1 16] [--threads 2] [--seconds 20]
        [--runtimes eager onnxruntime openvino] [--precisions fp32 int8]
        [--candidates EViT ToMe TokenPooling Ward Ward:rounds=1 "Ward:rounds=2, four sites"]
        [--files DIR] [--prepare] [--csv FILE]

``fv.measure_runtimes`` with a schedule for each method: all take turns, each beside its free slice in the same runtime.
``Ward:rounds=1`` is Ward in one round instead of three; four sites are blocks 3, 5, 7 and 9.
Weights are random, which does not change the time; int8 is calibrated on noise, so only its time means anything here.
``--files`` keeps the exported files for the next call, and ``--prepare`` only writes them: exports take minutes, and a
quiet machine is rare.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

import timm
import torch

import foveate as fv
from foveate.deploy import RuntimeSpeed
from foveate.evaluation.environment import describe_environment

FOUR = (3, 5, 7, 9)
"""Half as many sites as the default has at half of the MACs."""
CANDIDATES: dict[str, fv.Reduction] = {
    "EViT": fv.Reduction(fv.EViT(), fv.KeepRate(0.7)),
    "ToMe": fv.Reduction(fv.ToMe(), fv.Budget(0.5)),
    "TokenPooling": fv.Reduction(fv.TokenPooling(), fv.Budget(0.5)),
    "Ward": fv.Reduction(fv.Ward(), fv.Budget(0.5)),
    "Ward:rounds=1": fv.Reduction(fv.Ward(rounds=1), fv.Budget(0.5)),
    "Ward:rounds=2, four sites": fv.Reduction(fv.Ward(rounds=2), fv.Budget(0.5, blocks=FOUR)),
    "TokenPooling, four sites": fv.Reduction(fv.TokenPooling(), fv.Budget(0.5, blocks=FOUR)),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="deit_small_patch16_224")
    parser.add_argument("--batch-size", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--runtimes", nargs="+", default=["eager", "onnxruntime", "openvino"])
    parser.add_argument("--precisions", nargs="+", default=["fp32", "int8"])
    parser.add_argument("--candidates", nargs="+", choices=list(CANDIDATES), default=list(CANDIDATES))
    parser.add_argument("--csv", type=Path)
    parser.add_argument("--files", type=Path)
    parser.add_argument("--prepare", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(0)
    results = fv.measure_runtimes(
        timm.create_model(args.model).eval(),
        [CANDIDATES[name] for name in args.candidates],
        runtimes=args.runtimes,
        precisions=args.precisions,
        batch_sizes=[] if args.prepare else args.batch_size,
        seconds=args.seconds,
        threads=args.threads,
        keep_files=args.files,
        progress=lambda phase, done, total, note="": print(f"{phase} {done}/{total}", flush=True),
    )
    if args.prepare:
        return
    print(describe_environment(torch.device("cpu"), torch.float32))
    rows = [as_row(result) for result in results]
    for row in rows:
        print("  ".join(f"{name} {value}" for name, value in row.items()), flush=True)
    if args.csv:
        with args.csv.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)


def as_row(result: RuntimeSpeed) -> dict[str, str | int]:
    """One line of the table."""
    names = {reduction: name for name, reduction in CANDIDATES.items()}
    return {
        "candidate": names.get(result.reduction, "unreduced"),
        "runtime": result.runtime.title,
        "batch": result.batch_size,
        "threads": result.threads,
        "ms": f"{result.milliseconds:.2f}",
        "over eager": f"{result.speed_up:.2f}",
        "over same runtime": f"{result.speed_up_within:.2f}",
        "efficiency": "" if result.efficiency is None else f"{result.efficiency:.2f}",
        "load s": f"{result.load_seconds:.1f}",
        "rounds": result.rounds,
    }


if __name__ == "__main__":
    main()
