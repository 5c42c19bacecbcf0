"""A real dense model without training: the ViT-S/14 saliency model of FOVEATE_ASSETS on photographs of pets.

The head is the model's own, untouched; the encoder is reduced with each method and each way back to the full grid.
Settings are chosen on the train part; the val part judges them. MACs are the encoder's, seconds are interleaved with
the unreduced encoder at batch 1.

    FOVEATE_ASSETS=... python benchmarks/saliency.py --chosen results/saliency_settings.csv --csv results/saliency.csv
    FOVEATE_ASSETS=... python benchmarks/saliency.py --part train --limit 32 --blocks default 2,4,6,8   # to choose

Every finished setting is kept in --out, so a run that was stopped continues when it is repeated.
"""

from __future__ import annotations

import argparse
import csv
import math
import re
from collections.abc import Iterator, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import timm
import torch
from photographs import assets
from PIL import Image
from recording import record
from safetensors.torch import load_file
from torch import Tensor
from torch.nn.functional import batch_norm, conv2d, conv_transpose2d, interpolate
from torchvision.transforms.functional import normalize, pil_to_tensor

import foveate as fv

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
METHODS = ("TopK", "EViT", "ToMe", "TokenPooling", "Ward", "ClusterAttention")
OUTPUTS = ("grid", "grid-residual", "grid-attention")
CLUSTERED = (0.9, 0.8)
"""Budgets of ClusterAttention: all queries and MLPs stay, so it cannot halve the MACs."""
COLUMNS = ("pixels", "method", "output", "blocks", "macs", "iou", "auc", "iou_lost", "standard_error", "speedup")

SPEED_COLUMNS = (
    *("pixels", "method", "output", "blocks", "macs", "unreduced_ms", "reduced_ms", "speedup"),
    *("quartile_1", "quartile_3", "efficiency", "rounds"),
)


def encoder(size: int) -> Any:
    """The ViT-S/14 for images of this size, its positions resampled as in the graph it came from."""
    weights = {k: v.float() for k, v in load_file(assets() / "saliency_vit_small" / "model.safetensors").items()}
    side, old = size // 14, math.isqrt(weights["pos_embed"].shape[1] - 1)
    if side != old:
        grid = weights["pos_embed"][:, 1:].transpose(1, 2).unflatten(2, (old, old))
        grid = interpolate(grid, size=(side, side), mode="bicubic", align_corners=False).flatten(2).transpose(1, 2)
        weights["pos_embed"] = torch.cat([weights["pos_embed"][:, :1], grid], dim=1)
    model = timm.create_model("vit_small_patch14_dinov2", pretrained=False, num_classes=0, img_size=size)
    model.load_state_dict(weights)
    return model.eval()


@cache
def decoder() -> dict[str, Tensor]:
    file = assets() / "saliency_vit_small" / "saliency_decoder.safetensors"
    return {k.removeprefix("decoder."): v.float() for k, v in load_file(file).items()}


