"""Agreement of a pretrained ViT-Tiny with itself when it is reduced without training.

Reads the weights and photographs in the folder named by FOVEATE_ASSETS; run as
``FOVEATE_ASSETS=... python benchmarks/agreement.py [--limit N]``.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from photographs import assets, logits, photographs, vit_tiny
from recording import record
from rich.console import Console
from rich.progress import track
from rich.table import Table

import foveate as fv

THREE = fv.KeepRate(0.7, blocks=(3, 6, 9))
SETTINGS: list[tuple[fv.Method, fv.Schedule]] = [
    (fv.ToMe(), fv.RemovePerBlock(8)),
    (fv.ToMe(), fv.RemovePerBlock(13)),
    (fv.ToMe(proportional_attention=False), fv.RemovePerBlock(13)),
    (fv.TopK(), THREE),
    (fv.EViT(), THREE),
    (fv.EViT(normalize=True), THREE),
]
NAMES = (  # of SETTINGS, in results/agreement.csv
    ("ToMe", "r = 8"),
    ("ToMe", "r = 13"),
    ("ToMe without proportional attention", "r = 13"),
    ("TopK", "0.7 at 3, 6, 9"),
    ("EViT", "0.7 at 3, 6, 9"),
    ("EViT, normalized fusion", "0.7 at 3, 6, 9"),
)
COLUMNS = ("method", "schedule", "macs_percent", "agreement_percent", "top1_percent")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--limit", type=int, help="use the first N photographs only")
    parser.add_argument("--csv", type=Path, help="also write the figures to this file, as in results/")
    args = parser.parse_args()
    images, labels = photographs(assets() / "imagenet_dev", args.limit)
    model = vit_tiny()
    unreduced, macs = logits(model, images).argmax(dim=1), fv.cost(model).macs
    table = Table(
        "method", "schedule", "of the MACs", "agreement", "top-1", title=f"ViT-Tiny, {len(images)} photographs"
    )
    figures = [(1.0, 1.0, float((unreduced == labels).float().mean()))]
    table.add_row("unreduced", "", *(f"{value:.1%}" for value in figures[0]))
    for method, schedule in track(SETTINGS, description="settings"):
        fv.reduce_(model, method, schedule)
        decisions, share = logits(model, images).argmax(dim=1), fv.cost(model).macs / macs
        fv.restore_(model)
        agreement, top1 = ((decisions == other).float().mean() for other in (unreduced, labels))
        figures.append((share, float(agreement), float(top1)))
        table.add_row(repr(method), repr(schedule), *(f"{value:.1%}" for value in figures[-1]))
    Console(width=140).print(table)
    if args.csv:
        names = (("unreduced", ""), *NAMES)
        rows = [(*name, *(f"{100 * v:.1f}" for v in row)) for name, row in zip(names, figures, strict=True)]
        record(args.csv, COLUMNS, rows, f"ViT-Tiny, {len(images)} photographs")
    return 0


if __name__ == "__main__":
    sys.exit(main())
