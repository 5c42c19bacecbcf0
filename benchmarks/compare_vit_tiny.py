"""The main job on real weights: ``foveate compare`` for a pretrained ViT-Tiny and 500 photographs.

Writes the report to --out and prints a Markdown table. Run as
``FOVEATE_ASSETS=... python benchmarks/compare_vit_tiny.py [--limit N] [--seconds S]``.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
from photographs import assets, vit_tiny

from foveate.cli.compare import phases, refused_text, shown
from foveate.report.compare import Comparison, Entry, compare
from foveate.report.rounding import floored

COLUMNS = ("setting", "MACs %", "top-1 %", "agreement %", "KL", "img/s", "speed-up", "quartiles", "overhead", "MiB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--limit", type=int, help="use so many photographs only")
    parser.add_argument("--seconds", type=float, default=4.0, help="timing of each candidate")
    parser.add_argument("--threads", type=int, default=2, help="threads torch may use")
    parser.add_argument("--out", type=Path, default=Path("compare-vit-tiny"), help="folder of the report")
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


def as_markdown(comparison: Comparison, seconds: float) -> str:
    """The table for LOG.md, the decision, and where it was measured."""
    place = comparison.environment
    lines = [
        f"| {' | '.join(COLUMNS)} |",
        f"|{'---|' * len(COLUMNS)}",
        *(f"| {' | '.join(cells(entry))} |" for entry in comparison.entries),
        "",
        *(f"Not compared: {refused_text(refused)}" for refused in comparison.refused),
        comparison.recommendation.sentence,
        f"{comparison.data['images']} photographs, batch {comparison.options['batch_size']}, {seconds:.0f} s in all; "
        f"{place['cpu']}, {place['threads']} threads, torch {place['torch']}.",
    ]
    return "\n".join(lines)


def cells(entry: Entry) -> list[str]:
    quartiles = "-" if entry.speed_up_quartiles is None else "-".join(f"{q:.2f}" for q in entry.speed_up_quartiles)
    return [
        f"**{entry.title}**" if entry.pareto else entry.title,
        f"{100 * entry.mac_ratio:.1f}",
        shown(entry.top1, "{:.1f}"),
        f"{floored(entry.agreement):.1f}",
        f"{entry.kl:.4f}",
        shown(entry.images_per_second, "{:.1f}"),
        shown(entry.speed_up, "{:.2f}"),
        quartiles,
        shown(entry.overhead, "{:.0%}"),
        shown(entry.memory_mib, "{:.0f}"),
    ]


if __name__ == "__main__":
    main()
