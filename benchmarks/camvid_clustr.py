"""ClusTR-T against PVTv2-B1, both with a Semantic FPN, from scratch on CamVid with the same steps.

    FOVEATE_ASSETS=... python benchmarks/camvid_clustr.py --csv results/camvid_clustr.csv

Both see the same crops in the same order. Every finished part is kept in --out.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch
from recording import record
from segmentation import Verdict, judge, parser, report, train

import foveate as fv

SYSTEMS = ("clustr_tiny+semantic-fpn", "pvt_v2_b1+semantic-fpn")
SIZE = (224, 320)
"""Height and width of training crops and of judged images, a quarter of which is 56 x 80 tokens in the first stage."""
COLUMNS = (
    *("model", "params_millions", "gmacs", "steps", "last_loss", "miou", "pixel_accuracy", "boundary_accuracy"),
    *("behind", "behind_standard_error", "training_minutes", "seconds"),
)


def main() -> None:
    made = parser(__doc__ or "", steps=200)
    made.set_defaults(out=Path("runs/camvid_clustr"), batch_size=4)
    made.add_argument("--lr", type=float, default=3e-4)
    args = made.parse_args()
    torch.set_num_threads(args.threads)
    outcomes: dict[str, tuple[Any, Verdict, float]] = {}
    for name in SYSTEMS:
        begin = time.perf_counter()
        changes = {"model__name": name, "model__pretrained": False, "model__options": {"image_size": list(SIZE)}}
        run = train(args.out / name, args, args.steps, **changes, optimizer__lr=args.lr)
        minutes = (time.perf_counter() - begin) / 60
        model = fv.load(args.out / name / "model")
        outcomes[name] = run, judge(model, None, args.limit), minutes
    best = max(outcomes.values(), key=lambda outcome: outcome[1].miou)[1]
    rows = [row(args.out, name, args.steps, best, *outcome) for name, outcome in outcomes.items()]
    if args.csv is not None:
        size = f"CamVid {SIZE[1]} x {SIZE[0]}"
        sample = f"from scratch, {size}, batch {args.batch_size}, learning rate {args.lr}, one seed"
        note = "behind: points of mIoU below the better one; its standard error over images drawn again"
        record(args.csv, COLUMNS, rows, sample, note, "minutes and seconds on a machine with other work")


def row(out: Path, name: str, steps: int, best: Verdict, run: Any, found: Verdict, minutes: float) -> list[Any]:
    model = fv.load(out / name / "model")
    cost, (behind, error) = fv.cost(model), found.lost(best)
    loss = run.history[-1]["train"]["loss"]
    cells = [f"{cost.params / 1e6:.1f}", f"{cost.macs / 1e9:.2f}", steps, f"{loss:.3f}", f"{found.miou:.2f}"]
    figures = [f"{found.figures[key]:.2f}" for key in ("pixel_accuracy", "boundary_accuracy")]
    made = [name, *cells, *figures, f"{behind:.2f}", f"{error:.2f}", f"{minutes:.1f}", f"{found.seconds:.1f}"]
    report(**dict(zip(COLUMNS, made, strict=True)))
    return made


if __name__ == "__main__":
    main()
