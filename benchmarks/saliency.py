"""A real dense model without training: the ViT-S/14 saliency model of FOVEATE_ASSETS on photographs of pets.

The head is the model's own, untouched; the encoder is reduced with each method and each way back to the full grid.
Settings are chosen on the train part, with ``--choose``; the val part judges. MACs are the encoder's, seconds are
interleaved with the unreduced encoder at batch 1.
"""

from __future__ import annotations

import argparse
import csv
import math
from collections.abc import Iterator, Sequence
from functools import cache
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
COLUMNS = ("pixels", "method", "output", "blocks", "macs", "iou", "auc", "iou_lost", "standard_error", "speedup")


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
    blocks = [tuple(map(int, text.split(","))) if text != "default" else None for text in args.blocks]
    for method in args.methods:
        for output in ("grid",) if method == "ClusterAttention" else args.outputs:  # its tokens all stay
            for sites in blocks:
                for budget in args.budgets:
                    yield fv.Reduction(method, fv.Budget(budget, blocks=sites), output=output)


def measured(args: argparse.Namespace, size: int) -> Iterator[tuple[object, ...]]:
    data = list(pets(args.part, size, args.limit))
    whole = encoder(size)
    base, macs = judged(whole, data, size), fv.cost(whole).macs
    mean = base.mean(dim=0)
    yield size, "unreduced", "", "", "1.000", f"{mean[0]:.4f}", f"{mean[1]:.4f}", "0.0000", "0.0000", "1.00"
    for reduction in settings(args):
        model = encoder(size)
        try:
            reduction.apply_(model)
        except fv.PlanError as error:
            print(f"{size} {reduction}: {error}", flush=True)
            continue
        found = judged(model, data, size)
        lost = base[:, 0] - found[:, 0]
        speed = fv.measure_speed(whole, reduction, batch_size=1, seconds=args.seconds) if args.seconds else None
        yield (
            size,
            reduction.method.name,
            reduction.output,
            ",".join(map(str, reduction.schedule.blocks or ())) or "default",
            f"{fv.cost(model).macs / macs:.3f}",
            f"{found[:, 0].mean():.4f}",
            f"{found[:, 1].mean():.4f}",
            f"{lost.mean():.4f}",
            f"{lost.std() / len(lost) ** 0.5:.4f}",
            None if speed is None else f"{speed.speedup:.2f}",
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", choices=("train", "val"), default="val", help="train to choose settings")
    parser.add_argument("--sizes", type=int, nargs="+", default=[224, 448])
    parser.add_argument("--methods", nargs="+", default=list(METHODS))
    parser.add_argument("--outputs", nargs="+", default=list(OUTPUTS), choices=OUTPUTS)
    parser.add_argument("--blocks", nargs="+", default=["default"], help="sites: default, or lists such as 3,5,7,9")
    parser.add_argument("--budgets", type=float, nargs="+", default=[0.65, 0.5])
    parser.add_argument("--limit", type=int, help="images; default: all")
    parser.add_argument("--seconds", type=float, default=0.0, help="seconds for the speed of each setting; 0: none")
    parser.add_argument("--csv", type=Path)
    args = parser.parse_args()
    rows = []
    for size in args.sizes:
        for row in measured(args, size):
            rows.append(row)
            print(*("" if cell is None else cell for cell in row), sep="\t", flush=True)
    if args.csv:
        count = len(list(pets(args.part, 14, args.limit)))
        record(args.csv, COLUMNS, rows, f"ViT-S/14 saliency model, {count} photographs of pets ({args.part}), batch 1")


if __name__ == "__main__":
    main()
