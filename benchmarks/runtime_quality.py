"""Decisions that stay in each runtime: ViT-Tiny on photographs, int8 calibrated on others.

    FOVEATE_ASSETS=... python benchmarks/runtime_quality.py --csv FILE [--methods ToMe Ward TokenPooling EViT]
        [--budgets 0.8 0.65 0.5] [--runtimes openvino onnxruntime] [--limit 500] [--calibration-images 128]

Judged on ``imagenet_sample`` against the unreduced model in eager PyTorch; int8 is calibrated on ``imagenet_dev``. In
float32 every runtime chooses as eager does, so one row stands for all. Every row is written when it is measured,
and rows that are in the file are not measured again.

"reduction" is the share of decisions that the reduction leaves, "quantization" what int8 leaves of the reduced model's,
"both" what int8 and the reduction leave together, each in percent.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Callable
from pathlib import Path

import torch
from photographs import assets, photographs, vit_tiny
from torch import Tensor, nn

import foveate as fv
from foveate.deploy.parity import agreement
from foveate.deploy.runtimes import Runtime, prepare
from foveate.evaluation.environment import describe_environment

BATCH = 25


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--csv", type=Path, required=True)
    parser.add_argument("--methods", nargs="+", default=["ToMe", "Ward", "TokenPooling", "EViT"])
    parser.add_argument("--budgets", type=float, nargs="+", default=[0.8, 0.65, 0.5])
    parser.add_argument("--runtimes", nargs="+", default=["openvino"])
    parser.add_argument("--limit", type=int, default=500)
    parser.add_argument("--calibration-images", type=int, default=128)
    args = parser.parse_args()
    print(describe_environment(torch.device("cpu"), torch.float32), flush=True)
    model = vit_tiny()
    images, _ = photographs(assets() / "imagenet_sample", args.limit)
    calibration, _ = photographs(assets() / "imagenet_dev", args.calibration_images)
    whole = outputs(model, images)
    done = {(row["method"], row["budget"], row["runtime"]) for row in read(args.csv)}
    settings = [("none", "")] + [(name, f"{budget:g}") for name in args.methods for budget in args.budgets]
    for name, budget in settings:
        reduced = vit_tiny() if name == "none" else fv.reduce_(vit_tiny(), name, float(budget))
        own = None
        for runtime in ("fp32", *args.runtimes):
            if (name, budget, runtime) in done:
                continue
            own = outputs(reduced, images) if own is None else own
            found = own if runtime == "fp32" else in_int8(reduced, runtime, calibration, images)
            add(args.csv, row(name, budget, runtime, whole, own, found))


def in_int8(model: nn.Module, runtime: str, calibration: Tensor, images: Tensor) -> Tensor:
    return outputs(prepare(model, Runtime(runtime, "int8"), calibration).run, images)


def outputs(run: Callable[[Tensor], Tensor], images: Tensor) -> Tensor:
    with torch.inference_mode():
        return torch.cat([run(images[start : start + BATCH]) for start in range(0, len(images), BATCH)])


def row(name: str, budget: str, runtime: str, whole: Tensor, own: Tensor, found: Tensor) -> dict[str, str | int]:
    shares = {"reduction": (whole, own), "quantization": (own, found), "both": (whole, found)}
    title = "float32" if runtime == "fp32" else f"{runtime} int8"
    first = {"method": name, "budget": budget, "runtime": runtime, "images": len(whole)}
    print(title, first, {key: f"{agreement(*pair):.1%}" for key, pair in shares.items()}, flush=True)
    return first | {key: f"{100 * agreement(*pair):.1f}" for key, pair in shares.items()}


def read(path: Path) -> list[dict[str, str]]:
    if not path.is_file():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(line for line in file if not line.startswith("#")))


def add(path: Path, found: dict[str, str | int]) -> None:
    new = not path.is_file()
    with path.open("a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(found))
        if new:
            writer.writeheader()
        writer.writerow(found)


if __name__ == "__main__":
    main()
