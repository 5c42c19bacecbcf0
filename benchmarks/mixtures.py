"""Mixtures of two methods beside each alone: decisions that stay the same, at equal shares of the MACs.

    FOVEATE_ASSETS=... python benchmarks/mixtures.py [--budget 0.5] [--csv FILE]

Default counts of each setting, exact last block. The images are those of objectives.py, which judge no claim.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from objectives import FOLDERS, pictures
from photographs import assets, vit_tiny
from recording import record

import foveate as fv
from foveate.adapters import copy_reducible
from foveate.methods.base import Method
from foveate.methods.options import method_text
from foveate.tuning.judging import Judge, task_of

ALONE = (fv.Ward(), fv.TokenPooling(), fv.ToMe(), fv.EViT())
COLUMNS = ("method", "budget", "macs", "own_macs", "agreement", "agreement_error", "kl")


def settings(depth: int) -> list[Method]:
    """Each method alone, then Ward in the first blocks and another behind it, and the other way round."""
    switches = (depth // 4, depth // 3, depth // 2)
    mixed = [fv.Mixture(fv.Ward(), then, switch) for then in ALONE[1:] for switch in switches]
    return [*ALONE, *mixed, *(fv.Mixture(first, fv.Ward(), depth // 3) for first in ALONE[1:])]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget", type=float, default=0.5)
    parser.add_argument("--images", type=int, default=200)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--csv", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    images = torch.cat([pictures(assets() / name, args.images) for name in FOLDERS])
    images = images[torch.randperm(len(images), generator=torch.Generator().manual_seed(0))[: args.images]]
    model = vit_tiny()
    judge, whole, rows = Judge(model, images, task_of(model)), fv.cost(model).macs, []
    for method in settings(len(model.blocks)):
        reduction = fv.Reduction(method, args.budget, exact_last_block=True)
        cost, judged = fv.cost(reduction.apply_(copy_reducible(model))), judge.judge(reduction)
        shares = (f"{cost.macs / whole:.3f}", f"{cost.reduction_macs / whole:.4f}")
        quality = (f"{100 * judged.quality:.1f}", f"{100 * judged.standard_error:.1f}", f"{judged.divergence:.4f}")
        rows.append((method_text(method), args.budget, *shares, *quality))
        print(*rows[-1], flush=True)
    if args.csv:
        sample = f"ViT-Tiny, exact last block, {args.images} images of {', '.join(FOLDERS)}"
        record(args.csv, COLUMNS, rows, sample, "default counts; own_macs is the share of the methods themselves")


if __name__ == "__main__":
    main()
