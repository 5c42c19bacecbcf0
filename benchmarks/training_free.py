"""Fidelity of a pretrained ViT-Tiny when it is reduced without training, at equal cost.

Every method runs under the same MAC budget, its own cost included, with the exact last block. Reported are agreement
with the unreduced model's decisions, the mean KL(unreduced || reduced) of the probabilities, top-1, and the seconds for
all photographs. Run as ``FOVEATE_ASSETS=... python benchmarks/training_free.py``; with
``--csv results/training_free.csv`` the README's table can be rendered again (results/render.py).
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from photographs import assets, logits, photographs, vit_tiny
from recording import record
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor, nn
from torch.nn.functional import kl_div

import foveate as fv
from foveate.methods.options import parse

METHODS = (
    "random",
    "importance",
    "topk",
    "power",
    "evit",
    "tome",
    "token-pooling:output=medoid,rescale=false,proportional_attention=false",
    "token-pooling:output=medoid,rescale=false",
    "token-pooling:rescale=false,proportional_attention=false",
    "token-pooling:rescale=false",
    "token-pooling",
    "ward",
    "ward:search=greedy",
)
NAMES = (  # of METHODS, in results/training_free.csv
    "RandomSelect",
    "ImportanceSelect",
    "TopK",
    "PoWER",
    "EViT",
    "ToMe",
    "TokenPooling, medoids, no proportional attention (the paper's)",
    "TokenPooling, medoids, proportional attention",
    "TokenPooling, means, no proportional attention",
    "TokenPooling, means, proportional attention",
    "TokenPooling",
    "Ward",
    "Ward, greedy",
)
BUDGETS = (0.8, 0.65, 0.5)


@dataclass(frozen=True)
class Result:
    """One method at one budget."""

    method: str
    budget: float
    macs: float  # share of the unreduced model's
    agreement: float
    divergence: float
    top1: float
    seconds: float


def measure(model: nn.Module, name: str, budget: float, images: Tensor, labels: Tensor, whole: Tensor) -> Result:
    """Reduce the model, run it over all images, and restore it."""
    unreduced = fv.cost(model).macs
    fv.reduce_(model, parse(name), fv.Budget(budget), exact_last_block=True)
    try:
        share = fv.cost(model).macs / unreduced
        start = time.perf_counter()
        kept = logits(model, images)
        seconds = time.perf_counter() - start
    finally:
        fv.restore_(model)
    divergence = kl_div(kept.log_softmax(1), whole.log_softmax(1), log_target=True, reduction="batchmean")
    agreement = (kept.argmax(1) == whole.argmax(1)).float().mean()
    top1 = (kept.argmax(1) == labels).float().mean()
    return Result(name, budget, share, float(agreement), float(divergence), float(top1), seconds)


def print_results(results: list[Result], title: str) -> None:
    table = Table("method", "of the MACs", "agreement", "KL", "top-1", "seconds", title=title)
    for i, r in enumerate(results):
        ends = i + 1 < len(results) and results[i + 1].budget != r.budget
        cells = f"{r.macs:.1%}", f"{r.agreement:.1%}", f"{r.divergence:.4f}", f"{r.top1:.1%}", f"{r.seconds:.1f}"
        table.add_row(r.method, *cells, end_section=ends)
    Console(width=120).print(table)


def write_csv(path: Path, results: list[Result], images: int) -> None:
    """Write all rows but the unreduced model's, which is in the header; rows of one method are adjacent."""
    unreduced, *reduced = results
    names = dict(zip(METHODS, NAMES, strict=True))
    order = list(dict.fromkeys(r.method for r in reduced))
    rows = [
        (
            names.get(r.method, r.method),
            r.budget,
            f"{100 * r.agreement:.1f}",
            f"{r.divergence:.4f}",
            f"{100 * r.top1:.1f}",
            f"{r.seconds:.1f}",
        )
        for r in sorted(reduced, key=lambda r: order.index(r.method))
    ]
    columns = ("method", "budget", "agreement_percent", "kl", "top1_percent", "seconds")
    whole = f"{unreduced.top1:.1%} top-1 unreduced, {unreduced.seconds:.1f} s"
    record(path, columns, rows, f"ViT-Tiny, {images} photographs ({whole}), with the exact last block")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--limit", type=int, help="use the first N photographs only")
    parser.add_argument("--budget", type=float, nargs="+", default=BUDGETS, help="shares of the MACs")
    parser.add_argument("--method", nargs="+", default=METHODS, help="name:option=value,... as in `foveate methods`")
    parser.add_argument("--threads", type=int, default=2, help="threads torch may use")
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    parser.add_argument("--csv", type=Path, help="also write the figures to this file, as in results/")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    images, labels = photographs(assets() / "imagenet_dev", args.limit)
    model = vit_tiny()
    start = time.perf_counter()
    whole = logits(model, images)
    seconds = time.perf_counter() - start
    results = [Result("unreduced", 1.0, 1.0, 1.0, 0.0, float((whole.argmax(1) == labels).float().mean()), seconds)]
    work = [(name, budget) for budget in args.budget for name in args.method]
    for name, budget in track(work, description="measuring"):
        results.append(measure(model, name, budget, images, labels, whole))
    print_results(results, f"ViT-Tiny, {len(images)} photographs, exact last block")
    if args.json:
        args.json.write_text(json.dumps([vars(r) for r in results], indent=1) + "\n")
    if args.csv:
        write_csv(args.csv, results, len(images))


if __name__ == "__main__":
    main()
