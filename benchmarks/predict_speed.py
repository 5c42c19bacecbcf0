"""Throughput of ``foveate predict`` on the cores of this machine, against the bare model with its images in memory.

The bare model runs one process for each core with one thread, on prepared batches, without reading, decoding or
writing. The engines read JPEG files, decode and prepare them, run the model and write Parquet. The time that an engine
needs to start is reported separately: a long run does not notice it. Rounds take turns.

Run as ``FOVEATE_ASSETS=... python benchmarks/predict_speed.py --csv results/predict_speed.csv``.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from photographs import assets
from recording import record

import foveate as fv
from foveate.scale import write_predictions

MODEL = "deit_small_patch16_224"


def predictor(batch_size: int, reduction: str) -> fv.Predictor:
    return fv.Predictor(MODEL, reduction=reduction or None, batch_size=batch_size, untrained=True)


def bare(batches: int, batch_size: int, reduction: str, barrier: Any, seconds: Any) -> None:
    """One process of the bare model: the same batch again and again."""
    torch.set_num_threads(1)
    runnable = predictor(batch_size, reduction).runnable
    images = torch.randn(batch_size, *runnable.example.shape[1:])
    runnable.run(images)
    barrier.wait()
    start = time.perf_counter()
    for _ in range(batches):
        runnable.run(images)
    with seconds.get_lock():
        seconds.value = max(seconds.value, time.perf_counter() - start)


def bare_speed(count: int, batch_size: int, reduction: str, processes: int) -> float:
    """Images per second of the bare model on all processes."""
    context = multiprocessing.get_context("spawn")
    barrier, seconds = context.Barrier(processes), context.Value("d", 0.0)
    batches = max(1, count // (batch_size * processes))
    arguments = (batches, batch_size, reduction, barrier, seconds)
    workers = [context.Process(target=bare, args=arguments) for _ in range(processes)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return processes * batches * batch_size / seconds.value


def engine_speed(engine: str, count: int, batch_size: int, reduction: str, processes: int) -> tuple[float, float]:
    """Images per second between the first and the last report of progress, and seconds before the first."""
    reports: list[tuple[float, int]] = []
    start = time.perf_counter()

    def note(phase: str, done: int, total: int | None, text: str = "") -> None:
        if done and (not reports or done > reports[-1][1]):
            reports.append((time.perf_counter(), done))

    with tempfile.TemporaryDirectory() as place:
        write_predictions(
            predictor(batch_size, reduction),
            assets() / "imagenet_dev",
            Path(place) / "out",
            limit=count,
            engine=engine,
            processes=processes,
            part_images=2 * batch_size,
            progress=note,
        )
    (first, before), (last, done) = reports[0], reports[-1]
    return (done - before) / (last - first), first - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=480)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--reductions", nargs="*", default=["", "ToMe --remove 13"])
    parser.add_argument("--csv", type=Path)
    args = parser.parse_args()
    processes = len(os.sched_getaffinity(0))
    rows: list[list[object]] = []
    for reduction in args.reductions:
        for number in range(args.rounds):
            speeds = {"bare": bare_speed(args.images, args.batch_size, reduction, processes)}
            starts: dict[str, float] = {}
            for engine in ("local", "ray"):
                speeds[engine], starts[engine] = engine_speed(
                    engine, args.images, args.batch_size, reduction, processes
                )
            for name, speed in speeds.items():
                shares = [f"{speed / speeds['bare']:.2f}", None if name == "bare" else f"{speed / speeds['local']:.2f}"]
                start = f"{starts[name]:.0f}" if name in starts else None
                rows.append([reduction or "unreduced", number, name, f"{speed:.1f}", *shares, start])
                print(*rows[-1], flush=True)
            if args.csv:  # after every round: the rest may be cut off
                write(args, rows, processes)


def write(args: argparse.Namespace, rows: list[list[object]], processes: int) -> None:
    columns = [
        "reduction",
        "round",
        "engine",
        "images_per_second",
        "share_of_bare",
        "share_of_local",
        "seconds_to_first",
    ]
    sample = f"{MODEL}, random weights, {args.images} photographs of 299 pixels, batch {args.batch_size}"
    record(args.csv, columns, rows, f"{sample}, {processes} processes of one thread, {args.rounds} rounds")


if __name__ == "__main__":
    main()
