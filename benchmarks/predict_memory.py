"""Memory of ``foveate predict`` while it runs over many small images: does it grow?

The script samples the unique memory of the command and of its processes (what would be free if they ended), while two
processes work, and compares the second quarter of the run with the last.

Run as ``python benchmarks/predict_memory.py --csv results/predict_memory.csv``.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

import psutil
import timm
import torch
from predict_kills import command, parts
from recording import record
from small_pictures import write_pictures

import foveate as fv

MIB = 2**20


def unique_memory(driver: psutil.Process) -> float:
    """Unique bytes of a process and of those below it, in MiB."""
    total = 0
    for process in [driver, *driver.children(recursive=True)]:
        try:
            total += process.memory_full_info().uss
        except psutil.Error:
            continue
    return total / MIB


def sampled(start: list[str], out: Path) -> list[tuple[int, float]]:
    """Finished parts and memory, sampled until the command ends."""
    process = subprocess.Popen(start)
    driver, found = psutil.Process(process.pid), []
    while process.poll() is None:
        try:
            found.append((parts(out), unique_memory(driver)))
        except psutil.Error:
            break
        time.sleep(0.25)
    if process.wait():
        raise RuntimeError("The command failed.")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=20_000)
    parser.add_argument("--csv", type=Path)
    args = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        torch.manual_seed(0)
        options = {"img_size": 64, "depth": 4, "embed_dim": 96, "num_heads": 3, "num_classes": 10}
        model = fv.save(timm.create_model("vit_tiny_patch16_224", **options), folder / "model")
        images = write_pictures(folder / "images", args.images)
        for engine in ("local", "ray"):
            out = folder / engine
            found = sampled(command(model, images, out, engine, args.images // 40), out)
            working = [(p, m) for p, m in found if 0 < p < 40]  # all processes are there
            quarters = [statistics.median([m for p, m in working if q <= p // 10 < q + 1]) for q in range(4)]
            growth = quarters[3] - quarters[1]
            print(engine, [f"{m:.0f} MiB" for m in quarters], f"growth {growth:.1f} MiB", flush=True)
            rows.append([engine, args.images, *(f"{m:.0f}" for m in quarters), f"{growth:.1f}"])
    if args.csv:
        columns = ["engine", "images", *(f"mib_in_quarter_{q + 1}" for q in range(4)), "growth_mib"]
        note = "unique memory of the command and all processes below it; growth: from the second quarter to the fourth"
        record(args.csv, columns, rows, f"{args.images} images of 64 pixels, two processes, 40 parts", note)


if __name__ == "__main__":
    main()
