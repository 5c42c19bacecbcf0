"""Training throughput: steps per second with half of the MACs, and whether reading images keeps up.

    FOVEATE_ASSETS=... python benchmarks/training_speed.py [--model deit_small_patch16_224] [--batch-size 16]

Times forward, backward and AdamW step of the unreduced model and of EViT and ToMe at Budget(0.5), in turns; then
measures images per second of the loader alone with DeiT's augmentation, by number of workers.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from statistics import median, quantiles

import timm
import torch
from imagenette import data
from torch import nn

import foveate as fv
from foveate.data import Loader, open_data
from foveate.data.preprocessing import Preprocessing
from foveate.evaluation.environment import describe_environment
from foveate.evaluation.timing import interleave
from foveate.tasks.augmentation import training_transform
from foveate.training.recipe import read_recipe

METHODS = {"EViT": fv.EViT(), "ToMe": fv.ToMe()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="deit_small_patch16_224")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=90)
    args = parser.parse_args()
    torch.set_num_threads(2)
    print(describe_environment(torch.device("cpu"), torch.float32))
    models = {"unreduced": timm.create_model(args.model)}
    for name, method in METHODS.items():
        models[name] = fv.reduce_(timm.create_model(args.model), method, fv.Budget(0.5))
    images, labels = torch.randn(args.batch_size, 3, 224, 224), torch.randint(0, 1000, (args.batch_size,))
    timers = {name: timer(model, images, labels) for name, model in models.items()}
    interleave(timers, rounds=1)
    rounds = interleave(timers, None, args.seconds)
    for name in METHODS:
        ratios = [r["unreduced"] / r[name] for r in rounds]
        low, _, high = quantiles(ratios, n=4)
        macs = fv.cost(models["unreduced"]).macs / fv.cost(models[name]).macs
        pace = args.batch_size / median(r[name] for r in rounds)
        spread = f"{median(ratios):.3f}x ({low:.3f}-{high:.3f})"
        print(f"{name}: {pace:.1f} img/s, {spread}, MAC ratio {macs:.3f}, realized {median(ratios) / macs:.3f}")
    print(f"unreduced: {args.batch_size / median(r['unreduced'] for r in rounds):.1f} img/s")
    for workers in (0, 1, 2):
        print(f"loader with {workers} workers: {loaded(models['unreduced'], args.batch_size, workers):.0f} img/s")


def timer(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> Callable[[], float]:
    """Return a timer for one training step."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)

    def step() -> float:
        start = time.perf_counter()
        torch.nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return time.perf_counter() - start

    return step


def loaded(model: nn.Module, batch_size: int, workers: int, batches: int = 40) -> float:
    """Return the images per second of the loader alone, after a few warmup batches."""
    transform = training_transform(Preprocessing.of(model), read_recipe("deit").augmentation)
    loader = Loader(open_data(data(), "train"), transform, batch_size, seed=0, train=True, workers=workers)
    flow = loader.epoch(0)
    for _ in range(5):
        next(flow)
    start = time.perf_counter()
    for _ in range(batches):
        next(flow)
    return batches * batch_size / (time.perf_counter() - start)


if __name__ == "__main__":
    main()
