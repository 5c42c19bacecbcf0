"""How long a whole ``fv.search`` takes with its default methods and numbers of images.

Run as ``FOVEATE_ASSETS=... python benchmarks/search_time.py --csv results/search_time.csv`` on a quiet machine. The
photographs are those of imagenet_sample (they choose 256 times and judge 244 times); only seconds are of interest here.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import timm
import torch
from photographs import assets, photographs, vit_tiny
from recording import record

import foveate as fv

COLUMNS = ("model", "constraint", "minutes", "measured_settings", "found")
CONSTRAINTS: dict[str, dict[str, float]] = {"macs<=0.5": {"macs": 0.5}, "agreement>=0.95": {"agreement": 0.95}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a timm name, with random weights; default: the pretrained ViT-Tiny")
    parser.add_argument("--constraints", nargs="+", choices=CONSTRAINTS, default=list(CONSTRAINTS))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--csv", type=Path, help="also write the figures to this file, as in results/")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    model = timm.create_model(args.model).eval() if args.model else vit_tiny()
    images = photographs(assets() / "imagenet_sample", None)[0]
    rows = []
    for constraint in args.constraints:
        start = time.perf_counter()
        found = fv.search(model, images, calibration=256, validation=len(images) - 256, **CONSTRAINTS[constraint])
        minutes, settings = (time.perf_counter() - start) / 60, len(found.to_dict()["measured"])
        rows.append((args.model or "ViT-Tiny", constraint, f"{minutes:.1f}", settings, found.reduction.text))
        print(*rows[-1], sep=" | ", flush=True)
    if args.csv:
        record(args.csv, COLUMNS, rows, f"{len(images)} photographs, 256 of them choose; default methods and trials")


if __name__ == "__main__":
    main()
