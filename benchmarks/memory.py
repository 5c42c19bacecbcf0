"""Peak memory of one forward pass beyond weights and images: reduced models against the unreduced one.

Every allocation and release of torch's CPU allocator during the pass is added up; run as
``python benchmarks/memory.py [--model NAME] [--batch-size B]``.
"""

from __future__ import annotations

import argparse

import timm
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import foveate as fv
from foveate.evaluation.memory import peak_memory

LEVEL_3 = fv.Keep([196, 194, 187, 163, 118, 85, 58, 47, 20, 12, 2, 0])
SETTINGS: list[tuple[fv.Method, fv.Schedule]] = [
    (fv.FreeSlice(), LEVEL_3),
    (fv.PoWER(), LEVEL_3),
    (fv.TokenPooling(), LEVEL_3),
    (fv.TokenPooling(output="medoid", iterations=3), LEVEL_3),
    (fv.Ward(), fv.Budget(0.5)),
    (fv.Ward("greedy"), fv.Budget(0.5)),
]


@torch.inference_mode()
def peak(model: nn.Module, images: Tensor) -> float:
    """Return the MiB of a second pass; the first one allocates more."""
    model(images)
    needed = peak_memory(model, images)
    assert needed is not None
    return needed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="deit_small_patch16_224", help="a timm model of twelve blocks at 224 px")
    parser.add_argument("--batch-size", type=int, default=16)
    args = parser.parse_args()
    model = timm.create_model(args.model).eval()
    images = torch.randn(args.batch_size, 3, 224, 224)
    unreduced = peak(model, images)
    table = Table("method", "schedule", "peak MiB", "of unreduced", title=f"{args.model}, batch {args.batch_size}")
    table.add_row("unreduced", "", f"{unreduced:.0f}", "1.00x")
    for method, schedule in SETTINGS:
        fv.reduce_(model, method, schedule)
        needed = peak(model, images)
        fv.restore_(model)
        table.add_row(repr(method), repr(schedule), f"{needed:.0f}", f"{needed / unreduced:.2f}x")
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
