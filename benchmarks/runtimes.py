"""Reduced models in every runtime, as multiples of the unreduced model in eager PyTorch.

    python benchmarks/runtimes.py [--model deit_small_patch16_224] [--batch-size 1 16] [--threads 2] [--seconds 60]
        [--runtimes eager onnx openvino openvino-int8] [--candidates none EViT ToMe TokenPooling Ward] [--csv FILE]
        [--files DIR] [--prepare]

All candidates of one batch size take turns: each in each runtime, beside its free slice, which drops tokens blindly to
the same counts in the same runtime. "x eager" is the time of the unreduced model in eager PyTorch divided by the
candidate's; "efficiency" is the time of the free slice divided by the candidate's, in one runtime. Both are paired
within rounds; medians are printed. "ready" is the time to load and compile the exported file. Weights are random, which
does not change the time; int8 is calibrated on noise, so only its time means anything here. ``--files`` keeps the
exported files for the next call, and ``--prepare`` only writes them: exports take minutes, a quiet machine is rare.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import NamedTuple

import timm
import torch
from torch import Tensor, nn

import foveate as fv
from foveate.deploy.graph import PlainOutputs, program_of
from foveate.deploy.quantize import write_int8
from foveate.deploy.targets import TARGETS
from foveate.evaluation.environment import describe_environment
from foveate.evaluation.speed import free_slice
from foveate.evaluation.timing import Timer, interleave

CANDIDATES: dict[str, fv.Reduction] = {
    "none": fv.Reduction(),
    "EViT": fv.Reduction(fv.EViT(), fv.KeepRate(0.7)),
    "ToMe": fv.Reduction(fv.ToMe(), fv.Budget(0.5)),
    "TokenPooling": fv.Reduction(fv.TokenPooling(), fv.Budget(0.5)),
    "Ward": fv.Reduction(fv.Ward(), fv.Budget(0.5)),
}
RUNTIMES = ("eager", "compile", "onnx", "openvino", "openvino-int8")


class Entry(NamedTuple):
    """One model in one runtime."""

    candidate: str
    runtime: str
    sliced: bool
    run: Callable[[Tensor], object]
    ready: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="deit_small_patch16_224")
    parser.add_argument("--batch-size", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--runtimes", nargs="+", choices=RUNTIMES, default=[r for r in RUNTIMES if r != "compile"])
    parser.add_argument("--candidates", nargs="+", choices=list(CANDIDATES), default=list(CANDIDATES))
    parser.add_argument("--csv", type=Path)
    parser.add_argument("--files", type=Path)
    parser.add_argument("--prepare", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    size = fv.inspect(timm.create_model(args.model)).image_size
    entries = [e for name in args.candidates for runtime in args.runtimes for e in prepared(args, name, runtime, size)]
    if args.prepare:
        return
    print(describe_environment(torch.device("cpu"), torch.float32))
    rows = [row for batch in args.batch_size for row in measured(args, entries, torch.randn(batch, *size))]
    for row in rows:
        print("  ".join(f"{name} {value}" for name, value in row.items()), flush=True)
    if args.csv:
        with args.csv.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)


def prepared(args: argparse.Namespace, name: str, runtime: str, size: tuple[int, int, int]) -> Iterator[Entry]:
    """The candidate and its free slice in one runtime."""
    torch.manual_seed(0)
    model = timm.create_model(args.model).eval()
    reduced = CANDIDATES[name].apply_(model)
    yield entry(args, name, runtime, False, reduced, size)
    if name != "none":
        plain = timm.create_model(args.model).eval()
        yield entry(args, name, runtime, True, free_slice(reduced).apply_(plain), size)


def entry(
    args: argparse.Namespace, name: str, runtime: str, sliced: bool, model: nn.Module, size: tuple[int, int, int]
) -> Entry:
    print(f"preparing {name}{' (free slice)' if sliced else ''} in {runtime}", flush=True)
    if runtime in ("eager", "compile"):
        run = model if runtime == "eager" else torch.compile(model, fullgraph=True, dynamic=True)
        return Entry(name, runtime, sliced, run, 0.0)
    target, images = TARGETS[runtime.removesuffix("-int8")], torch.randn(8, *size)
    with contextlib.ExitStack() as stack:
        root = args.files or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        place = root / f"{args.model}-{name}-{runtime}{'-slice' if sliced else ''}"
        files = [place / file for file in target.files]
        if not all(file.is_file() for file in files):
            place.mkdir(parents=True, exist_ok=True)
            module = PlainOutputs(model, None).eval()
            target.write(program_of(module, images), files, ["output"])
            if runtime.endswith("-int8"):
                write_int8(target, module, files, images, ["output"])
        start = time.perf_counter()
        found = target.open(files, args.threads)
        return Entry(name, runtime, sliced, found, time.perf_counter() - start)


def measured(args: argparse.Namespace, entries: list[Entry], images: Tensor) -> list[dict[str, str | int]]:
    """One row per candidate and runtime."""
    timers = {str(number): timer(item, images) for number, item in enumerate(entries)}
    base = next(n for n, item in enumerate(entries) if (item.candidate, item.runtime) == ("none", "eager"))
    with torch.inference_mode():
        interleave(timers, 2)
        rounds = interleave(timers, None, args.seconds)
    rows: list[dict[str, str | int]] = []
    for number, item in enumerate(entries):
        if item.sliced:
            continue
        limit = next((n for n, o in enumerate(entries) if o.sliced and o[:2] == item[:2]), number)
        rows.append(
            {
                "candidate": item.candidate,
                "runtime": item.runtime,
                "batch": len(images),
                "threads": args.threads,
                "ms": f"{1000 * median(r[str(number)] for r in rounds):.2f}",
                "x eager": f"{median(r[str(base)] / r[str(number)] for r in rounds):.2f}",
                "efficiency": f"{median(r[str(limit)] / r[str(number)] for r in rounds):.2f}",
                "ready": f"{item.ready:.1f}",
                "rounds": len(rounds),
            }
        )
    return rows


def timer(item: Entry, images: Tensor) -> Timer:
    def run() -> float:
        start = time.perf_counter()
        item.run(images)
        return time.perf_counter() - start

    return run


if __name__ == "__main__":
    main()
