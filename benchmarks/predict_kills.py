"""Kill ``foveate predict`` at random moments, resume it, and compare its rows with those of an undisturbed run.

SIGKILL hits the command itself or one of its processes (the local engine), or the command or an actor (Ray). A run that
loses a process goes on; a run that is killed itself is started again with ``--resume``.

Run as ``python benchmarks/predict_kills.py --csv results/predict_kills.csv``.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pyarrow.parquet as pq
import timm
import torch
from recording import record
from small_pictures import write_pictures

import foveate as fv

KINDS = (("local", "command"), ("local", "process"), ("ray", "command"), ("ray", "actor"))
ROUNDS_AT_MOST = 40
"""Starts of one run, before it is called stuck."""


def command(model: Path, images: Path, out: Path, engine: str, part: int) -> list[str]:
    start = [sys.executable, "-m", "foveate", "predict", str(model), "--data", str(images), "--out", str(out)]
    return [*start, "--engine", engine, "--processes", "2", "--part-images", str(part), "--resume"]


def parts(out: Path) -> int:
    return len(list(out.glob("part-*.parquet")))


def victim(driver: psutil.Process, target: str) -> psutil.Process | None:
    """The process to kill: the command, or one that works for it."""
    if target == "command":
        return driver
    mark = "spawn_main" if target == "process" else "ray::MapWorker"
    found = [child for child in driver.children(recursive=True) if mark in " ".join(child.cmdline())]
    return found[0] if found else None


def kill_at_random(process: subprocess.Popen[bytes], out: Path, target: str, moments: random.Random) -> bool:
    """Kill something once the run has begun to write; returns whether it did."""
    before, wait = parts(out), moments.uniform(0, 2)
    while process.poll() is None and parts(out) == before:
        time.sleep(0.02)
    time.sleep(wait)
    try:
        chosen = victim(psutil.Process(process.pid), target) if process.poll() is None else None
        if chosen is None:
            return False
        chosen.kill()
    except psutil.NoSuchProcess:
        return False
    return True


def run_with_kills(start: list[str], out: Path, target: str, most: int, moments: random.Random) -> tuple[int, int]:
    """Run to the end, killing ``most`` times at most; returns kills and starts."""
    kills = 0
    for starts in range(1, ROUNDS_AT_MOST):
        process = subprocess.Popen(start, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        if kills < most:
            kills += kill_at_random(process, out, target, moments)
        if process.wait() == 0:
            return kills, starts
    raise RuntimeError(f"The run did not end within {ROUNDS_AT_MOST} starts.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=4000)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--csv", type=Path)
    args = parser.parse_args()
    moments = random.Random(args.seed)
    found: dict[tuple[str, str], list[int]] = {}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        torch.manual_seed(0)
        options = {"img_size": 64, "depth": 4, "embed_dim": 96, "num_heads": 3, "num_classes": 10}
        model = fv.save(timm.create_model("vit_tiny_patch16_224", **options), folder / "model")
        images = write_pictures(folder / "images", args.images, broken_every=97)
        part = args.images // 40
        subprocess.run(command(model, images, folder / "whole", "local", part), check=True)
        whole = pq.read_table(folder / "whole").to_pylist()
        number = total = 0
        while total < args.kills:
            kind = KINDS[number % len(KINDS)]
            out = folder / f"run{number}"
            most = min(5, args.kills - total)
            kills, starts = run_with_kills(command(model, images, out, kind[0], part), out, kind[1], most, moments)
            rows = pq.read_table(out).to_pylist()
            keys = {row["key"] for row in rows}
            same = rows == whole and len(keys) == len(rows)
            print(f"{kind[0]}, {kind[1]}: {kills} kills, {starts} starts, {len(rows)} rows, equal: {same}", flush=True)
            counts = found.setdefault(kind, [0, 0, 0, 0])
            found[kind] = [a + b for a, b in zip(counts, [1, kills, starts, int(same)], strict=True)]
            number, total = number + 1, total + kills
    if args.csv:
        rows = [[*kind, *counts] for kind, counts in found.items()]
        columns = ["engine", "killed", "runs", "kills", "starts", "runs_with_equal_rows"]
        record(args.csv, columns, rows, f"{args.images} images of 64 pixels in 40 parts, seed {args.seed}")


if __name__ == "__main__":
    main()
