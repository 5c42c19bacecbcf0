"""Clustered keys and values on a pretrained ViT-Tiny, without training: agreement by ratio, and adaptive counts.

    FOVEATE_ASSETS=... python benchmarks/cluster_attention.py [--images 500] [--ratios 1.5 2 4 8 16]

Measures agreement with the unreduced model over the photographs, and MACs including the clustering. Then the number of
clusters depends on the content: thresholds are fitted on the first half of the photographs, and the mean number of
clusters is measured on the second half.
"""

from __future__ import annotations

import argparse

import torch
from photographs import assets, logits, photographs, vit_tiny
from torch import Tensor

import foveate as fv
from foveate.methods.cluster_attention import ClusterCount

MOST, AVERAGE = 98, 49


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=500)
    parser.add_argument("--ratios", type=float, nargs="+", default=[1.5, 2, 4, 8, 16])
    parser.add_argument("--joins", choices=("denser", "nearest"), default="denser")
    args = parser.parse_args()
    model = vit_tiny()
    images, _ = photographs(assets() / "imagenet_dev", args.images)
    decided, unreduced_macs = logits(model, images).argmax(dim=1), fv.cost(model).macs
    print("| ratio | keys | agreement % | MACs | without the clustering |\n|---|---|---|---|---|", flush=True)
    for ratio in args.ratios:
        fv.reduce_(model, fv.ClusterAttention(ratio=ratio, joins=args.joins))
        same = share_of_equal(logits(model, images), decided)
        cost, keys = fv.cost(model), model.foveate.plan.counts[0]
        plain = (cost.macs - cost.reduction_macs) / unreduced_macs
        print(f"| {ratio:g} | {keys} | {same:.1f} | {cost.macs / unreduced_macs:.3f} | {plain:.3f} |", flush=True)
        fv.restore_(model)
    by_content(images, decided)


def by_content(images: Tensor, decided: Tensor) -> None:
    """Measure adaptive counts: every block has at most MOST clusters, and AVERAGE on average."""
    model = fv.reduce_(vit_tiny(), fv.ClusterAttention(ratio=196 / MOST, average=AVERAGE / MOST))
    half = len(images) // 2
    fv.models.fit_cluster_counts_(model, images[:half].split(25))
    counts: list[Tensor] = []
    for module in model.modules():
        if isinstance(module, ClusterCount):
            module.register_forward_hook(lambda _, args, found: counts.append(found))
    for name, part in (("for fitting", slice(0, half)), ("held out", slice(half, len(images)))):
        counts.clear()
        same = share_of_equal(logits(model, images[part]), decided[part])
        numbers = torch.cat(counts).float()
        average = numbers.mean().item()
        print(
            f"adaptive counts, images {name}: {average:.2f} clusters on average (target {AVERAGE}, "
            f"{average / AVERAGE - 1:+.1%}), from {int(numbers.min())} to {int(numbers.max())}; agreement {same:.1f} %",
            flush=True,
        )


def share_of_equal(found: Tensor, decided: Tensor) -> float:
    return 100 * (found.argmax(dim=1) == decided).float().mean().item()


if __name__ == "__main__":
    main()
