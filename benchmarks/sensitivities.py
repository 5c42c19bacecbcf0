"""What a method costs in each block: the divergence if that block alone halves the patches, for several methods.

    FOVEATE_ASSETS=... python benchmarks/sensitivities.py [--methods Ward ToMe] [--csv FILE]

A mixture of methods could be better than one of them only where another has the smaller divergence in some block. The
images are those of objectives.py, which judge no claim.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from objectives import FOLDERS, pictures
from photographs import assets, vit_tiny
from recording import record

import foveate as fv
from foveate.adapters import inspect
from foveate.methods.options import parse
from foveate.tuning.judging import Judge, task_of

METHODS = ("Ward", "TokenPooling", "DiffRate", "MCTF", "ToMe", "EViT", "TopK", "Ward:rounds=1")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", nargs="+", default=METHODS)
    parser.add_argument("--images", type=int, default=128)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--csv", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    images = torch.cat([pictures(assets() / name, args.images) for name in FOLDERS])
    images = images[torch.randperm(len(images), generator=torch.Generator().manual_seed(0))[: args.images]]
    model = vit_tiny()
    judge = Judge(model, images, task_of(model))
    keep, blocks, rows = inspect(model).shape().num_patches // 2, range(len(model.blocks) - 1), []
    for name in args.methods:
        for block in blocks:
            reduction = fv.Reduction(parse(name), fv.Keep({block: keep}), exact_last_block=True)
            rows.append((name, block, f"{judge.judge(reduction).divergence:.4f}"))
        print(name, *(row[2] for row in rows[-len(blocks) :]), flush=True)
    if args.csv:
        sample = f"ViT-Tiny, exact last block, {args.images} images of {', '.join(FOLDERS)}"
        record(args.csv, ("method", "block", "kl"), rows, sample, "one block alone keeps half of the patches")


if __name__ == "__main__":
    main()
