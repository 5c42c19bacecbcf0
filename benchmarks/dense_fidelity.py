"""How much of a real encoder's output survives without training: the ViT-S/14 saliency model of FOVEATE_ASSETS.

    FOVEATE_ASSETS=... python benchmarks/dense_fidelity.py [--csv results/dense_fidelity.csv]

Every method that works without training runs under the same MAC budget and gives one feature for every patch
(``output="grid"``). ``macs`` is what it reached, which is more than was asked for ClusterAttention: shorter keys alone
save little. Reported are, against the unreduced model on the same photographs of pets: the cosine of patch features, of
the class token and of the mean feature, and of the saliency map the share of pixels with the same decision and the IoU
of both masks. This model adds its positions to the tokens once, so a merged token keeps the mean of what its patches
had; there is nothing to choose between representative and mean positions.

A stopped run goes on: finished rows lie in ``--out``.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from recording import record
from saliency import encoder, pets, saliency
from torch import Tensor
from torch.nn.functional import cosine_similarity

import foveate as fv
from foveate.report.compare.candidates import default_methods

METHODS = default_methods()
FIGURES = ("patch_cosine", "class_token_cosine", "mean_feature_cosine", "same_pixels_percent", "mask_iou")
COLUMNS = ("pixels", "budget", "method", "macs", *(c for f in FIGURES for c in (f, f"{f}_standard_error")))


@torch.inference_mode()
def outputs(model: Any, images: Sequence[Tensor], size: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Class token (C,), patch features (N, C) and saliency (size, size) of every image."""
    for image in images:
        tokens = model.forward_features(image)
        yield tokens[0, 0], tokens[0, 1:], saliency(tokens[:, 1:], size)[0]


def figures(whole: tuple[Tensor, ...], found: tuple[Tensor, ...]) -> list[float]:
    """FIGURES of one image."""
    (token, patches, shown), (new_token, new_patches, new_shown) = whole, found
    mask, new_mask = shown > 0.5, new_shown > 0.5
    union = (mask | new_mask).sum().clamp(min=1)
    return [
        float(cosine_similarity(patches, new_patches, dim=1).mean()),
        float(cosine_similarity(token, new_token, dim=0)),
        float(cosine_similarity(patches.mean(0), new_patches.mean(0), dim=0)),
        100 * float((mask == new_mask).float().mean()),
        float((mask & new_mask).sum() / union) if bool(mask.any() or new_mask.any()) else 1.0,
    ]


def reduce_to_budget(model: Any, name: str, budget: float) -> None:
    """Reduce to the budget, or to the next higher tenth that the method can reach: shorter keys alone save little."""
    for macs in (budget, *(tenth / 10 for tenth in range(5, 10) if tenth / 10 > budget)):
        try:
            fv.reduce_(model, name, fv.Budget(macs), output="grid")
            return
        except fv.PlanError as error:
            print(error, flush=True)
    raise SystemExit(f"{name} reaches no budget from {budget} on.")


def measured(size: int, limit: int, budgets: Sequence[float], done: dict[str, list[str]]) -> Iterator[list[str]]:
    """One row for each budget and method; rows that are done already are not measured again."""
    images = [image for image, _ in pets("val", size, limit)]
    model = encoder(size)
    whole, macs = list(outputs(model, images, size)), fv.cost(model).macs
    for budget in budgets:
        for name in METHODS:
            key = f"{size} {limit} {budget} {name}"
            if key not in done:
                reduce_to_budget(model, name, budget)
                share = fv.cost(model).macs / macs
                pairs = zip(whole, outputs(model, images, size), strict=True)
                rows = torch.tensor([figures(*pair) for pair in pairs])
                fv.restore_(model)
                cells = zip(rows.mean(0).tolist(), (rows.std(0) / len(rows) ** 0.5).tolist(), strict=True)
                done[key] = [
                    str(size),
                    str(budget),
                    name,
                    f"{share:.3f}",
                    *(f"{c:.4f}" for pair in cells for c in pair),
                ]
            yield done[key]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[224, 518])
    parser.add_argument("--images", type=int, nargs="+", default=[100, 24], help="photographs for each size")
    parser.add_argument("--budgets", type=float, nargs="+", default=[0.65, 0.5])
    parser.add_argument("--out", type=Path, default=Path("runs/dense_fidelity.json"), help="finished rows")
    parser.add_argument("--csv", type=Path)
    args = parser.parse_args()
    done = json.loads(args.out.read_text()) if args.out.is_file() else {}
    args.out.parent.mkdir(parents=True, exist_ok=True)
    rows = []
    for size, limit in zip(args.sizes, args.images, strict=True):
        for row in measured(size, limit, args.budgets, done):
            rows.append(row)
            args.out.write_text(json.dumps(done))
            print(*row, sep="\t", flush=True)
    if args.csv:
        counts = ", ".join(f"{n} at {size} px" for size, n in zip(args.sizes, args.images, strict=True))
        record(args.csv, COLUMNS, rows, f"ViT-S/14 saliency model, photographs of pets (val): {counts}")


if __name__ == "__main__":
    main()
