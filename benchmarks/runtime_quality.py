"""Decisions that stay in each runtime, and how fast it is: ViT-Tiny on photographs, int8 calibrated on others.

    FOVEATE_ASSETS=... python benchmarks/runtime_quality.py --csv FILE [--methods ToMe Ward TokenPooling EViT]
        [--budgets 0.8 0.65 0.5] [--runtimes openvino torchao] [--limit 500] [--calibration-images 128] [--files DIR]
        [--speed --seconds 200]

Judged on ``imagenet_sample`` against the unreduced model in eager PyTorch; int8 is calibrated on ``imagenet_dev``. In
float32 every runtime chooses as eager does, so one row stands for all. Every row is written when it is measured,
and rows that are in the file are not measured again.

"reduction" is the share of decisions that the reduction leaves, "quantization" what int8 leaves of the reduced model's,
"both" what int8 and the reduction leave together, each in percent.

``--speed`` times all settings of the file in turns, one image at a time, in eager PyTorch and in the runtimes, with the
files in ``--files``, and prints for each runtime the fastest that keeps 98 and 95 % of the decisions.
"""

from __future__ import annotations

import argparse
import csv
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch
from photographs import assets, photographs, vit_tiny
from torch import Tensor, nn

import foveate as fv
from foveate.deploy.parity import agreement
from foveate.deploy.quantize import int8_in_pytorch
from foveate.deploy.runtimes import Runtime, prepare
from foveate.deploy.speed import run_twice
from foveate.evaluation.environment import describe_environment
from foveate.evaluation.timing import interleave

BATCH = 25
FLOAT32 = "float32"
RUNTIMES = [Runtime("eager"), Runtime("onnxruntime"), Runtime("openvino"), Runtime("openvino", "int8")]
SHARES = (98.0, 95.0)
Row = dict[str, str]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--csv", type=Path, required=True)
    parser.add_argument("--methods", nargs="+", default=["ToMe", "Ward", "TokenPooling", "EViT"])
    parser.add_argument("--budgets", type=float, nargs="+", default=[0.8, 0.65, 0.5])
    parser.add_argument("--runtimes", nargs="+", default=["openvino"], help="that int8 is judged in, or torchao")
    parser.add_argument("--limit", type=int, default=500)
    parser.add_argument("--calibration-images", type=int, default=128)
    parser.add_argument("--files", type=Path, help="keep exported files here")
    parser.add_argument("--speed", action="store_true")
    parser.add_argument("--seconds", type=float, default=200)
    args = parser.parse_args()
    print(describe_environment(torch.device("cpu"), torch.float32), flush=True)
    calibration, _ = photographs(assets() / "imagenet_dev", args.calibration_images)
    if args.speed:
        time_all(args.csv, args.files, args.seconds, calibration)
        return
    images, _ = photographs(assets() / "imagenet_sample", args.limit)
    whole = outputs(vit_tiny(), images)
    done = {(row["method"], row["budget"], row["runtime"]) for row in read(args.csv)}
    for name, budget in [("none", "")] + [(name, f"{budget:g}") for name in args.methods for budget in args.budgets]:
        reduced, own = reduced_model(name, budget), None
        for runtime in (FLOAT32, *(f"{name} int8" for name in args.runtimes)):
            if (name, budget, runtime) in done:
                continue
            own = outputs(reduced, images) if own is None else own
            found = own
            if runtime != FLOAT32:
                run = in_int8(reduced, name, budget, runtime.removesuffix(" int8"), args.files, calibration)
                found = outputs(run, images)
            add(args.csv, judged(name, budget, runtime, whole, own, found))


def in_int8(
    model: nn.Module, name: str, budget: str, runtime: str, files: Path | None, calibration: Tensor
) -> Callable[[Tensor], Tensor]:
    """``model`` in int8; ``torchao`` runs it in eager PyTorch and needs no calibration."""
    if runtime == "torchao":
        return int8_in_pytorch(model)
    ready = Runtime(runtime, "int8")
    return prepare(model, ready, calibration, place=folder(files, name, budget, ready)).run


def time_all(path: Path, files: Path | None, seconds: float, images: Tensor) -> None:
    """Add the milliseconds of one image to every row, a row for each runtime, and print the fastest settings."""
    known = [row for row in read(path) if "ms" not in row or not row["ms"]]
    timers, rows = {}, {}
    for runtime in RUNTIMES:
        kind = f"{runtime.name} int8" if runtime.precision == "int8" else FLOAT32
        for row in (row for row in known if row["runtime"] == kind):
            start, name = time.perf_counter(), f"{row['method']} {row['budget']} {runtime.title}"
            place = folder(files, row["method"], row["budget"], runtime)
            ready = prepare(reduced_model(row["method"], row["budget"]), runtime, images, place=place)
            rows[name] = row | {"runtime": runtime.title}
            timers[name] = run_twice(ready.for_batch(1), images[:1])
            print(f"{name}: ready after {time.perf_counter() - start:.0f} s", flush=True)
    with torch.inference_mode():
        interleave(timers, 1)
        rounds = interleave(timers, None, seconds / 2)
    for name, row in rows.items():
        row["ms"] = f"{1000 * median(found[name] for found in rounds):.2f}"
    path.unlink()
    for row in rows.values():
        add(path, row)
    print_fastest(list(rows.values()), len(rounds))


def print_fastest(rows: list[Row], rounds: int) -> None:
    print(f"{rounds} rounds, {torch.get_num_threads()} threads")
    for title in dict.fromkeys(row["runtime"] for row in rows):
        for share in SHARES:
            enough = [row for row in rows if row["runtime"] == title and float(row["both"]) >= share]
            best = min(enough, key=lambda row: float(row["ms"]), default=None)
            print(f"{title}, {share:.0f} %: {best or 'none'}")


def reduced_model(name: str, budget: str) -> nn.Module:
    return vit_tiny() if name == "none" else fv.reduce_(vit_tiny(), name, float(budget))


def folder(files: Path | None, name: str, budget: str, runtime: Runtime) -> Path | None:
    words = f"{name}-{budget}-{runtime.name}-{runtime.precision}".replace(":", "-")
    return None if files is None else files / words


def outputs(run: Callable[[Tensor], Tensor], images: Tensor) -> Tensor:
    with torch.inference_mode():
        return torch.cat([run(images[start : start + BATCH]) for start in range(0, len(images), BATCH)])


def judged(name: str, budget: str, runtime: str, whole: Tensor, own: Tensor, found: Tensor) -> Row:
    shares = {"reduction": (whole, own), "quantization": (own, found), "both": (whole, found)}
    row = {"method": name, "budget": budget, "runtime": runtime, "images": str(len(whole))}
    row |= {key: f"{100 * agreement(*pair):.1f}" for key, pair in shares.items()}
    print(row, flush=True)
    return row


def read(path: Path) -> list[Row]:
    if not path.is_file():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(line for line in file if not line.startswith("#")))


def add(path: Path, found: Row) -> None:
    new = not path.is_file()
    with path.open("a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(found))
        if new:
            writer.writeheader()
        writer.writerow(found)


if __name__ == "__main__":
    main()
