"""``foveate compare`` on real weights: a pretrained ViT-Tiny and 500 photographs.

Writes the report to --out and prints a Markdown table. Run as
``FOVEATE_ASSETS=... python benchmarks/compare_vit_tiny.py [--limit N] [--seconds S]``.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
from photographs import assets, vit_tiny
from recording import record

from foveate.cli.compare import refused_text
from foveate.cli.output import phases
from foveate.evaluation.columns import BY_NAME
from foveate.report.compare import Comparison, Entry, compare

COLUMNS = [
    BY_NAME[name]
    for name in ("mac_ratio", "top1", "agreement", "kl", "images_per_second", "speed_up", "overhead", "memory_mib")
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--limit", type=int, help="use only this many photographs")
    parser.add_argument("--seconds", type=float, default=4.0, help="seconds of timing per candidate")
    parser.add_argument("--threads", type=int, default=2, help="threads torch may use")
    parser.add_argument("--out", type=Path, default=Path("compare-vit-tiny"), help="folder of the report")
    parser.add_argument("--csv", type=Path, help="also write the figures to this file, as in results/")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    model, photographs = vit_tiny(), assets() / "imagenet_dev" / "labels.csv"
    start = time.perf_counter()
    with phases() as progress:
        comparison = compare(
            model,
            photographs,
            limit=args.limit,
            seconds=args.seconds,
            name="ViT-Tiny",
            progress=progress,
            store=args.out,
        )
    folder = comparison.save(args.out)
    print(as_markdown(comparison, time.perf_counter() - start))
    print(f"\nReport: {folder / 'index.html'}")
    if args.csv:
        write_csv(args.csv, comparison)


def as_markdown(comparison: Comparison, seconds: float) -> str:
    """Return the table, the recommendation, and the environment."""
    place = comparison.environment
    lines = [
        f"| setting | {' | '.join(column.terminal_head for column in COLUMNS)} | quartiles |",
        f"|{'---|' * (len(COLUMNS) + 2)}",
        *(f"| {' | '.join(cells(entry))} |" for entry in comparison.entries),
        "",
        *(f"Not compared: {refused_text(refused)}" for refused in comparison.refused),
        comparison.recommendation.sentence,
        f"{comparison.data['images']} photographs, batch {comparison.options['batch_size']}, {seconds:.0f} s in all; "
        f"{place['cpu']}, {place['threads']} threads, torch {place['torch']}.",
    ]
    return "\n".join(lines)


def write_csv(path: Path, comparison: Comparison) -> None:
    columns = "setting method budget pareto macs_percent top1_percent agreement_percent kl images_per_second speedup"
    columns += " speedup_q1 speedup_q3 overhead_percent memory_mib"
    rows = []
    for entry in comparison.entries:
        _, *figures = (None if cell == "-" else cell.rstrip("%") for cell in cells(entry))
        method, _, budget = entry.title.partition(" at ")
        low, high = (figures.pop(6) or "-").split("-")
        front = "*" if entry.pareto else None
        rows.append([entry.title, method, budget, front, *figures[:6], low, high, *figures[6:]])
    sample = f"ViT-Tiny, {comparison.data['images']} photographs, one run, batch {comparison.options['batch_size']}"
    notes = [f"Not compared: {refused_text(refused)}" for refused in comparison.refused]
    record(path, columns.split(), rows, sample, *notes, comparison.recommendation.sentence)


def cells(entry: Entry) -> list[str]:
    row = entry.as_dict()
    quartiles = "-" if entry.speed_up_quartiles is None else "-".join(f"{q:.2f}" for q in entry.speed_up_quartiles)
    setting = f"**{entry.title}**" if entry.pareto else entry.title
    return [setting, *(column.terminal_text(row[column.name]) for column in COLUMNS), quartiles]


if __name__ == "__main__":
    main()
