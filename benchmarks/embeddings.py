"""An image's embedding from a reduced model: the mean of ``fv.features`` against the mean of the tokens that are left.

    FOVEATE_ASSETS=... python benchmarks/embeddings.py [--limit 100]

Cosine to the mean of all patch tokens of the unreduced model, after the last block, on photographs.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from photographs import assets, photographs, vit_tiny
from recording import record
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity

import foveate as fv

METHODS = ("Ward", "ToMe", "EViT", "TopK")
BUDGETS = (0.65, 0.5)


@torch.inference_mode()
def dense_mean(model: nn.Module, images: Tensor) -> Tensor:
    """The mean over patches, each with the features of its token."""
    return torch.cat([fv.features(model, batch).mean((2, 3)) for batch in images.split(25)])


@torch.inference_mode()
def tokens_mean(model: nn.Module, images: Tensor) -> Tensor:
    """The mean over the tokens that are left, without the class token."""
    return torch.cat([model.forward_features(batch)[:, 1:].mean(1) for batch in images.split(25)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--limit", type=int, default=100, help="number of photographs; default: 100")
    parser.add_argument("--csv", type=Path, help="also write the figures to this file")
    args = parser.parse_args()
    images, _ = photographs(assets() / "imagenet_dev", args.limit)
    whole = tokens_mean(vit_tiny(), images)
    rows = []
    for method in METHODS:
        for budget in BUDGETS:
            model = fv.reduce_(vit_tiny(), method, budget)
            found = [cosine_similarity(mean(model, images), whole).mean() for mean in (dense_mean, tokens_mean)]
            rows.append((method, f"{budget:g}", *(f"{value:.3f}" for value in found)))
            print(*rows[-1], sep="  ", flush=True)
    if args.csv:
        sample = f"ViT-Tiny, {len(images)} photographs, last block, without training"
        record(args.csv, ("method", "budget", "mean_of_features", "mean_of_tokens"), rows, sample)


if __name__ == "__main__":
    main()
