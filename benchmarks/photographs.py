"""The pretrained ViT-Tiny and the photographs in the folder named by FOVEATE_ASSETS, for benchmarks."""

from __future__ import annotations

import csv
import os
import sys
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn
from torchvision.transforms.functional import pil_to_tensor

from foveate.models.by_name import load_model


def assets() -> Path:
    """Return the folder FOVEATE_ASSETS, or exit with a message if it is not set."""
    if "FOVEATE_ASSETS" not in os.environ:
        sys.exit("Set FOVEATE_ASSETS to the folder with vit_tiny/ and imagenet_dev/.")
    return Path(os.environ["FOVEATE_ASSETS"])


def photographs(folder: Path, limit: int | None) -> tuple[Tensor, Tensor]:
    """Return images (N, 3, 224, 224), normalized for the weights, and labels (N,)."""
    with (folder / "labels.csv").open() as file:
        rows = list(csv.DictReader(file))[:limit]
    images = opened([folder / row["file"] for row in rows])
    return images, torch.tensor([int(row["label"]) for row in rows])


def opened(files: list[Path]) -> Tensor:
    """Images (N, 3, 224, 224), normalized for the weights."""
    pictures = (Image.open(file).convert("RGB").resize((224, 224), Image.Resampling.BICUBIC) for file in files)
    return torch.stack([pil_to_tensor(picture).float().div(255).sub(0.5).div(0.5) for picture in pictures])


def vit_tiny(size: int = 224) -> Any:
    """Return the pretrained ViT-Tiny for images of this size."""
    weights = assets() / "vit_tiny" / "model.safetensors"
    return load_model("vit_tiny_patch16_224", weights=weights, options={"img_size": size}).eval()


@torch.inference_mode()
def logits(model: nn.Module, images: Tensor) -> Tensor:
    return torch.cat([model(batch) for batch in images.split(25)])