def saliency(patches: Tensor, size: int) -> Tensor:
    """(B, size, size) from patch features (B, N, C): three deconvolutions and a 1x1 convolution."""
    weights = decoder()
    x = patches.transpose(1, 2).unflatten(2, (size // 14, size // 14))
    for i in (1, 2, 3):
        x = conv_transpose2d(x, weights[f"upconv{i}.weight"], weights[f"upconv{i}.bias"], stride=2, padding=1)
        moments = weights[f"bn{i}.running_mean"], weights[f"bn{i}.running_var"]
        x = batch_norm(x, *moments, weights[f"bn{i}.weight"], weights[f"bn{i}.bias"]).relu()
    x = conv2d(x, weights["final_conv.weight"], weights["final_conv.bias"])
    return interpolate(x, size=(size, size), mode="bilinear", align_corners=False).sigmoid()[:, 0]


def pets(part: str, size: int, limit: int | None) -> Iterator[tuple[Tensor, Tensor]]:
    """Images (1, 3, size, size), and masks (1, size, size): 1 animal, 2 background, 3 border, which is ignored."""
    folder = assets() / "pets" / part
    with (folder / "labels.csv").open() as file:
        names = [Path(row["file"]).stem for row in csv.DictReader(file)]
    if limit is not None:  # spread over the breeds, which follow one another
        names = [names[number * len(names) // limit] for number in range(min(limit, len(names)))]
    for name in names:
        picture = Image.open(next((folder / "images").glob(f"{name}.*"))).convert("RGB").resize((size, size))
        trimap = Image.open(next((folder / "trimaps").glob(f"{name}.*"))).resize((size, size), Image.Resampling.NEAREST)
        image = normalize(pil_to_tensor(picture).float() / 255, list(MEAN), list(STD))
        yield image.unsqueeze(0), pil_to_tensor(trimap)


def figures(predicted: Tensor, trimap: Tensor) -> tuple[float, float]:
    """IoU of the animal at 0.5, and the area under the ROC curve over pixels."""
    known = trimap != 3
    score, animal = predicted[known], (trimap == 1)[known]
    found = score > 0.5
    iou = float((found & animal).sum() / (found | animal).sum().clamp(min=1))
    ranks = score.argsort().argsort().double() + 1
    positives, negatives = int(animal.sum()), int((~animal).sum())
    if not positives or not negatives:
        return iou, 1.0
    area = (ranks[animal].sum() - positives * (positives + 1) / 2) / (positives * negatives)
    return iou, float(area)


@torch.inference_mode()
def judged(model: Any, data: Sequence[tuple[Tensor, Tensor]], size: int) -> Tensor:
    """(images, 2): IoU and AUC of every image."""
    rows = []
    for image, trimap in data:
        patches = model.forward_features(image)[:, model.num_prefix_tokens :]
        rows.append(figures(saliency(patches, size), trimap))
    return torch.tensor(rows)


def settings(args: argparse.Namespace) -> Iterator[fv.Reduction]:
    """Every method with every output; ClusterAttention, whose tokens all stay, with the budgets that it can reach."""
    for method in args.methods:
        keeps_all = method == "ClusterAttention"
        for sites in [chosen_blocks(args.chosen, method)] if args.chosen else map(parsed_blocks, args.blocks):
            for output in ("grid",) if keeps_all else args.outputs:
                for budget in CLUSTERED if keeps_all else args.budgets:
                    yield fv.Reduction(method, fv.Budget(budget, blocks=sites), output=output)


def parsed_blocks(text: str) -> tuple[int, ...] | None:
    return None if text == "default" else tuple(map(int, text.replace(",", " ").split()))


def chosen_blocks(path: Path, method: str) -> tuple[int, ...] | None:
    """The blocks of this method's best setting in a file that was measured on the train part."""
    with path.open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(line for line in file if line[0] != "#") if row["method"] == method]
    best = min(rows, key=lambda row: float(row["iou_lost"]), default=None)
    return None if best is None else parsed_blocks(best["blocks"])


class Kept:
    """IoU and AUC of every image, kept in a file for each setting, so that a stopped run goes on when repeated."""

    def __init__(self, args: argparse.Namespace, size: int) -> None:
        self.args, self.size = args, size
        self.folder = args.out / f"{args.part}{args.limit or ''}-{size}"

    @cached_property
    def data(self) -> list[tuple[Tensor, Tensor]]:
        return list(pets(self.args.part, self.size, self.args.limit))

    def figures(self, name: str, model: Any) -> Tensor:
        path = self.folder / f"{re.sub('[^A-Za-z0-9.]+', '-', name)}.pt"
        if not path.is_file():
            self.folder.mkdir(parents=True, exist_ok=True)
            write_tensor(path, judged(model, self.data, self.size))
        return torch.load(path, weights_only=True)


def write_tensor(path: Path, value: Tensor) -> None:
    """Write in one step: a run that is stopped leaves no half of a file."""
    part = path.with_suffix(".part")
    torch.save(value, part)
    part.replace(path)


def measured(args: argparse.Namespace, size: int) -> Iterator[tuple[object, ...]]:
    kept, whole = Kept(args, size), encoder(size)
    base, macs = kept.figures("unreduced", whole), fv.cost(whole).macs
    mean = base.mean(dim=0)
    yield size, "unreduced", "", "", "1.000", f"{mean[0]:.4f}", f"{mean[1]:.4f}", "0.0000", "0.0000", "1.00"
    for reduction in settings(args):
        model = encoder(size)
        try:
            reduction.apply_(model)
        except fv.PlanError as error:
            print(f"{size} {reduction}: {error}", flush=True)
            continue
        found = kept.figures(str(reduction), model)
        lost = base[:, 0] - found[:, 0]
        speed = fv.measure_speed(whole, reduction, batch_size=1, seconds=args.seconds) if args.seconds else None
        yield (
            size,
            reduction.method.name,
            reduction.output,
            " ".join(map(str, reduction.schedule.blocks or ())) or "default",
            f"{fv.cost(model).macs / macs:.3f}",
            f"{found[:, 0].mean():.4f}",
            f"{found[:, 1].mean():.4f}",
            f"{lost.mean():.4f}",
            f"{lost.std() / len(lost) ** 0.5:.4f}",
            None if speed is None else f"{speed.speed_up:.2f}",
        )


def speeds(args: argparse.Namespace, size: int) -> Iterator[tuple[object, ...]]:
    """Speed of every setting, whether it was judged or not."""
    whole = encoder(size)
    for reduction in settings(args):
        try:
            found = fv.measure_speed(whole, reduction, batch_size=1, seconds=args.seconds)
        except fv.PlanError as error:
            print(f"{size} {reduction}: {error}", flush=True)
            continue
        blocks = " ".join(map(str, reduction.schedule.blocks or ())) or "default"
        milliseconds = (1000 / rate for rate in (found.unreduced_per_second, found.reduced_per_second))
        ratios = (found.speed_up, *found.speed_up_quartiles, found.efficiency)
        yield (
            *(size, reduction.method.name, reduction.output, blocks, f"{1 / found.mac_ratio:.3f}"),
            *(f"{value:.1f}" for value in milliseconds),
            *(f"{value:.2f}" for value in ratios),
            found.rounds,
        )


def record_speeds(args: argparse.Namespace) -> None:
    rows = []
    for size in args.sizes:
        for row in speeds(args, size):
            rows.append(row)
            print(*row, sep="\t", flush=True)
            note = "the unreduced encoder, the reduced one and a free slice took turns; quartiles over rounds"
            record(args.csv, SPEED_COLUMNS, rows, "encoder of the ViT-S/14 saliency model, batch 1", note)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=("train", "val"), default="val", help="train to choose settings")
    parser.add_argument("--sizes", type=int, nargs="+", default=[224, 448])
    parser.add_argument("--methods", nargs="+", default=list(METHODS))
    parser.add_argument("--outputs", nargs="+", default=list(OUTPUTS), choices=OUTPUTS)
    parser.add_argument("--blocks", nargs="+", default=["default"], help="sites: default, or lists such as 3,5,7,9")
    parser.add_argument("--chosen", type=Path, help="take each method's blocks from this file of the train part")
    parser.add_argument("--budgets", type=float, nargs="+", default=[0.65, 0.5])
    parser.add_argument("--limit", type=int, help="images; default: all")
    parser.add_argument("--seconds", type=float, default=0.0, help="seconds for the speed of each setting; 0: none")
    parser.add_argument("--out", type=Path, default=Path("runs/saliency"), help="figures so far; repeat to continue")
    parser.add_argument("--csv", type=Path)
    parser.add_argument("--speed-only", action="store_true", help="only the speed of every setting, with --csv")
    args = parser.parse_args()
    if args.speed_only:
        record_speeds(args)
        return
    rows = []
    for size in args.sizes:
        for row in measured(args, size):
            rows.append(row)
            print(*("" if cell is None else cell for cell in row), sep="\t", flush=True)
    if args.csv:
        count = len(list(pets(args.part, 14, args.limit)))
        note = "iou_lost: against the unreduced model on the same photographs, with the standard error of their mean"
        sample = f"ViT-S/14 saliency model, {count} photographs of pets ({args.part}), batch 1"
        record(args.csv, COLUMNS, rows, sample, note, "macs: share of the unreduced encoder's")


if __name__ == "__main__":
    main()
