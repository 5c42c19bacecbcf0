"""How many of a pretrained ViT-Tiny's decisions survive reduction without training.

Reads the weights and photographs in the folder named by FOVEATE_ASSETS; run as
``FOVEATE_ASSETS=... python benchmarks/agreement.py [--limit N]``.
"""

from __future__ import annotations

import argparse
import csv
import os
import sys
from pathlib import Path

import timm
import torch
from PIL import Image
from rich.console import Console
from rich.progress import track
from rich.table import Table
from safetensors.torch import load_file
from torch import Tensor, nn
from torchvision.transforms.functional import pil_to_tensor

import foveate as fv

THREE = fv.KeepRate(0.7, blocks=(3, 6, 9))
SETTINGS: list[tuple[fv.Method, fv.Schedule]] = [
    (fv.ToMe(), fv.RemovePerBlock(8)),
    (fv.ToMe(), fv.RemovePerBlock(13)),
    (fv.ToMe(carry=False), fv.RemovePerBlock(13)),
    (fv.TopK(), THREE),
    (fv.EViT(), THREE),
    (fv.EViT(normalize=True), THREE),
]


def photographs(folder: Path, limit: int | None) -> tuple[Tensor, Tensor]:
    """Images (N, 3, 224, 224) as the weights expect them, and labels (N,)."""
    with (folder / "labels.csv").open() as file:
        rows = list(csv.DictReader(file))[:limit]
    pictures = [
        Image.open(folder / row["file"]).convert("RGB").resize((224, 224), Image.Resampling.BICUBIC) for row in rows
    ]
    images = torch.stack([pil_to_tensor(p).float().div(255).sub(0.5).div(0.5) for p in pictures])
    return images, torch.tensor([int(row["label"]) for row in rows])


@torch.inference_mode()
def decide(model: nn.Module, images: Tensor) -> Tensor:
    return torch.cat([model(batch) for batch in images.split(25)]).argmax(dim=1)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--limit", type=int, help="use the first N photographs only")
    args = parser.parse_args()
    if "FOVEATE_ASSETS" not in os.environ:
        print("Set FOVEATE_ASSETS to the folder with vit_tiny/ and imagenet_dev/.", file=sys.stderr)
        return 2
    assets = Path(os.environ["FOVEATE_ASSETS"])
    images, labels = photographs(assets / "imagenet_dev", args.limit)
    model = timm.create_model("vit_tiny_patch16_224").eval()
    model.load_state_dict(load_file(assets / "vit_tiny" / "model.safetensors"))
    whole, macs = decide(model, images), fv.cost(model).macs
    table = Table(
        "method", "schedule", "of the MACs", "agreement", "top-1", title=f"ViT-Tiny, {len(images)} photographs"
    )
    table.add_row("unreduced", "", "100.0%", "100.0%", f"{(whole == labels).float().mean():.1%}")
    for method, schedule in track(SETTINGS, description="settings"):
        fv.reduce_(model, method, schedule)
        kept, share = decide(model, images), fv.cost(model).macs / macs
        fv.restore_(model)
        agreement, accuracy = (kept == whole).float().mean(), (kept == labels).float().mean()
        table.add_row(repr(method), repr(schedule), f"{share:.1%}", f"{agreement:.1%}", f"{accuracy:.1%}")
    Console(width=140).print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
