"""Peak memory of one forward pass, beyond the weights and the images, of a reduced model against the unreduced one.

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
from torch.profiler import ProfilerActivity, profile

import foveate as fv

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
def peak_bytes(model: nn.Module, images: Tensor) -> int:
    model(images)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        model(images)
    assert profiler.profiler is not None
    events = [e for e in profiler.profiler.kineto_results.events() if e.name() == "[memory]"]
    held = peak = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    return peak


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="deit_small_patch16_224", help="a timm model of twelve blocks at 224 px")
    parser.add_argument("--batch-size", type=int, default=16)
    args = parser.parse_args()
    model = timm.create_model(args.model).eval()
    images = torch.randn(args.batch_size, 3, 224, 224)
    unreduced = peak_bytes(model, images)
    table = Table("method", "schedule", "peak MiB", "of unreduced", title=f"{args.model}, batch {args.batch_size}")
    table.add_row("unreduced", "", f"{unreduced / 2**20:.0f}", "1.00x")
    for method, schedule in SETTINGS:
        fv.reduce_(model, method, schedule)
        peak = peak_bytes(model, images)
        fv.restore_(model)
        table.add_row(repr(method), repr(schedule), f"{peak / 2**20:.0f}", f"{peak / unreduced:.2f}x")
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
