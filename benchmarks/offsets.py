"""How far the tokens of pretrained models lie from the origin, and what it costs to make distances immune to it.

An offset common to all tokens takes digits from |a|^2 + |b|^2 - 2ab. For each block the script prints the norm of an
image's mean token relative to the spread of its tokens, and in how many images Ward in rounds (half of the tokens
merged) chooses otherwise in float32 than in float64, with and without the subtraction in
``foveate.core.precision.centered``. With ``--speed`` it times the clusterings with and without it, interleaved.

Run as ``FOVEATE_ASSETS=... python benchmarks/offsets.py --csv results/offsets.csv`` and
``python benchmarks/offsets.py --speed --csv results/offsets_speed.csv``.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import timm
import torch
from photographs import assets, photographs, vit_tiny
from recording import record
from safetensors.torch import load_file
from torch import Tensor, nn

from foveate.core import cluster, density_peaks, ward
from foveate.core.precision import to_float

N, C = 196, 384


@contextmanager
def as_they_are() -> Iterator[None]:
    """Clusterings that take tokens where they lie."""

    def uncentered(x: Tensor, valid: Tensor | None = None) -> Tensor:
        return to_float(x)

    with (
        patch.object(cluster, "centered", uncentered),
        patch.object(ward, "centered", uncentered),
        patch.object(density_peaks, "centered", uncentered),
    ):
        yield


def saliency_vit() -> nn.Module:
    """Return the ViT-S/14 of the assets, for images of 224 pixels."""
    model = timm.create_model("vit_small_patch14_dinov2.lvd142m", pretrained=False, dynamic_img_size=True)
    weights = load_file(assets() / "saliency_vit_small" / "model.safetensors")
    model.load_state_dict({name: value.float() for name, value in weights.items()})
    return model.eval()


@torch.inference_mode()
def tokens_of(model: nn.Module, images: Tensor) -> list[Tensor]:
    """Return the patch tokens that leave each block, (B, N, C)."""
    found: list[Tensor] = []
    hooks = [
        block.register_forward_hook(lambda module, inputs, output: found.append(output[:, model.num_prefix_tokens :]))
        for block in model.blocks
    ]
    model(images)
    for hook in hooks:
        hook.remove()
    return found


def images_that_differ(x: Tensor) -> int:
    """Number of images in which Ward chooses otherwise in float32 than in float64."""
    keep = x.shape[1] // 2
    return int((ward.ward_rounds(x, keep).owner != ward.ward_rounds(x.double(), keep).owner).any(dim=1).sum())


def measure(name: str, model: nn.Module, images: Tensor) -> Iterator[tuple[object, ...]]:
    for block, x in enumerate(tokens_of(model, images)):
        mean = x.mean(dim=1, keepdim=True)
        ratio = mean.norm(dim=2).squeeze(1) / (x - mean).square().sum(dim=2).mean(dim=1).sqrt()
        norm = x.norm(dim=2)
        with as_they_are():
            before = images_that_differ(x)
        numbers = (ratio.mean(), ratio.max(), norm.median(), norm.max())
        row = (name, block, *(f"{number:.2f}" for number in numbers), before, images_that_differ(x))
        print(*row, sep="  ")
        yield row


def clusterings(x: Tensor) -> dict[str, Callable[[], object]]:
    """Return what is timed, by name."""
    first = torch.arange(0, N, 2).expand(len(x), -1)
    block = timm.create_model("deit_small_patch16_224", depth=1).blocks[0].eval()
    return {
        "Ward in rounds": lambda: ward.ward_rounds(x, N // 2),
        "K-Medoids, 1 iteration": lambda: cluster.kmedoids(x, first, move_last=False),
        "K-Means, 4 iterations": lambda: cluster.kmeans(x, first),
        "density peaks": lambda: density_peaks.cluster_peaks(x, density_peaks.find_peaks(x, 5), N // 2),
        "transformer block": lambda: block(x),
    }


@torch.inference_mode()
def speed(batch: int, rounds: int) -> Iterator[tuple[object, ...]]:
    generator = torch.Generator().manual_seed(0)
    for name, run in clusterings(torch.randn(batch, N, C, generator=generator)).items():
        times: dict[bool, list[float]] = {True: [], False: []}
        for turn in range(rounds + 10):
            for plain in (True, False):
                if plain:
                    with as_they_are():
                        taken = timed(run)
                else:
                    taken = timed(run)
                if turn >= 10:
                    times[plain].append(taken)
        before, after = (1e6 * statistics.median(times[plain]) for plain in (True, False))
        row = (name, batch, f"{before:.0f}", f"{after:.0f}", f"{after - before:.0f}")
        print(*row, sep="  ")
        yield row


def timed(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--speed", action="store_true", help="time the clusterings instead")
    parser.add_argument("--images", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--csv", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if args.speed:
        columns = ["clustering", "batch", "before_us", "after_us", "added_us"]
        rows = [row for batch in (1, 16) for row in speed(batch, args.rounds)]
        sample = f"{N} tokens of width {C}; medians of {args.rounds}, interleaved"
    else:
        images, _ = photographs(assets() / "imagenet_dev", args.images)
        columns = [
            "model",
            "block",
            "ratio_mean",
            "ratio_highest",
            "norm_median",
            "norm_highest",
            "differ_before",
            "differ",
        ]
        models = {"ViT-Tiny/16": vit_tiny(), "ViT-S/14 for saliency": saliency_vit()}
        rows = [row for name, model in models.items() for row in measure(name, model, images)]
        sample = f"{args.images} photographs of imagenet_dev at 224 pixels, all scaled to mean = std = 0.5"
    if args.csv:
        record(args.csv, columns, rows, sample)


if __name__ == "__main__":
    main()
