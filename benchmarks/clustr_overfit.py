"""ClusTR overfits 64 photographs of Imagenette's training split.

    FOVEATE_ASSETS=... python benchmarks/clustr_overfit.py [--steps 80] [--size 96] [--window 0] [--attention grid]

Trains clustr_tiny from scratch with AdamW and no augmentation. Prints the accuracy on the same 64 images, and how far
the weights of tokens inside their clusters have moved from equal ones.
"""

from __future__ import annotations

import argparse

import timm
import torch
from imagenette import data
from torch.nn.functional import cross_entropy

from foveate.data import Loader, open_data
from foveate.data.preprocessing import Preprocessing
from foveate.models.clustr_attention import MultiScaleClusterAttention


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--size", type=int, default=96)
    parser.add_argument("--window", type=int, default=0)
    parser.add_argument("--attention", choices=("cluster", "grid"), default="cluster")
    args = parser.parse_args()
    torch.manual_seed(0)
    options = {"img_size": args.size, "attention": args.attention, "clustering": {"window": args.window}}
    model = timm.create_model("clustr_tiny", num_classes=10, **options)
    images, labels = first_images(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, weight_decay=0.0)
    for step in range(args.steps):
        part = torch.randperm(64, generator=torch.Generator().manual_seed(step))[:32]
        loss = cross_entropy(model(images[part]), labels[part])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 9:
            print(f"step {step + 1}: loss {loss.item():.4f}", flush=True)
    model.eval()
    with torch.no_grad():
        hits = (model(images).argmax(dim=1) == labels).float().mean().item()
    moved = [m.weigh.weight.norm().item() for m in model.modules() if is_weighing(m)]
    print(f"accuracy {100 * hits:.1f} % of 64; norms of the token weights {[round(norm, 3) for norm in moved]}")


def is_weighing(module: torch.nn.Module) -> bool:
    return isinstance(module, MultiScaleClusterAttention) and module.weigh is not None


def first_images(model: torch.nn.Module) -> tuple[torch.Tensor, torch.Tensor]:
    """Return 64 training images of all classes, shuffled with a fixed seed."""
    loader = Loader(open_data(data(), "train"), Preprocessing.of(model).evaluation(), 64, seed=0, train=True)
    batch = next(iter(loader.epoch(0)))
    return batch.images, batch.targets


if __name__ == "__main__":
    main()
