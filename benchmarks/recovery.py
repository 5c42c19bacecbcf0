"""What a short tuning without labels recovers of a reduced ViT-Tiny: tuned on some photographs, judged on others.

Run as ``FOVEATE_ASSETS=... python benchmarks/recovery.py --budget 0.35 --minutes 15``; ``--csv`` writes a file like
results/recovery.csv. Judged are agreement with the unreduced model's decisions and top-1, before and after. The gain's
standard error is that of the paired differences.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch
from photographs import assets, logits, photographs, vit_tiny
from recording import record

import foveate as fv
from foveate.methods.options import parse

SETS = {"sample": "imagenet_sample", "dev": "imagenet_dev"}
COLUMNS = (
    *("method", "budget", "tuned_on", "judged_on", "steps", "minutes", "lr"),
    *("agreement_before", "agreement_after", "gain", "gain_standard_error", "top1_before", "top1_after"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method", default="ward", help="name:option=value,...")
    parser.add_argument("--budget", type=float, default=0.35, help="share of the MACs")
    parser.add_argument("--tune-on", choices=SETS, default="sample", help="the other set judges")
    parser.add_argument("--minutes", type=float, default=15.0, help="time to tune")
    parser.add_argument("--steps", type=int, help="largest number of steps")
    parser.add_argument("--lr", type=float, default=2e-5, help="highest learning rate")
    parser.add_argument("--threads", type=int, default=2, help="threads torch may use")
    parser.add_argument("--csv", type=Path, help="also write the figures to this file")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    judging = next(name for name in SETS if name != args.tune_on)
    learning, _ = photographs(assets() / SETS[args.tune_on], None)
    images, labels = photographs(assets() / SETS[judging], None)
    model = vit_tiny()
    whole = logits(model, images).argmax(1)
    fv.reduce_(model, parse(args.method), fv.Budget(args.budget), exact_last_block=True)
    first = logits(model, images).argmax(1)

    def tell(phase: str, done: int, total: int | None, note: str = "") -> None:
        print(f"{phase} {done} of {total}: {note}", file=sys.stderr, flush=True)

    given = {"minutes": args.minutes, "steps": args.steps, "lr": args.lr}
    found = fv.recover(model, learning, progress=tell, **given)
    print(found)
    last = logits(found.model, images).argmax(1)
    change = ((last == whole).float() - (first == whole).float()) * 100
    shares = [100 * float((one == other).float().mean()) for one in (first, last) for other in (whole, labels)]
    figures = (
        shares[0],
        shares[2],
        float(change.mean()),
        float(change.std() / len(change) ** 0.5),
        shares[1],
        shares[3],
    )
    row = (args.method, args.budget, args.tune_on, judging, found.steps_done, round(found.seconds / 60, 1), args.lr)
    print(dict(zip(COLUMNS, (*row, *(f"{value:.1f}" for value in figures)), strict=True)))
    if args.csv:
        record(
            args.csv,
            COLUMNS,
            [(*row, *(f"{value:.1f}" for value in figures))],
            "ViT-Tiny, 500 photographs to tune, 500 to judge",
        )


if __name__ == "__main__":
    main()
