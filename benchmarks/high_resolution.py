"""Time per pixel and peak memory of a dense ViT-S/16 from 224 to 1344 pixels: reduced, unreduced and as a free slice.

    python benchmarks/high_resolution.py --threads 2 --csv results/high_resolution.csv --report high_resolution.html

Weights are random, which changes neither. Both files are written after every row, the largest sizes last.
"""

from __future__ import annotations

import argparse
import copy
from pathlib import Path

from recording import record

import foveate as fv
from foveate.evaluation.speed import FREE_SLICE, REDUCED, UNREDUCED
from foveate.files import write_text
from foveate.report.page.speed import SpeedRow, render_speed

MODEL = "vit_small_patch16_224+linear"
ROUNDS = {224: 15, 448: 9, 896: 5, 1344: 3}
METHODS = ("ToMe", "Ward", "TokenPooling", "EViT")
THREE = (UNREDUCED, REDUCED, FREE_SLICE)
COLUMNS = (
    *("pixels", "tokens", "method", "mac_share", "speedup", "quartile_1", "quartile_3", "efficiency"),
    *(f"{name.replace(' ', '_')}_ns_per_pixel" for name in THREE),
    *(f"{name.replace(' ', '_')}_mib" for name in THREE),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=list(ROUNDS))
    parser.add_argument("--methods", nargs="+", default=list(METHODS))
    parser.add_argument("--budget", type=float, default=0.5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--csv", type=Path)
    parser.add_argument("--report", type=Path, help="page with the plots")
    args = parser.parse_args()
    rows: list[SpeedRow] = []
    for size in args.sizes:
        model = fv.models.load_model(MODEL, options={"num_classes": 19, "image_size": (size, size)})
        for method in args.methods:
            rows.append(measured(model, fv.Reduction(method, args.budget, output="grid"), size, args.threads))
            print(*cells(rows[-1]), sep="\t", flush=True)
            if args.csv is not None:
                sample = f"{MODEL}, 19 classes, random weights, batch 1, {args.budget} of the encoder's MACs"
                note = "rounds in which the three took turns: " + ", ".join(f"{v} at {k} px" for k, v in ROUNDS.items())
                record(args.csv, COLUMNS, map(cells, rows), sample, note, "speedup: with its quartiles over rounds")
            if args.report is not None:
                write_text(args.report, render_speed(MODEL, rows))


def measured(model: object, reduction: fv.Reduction, size: int, threads: int) -> SpeedRow:
    whole = copy.deepcopy(model)
    rounds = ROUNDS.get(size, 5)
    result = fv.measure_speed(whole, reduction, batch_size=1, rounds=rounds, warmup=1, threads=threads, memory=True)
    return SpeedRow(reduction, result)


def cells(row: SpeedRow) -> list[str]:
    result = row.result
    side = result.image_size[1]
    peaks = result.peak_mib or {}
    return [
        str(side),
        str((side // 16) ** 2),
        row.method,
        f"{1 / result.mac_ratio:.3f}",
        *(f"{value:.2f}" for value in (result.speed_up, *result.speed_up_quartiles, result.efficiency)),
        *(f"{result.ns_per_pixel[name]:.0f}" for name in THREE),
        *(f"{peaks[name]:.0f}" for name in THREE),
    ]


if __name__ == "__main__":
    main()
