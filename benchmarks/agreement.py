"""How many of a pretrained ViT-Tiny's decisions survive reduction without training.

Reads the weights and photographs in the folder named by FOVEATE_ASSETS; run as
``FOVEATE_ASSETS=... python benchmarks/agreement.py [--limit N]``.
"""

from __future__ import annotations

import argparse
import sys

from photographs import assets, logits, photographs, vit_tiny
from rich.console import Console
from rich.progress import track
from rich.table import Table

import foveate as fv

THREE = fv.KeepRate(0.7, blocks=(3, 6, 9))
SETTINGS: list[tuple[fv.Method, fv.Schedule]] = [
    (fv.ToMe(), fv.RemovePerBlock(8)),
    (fv.ToMe(), fv.RemovePerBlock(13)),
    (fv.ToMe(carry=False), fv.RemovePerBlock(13)),
    (fv.TopK(), THREE),
    (fv.EViT(), THREE),
    (fv.EViT(normalize=True), THREE),
]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--limit", type=int, help="use the first N photographs only")
    args = parser.parse_args()
    images, labels = photographs(assets() / "imagenet_dev", args.limit)
    model = vit_tiny()
    whole, macs = logits(model, images).argmax(dim=1), fv.cost(model).macs
    table = Table(
        "method", "schedule", "of the MACs", "agreement", "top-1", title=f"ViT-Tiny, {len(images)} photographs"
    )
    table.add_row("unreduced", "", "100.0%", "100.0%", f"{(whole == labels).float().mean():.1%}")
    for method, schedule in track(SETTINGS, description="settings"):
        fv.reduce_(model, method, schedule)
        kept, share = logits(model, images).argmax(dim=1), fv.cost(model).macs / macs
        fv.restore_(model)
        agreement, accuracy = (kept == whole).float().mean(), (kept == labels).float().mean()
        table.add_row(repr(method), repr(schedule), f"{share:.1%}", f"{agreement:.1%}", f"{accuracy:.1%}")
    Console(width=140).print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
