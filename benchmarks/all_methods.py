"""Every training-free method on a pretrained ViT-Tiny, at equal cost: the fair comparison behind docs/methods/.

Each method has the same share of the MACs, its own included, by its default schedule and with the exact last block.
Run as ``FOVEATE_ASSETS=... python benchmarks/all_methods.py --store all.json --csv results/all_methods.csv``. It writes
each figure to --store at once, and continues from there if it is started again. ``--speed`` measures seconds instead,
in batches of 1 and 16; the machine must be quiet.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path
from typing import Any

import torch
from photographs import assets, logits, photographs, vit_tiny
from recording import record
from torch import Tensor, nn
from torch.nn.functional import kl_div

import foveate as fv
from foveate.files import write_text
from foveate.methods.options import parse
from foveate.report.compare.candidates import default_methods

SETS = ("imagenet_dev", "imagenet_sample")
BUDGETS = (0.5, 0.65, 0.35, 0.8)
COLUMNS = ("method", "kind", "budget", "macs_percent")
FIGURES = ("agreement", "agreement_error", "kl", "top1_lost")
SPEEDS = ("method", "batch", "budget", "macs_percent", "speedup", "speedup_q1", "speedup_q3", "realized", "efficiency")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", nargs="+", help="default: every training-free method but the free slice")
    parser.add_argument("--budgets", nargs="+", type=float, default=list(BUDGETS))
    parser.add_argument("--limit", type=int, help="use the first N photographs of each set only")
    parser.add_argument(
        "--store", type=Path, default=Path("out/all_methods.json"), help="figures so far; continued from"
    )
    parser.add_argument("--csv", type=Path, help="also write the figures to this file, as in results/")
    parser.add_argument("--speed", action="store_true", help="measure seconds instead")
    parser.add_argument("--seconds", type=float, default=4.0, help="with --speed: seconds for each method and batch")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    methods = args.methods or default_methods()
    measure_speeds(methods, args) if args.speed else measure_fidelity(methods, args)


def measure_fidelity(methods: list[str], args: argparse.Namespace) -> None:
    found: dict[str, Any] = json.loads(args.store.read_text()) if args.store.is_file() else {}
    model, start = vit_tiny(), time.perf_counter()
    held = {name: photographs(assets() / name, args.limit) for name in SETS}
    whole = unreduced_logits(model, held, args.store.with_suffix(f".{args.limit}.pt"))
    for budget in args.budgets:
        for name in methods:
            key = f"{name} {budget:g} {args.limit}"
            if key not in found:
                found[key] = one(model, name, budget, held, whole)
                write_text(args.store, json.dumps(found, indent=1))
                print(f"{time.perf_counter() - start:6.0f} s  {key}  {found[key]}", flush=True)
    if args.csv:
        falling = sorted(args.budgets, reverse=True)
        write_fidelity(args.csv, [found[f"{n} {b:g} {args.limit}"] for n in methods for b in falling], held)


def unreduced_logits(model: nn.Module, held: Any, cache: Path) -> dict[str, Tensor]:
    """The unreduced model's logits, kept beside the figures so far."""
    if not cache.is_file():
        torch.save({name: logits(model, images) for name, (images, _) in held.items()}, cache)
    return torch.load(cache, weights_only=True)


def one(model: nn.Module, name: str, budget: float, held: Any, whole: dict[str, Tensor]) -> dict[str, Any]:
    """One method at one budget, or why it cannot be reached."""
    method, unreduced = parse(name), fv.cost(model).macs
    row: dict[str, Any] = {"method": name, "kind": method.kind, "budget": budget}
    try:
        fv.reduce_(model, method, fv.Budget(budget), exact_last_block=True)
    except ValueError as error:
        return {**row, "refused": str(error)}
    try:
        row["macs_percent"] = 100 * fv.cost(model).macs / unreduced
        for part, (images, labels) in held.items():
            row[part] = figures(logits(model, images), whole[part], labels)
    finally:
        fv.restore_(model)
    return row


def figures(kept: Tensor, whole: Tensor, labels: Tensor) -> dict[str, float]:
    agrees = (kept.argmax(1) == whole.argmax(1)).float().mean().item()
    lost = (whole.argmax(1) == labels).float().mean() - (kept.argmax(1) == labels).float().mean()
    divergence = kl_div(kept.log_softmax(1), whole.log_softmax(1), log_target=True, reduction="batchmean").item()
    error = math.sqrt(agrees * (1 - agrees) / len(kept))
    return {"agreement": agrees, "agreement_error": error, "kl": divergence, "top1_lost": lost.item()}


def write_fidelity(path: Path, rows: list[dict[str, Any]], held: Any) -> None:
    names = [f"{part.removeprefix('imagenet_')}_{figure}" for part in SETS for figure in FIGURES]
    cells = []
    for row in rows:
        values = [row.get(part, {}).get(figure) for part in SETS for figure in FIGURES]
        scaled = [
            None if v is None else f"{v:.4f}" if name.endswith("kl") else f"{100 * v:.1f}"
            for v, name in zip(values, names, strict=True)
        ]
        macs = row.get("macs_percent")
        cells.append([row["method"], row["kind"], row["budget"], None if macs is None else f"{macs:.1f}", *scaled])
    counts = " and ".join(f"{len(images)} of {part}" for part, (images, _) in held.items())
    record(
        path,
        (*COLUMNS, *names),
        cells,
        f"ViT-Tiny, photographs: {counts}; exact last block; percent",
        "agreement_error is the standard error of the agreement; differences below about twice that are not visible.",
        "An empty row is a budget that the method cannot reach with its default schedule.",
        "Both sets were at hand when the default schedules, which all methods share, were designed.",
    )


def measure_speeds(methods: list[str], args: argparse.Namespace) -> None:
    """Speed beside the unreduced model and a free slice, which drops tokens blindly to the same counts."""
    found: dict[str, Any] = json.loads(args.store.read_text()) if args.store.is_file() else {}
    model, rows = vit_tiny(), []
    for name in methods:
        for budget in sorted(args.budgets, reverse=True):
            reduction = fv.Reduction(parse(name), fv.Budget(budget), exact_last_block=True)
            for batch in (1, 16):
                key = f"speed {name} {budget:g} {batch}"
                if key not in found:
                    found[key] = speed(model, reduction, batch, args.seconds)
                    write_text(args.store, json.dumps(found, indent=1))
                    print(key, *found[key], flush=True)
                rows += [[name, batch, budget, *found[key]]] if found[key] else []
    if args.csv:
        sample = "ViT-Tiny, random images of 224 x 224; unreduced, reduced and free slice in turns; medians"
        record(args.csv, SPEEDS, rows, sample)


def speed(model: nn.Module, reduction: fv.Reduction, batch: int, seconds: float) -> list[str]:
    """What one row of ``SPEEDS`` holds behind the budget; empty if the method cannot reach it."""
    try:
        found = fv.measure_speed(model, reduction, batch_size=batch, seconds=seconds)
    except fv.PlanError as error:
        print(error, flush=True)
        return []
    ratios = (found.speed_up, *found.speed_up_quartiles, found.realized, found.efficiency)
    return [f"{100 / found.mac_ratio:.1f}", *(f"{value:.2f}" for value in ratios)]


if __name__ == "__main__":
    main()
