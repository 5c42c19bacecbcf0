"""The model of the built-in demonstration: a small timm vision transformer trained on foveate's scenes.

Its weights ship with the package in half precision. These commands make them again:

    foveate train scenes --out runs/scenes
    python -m foveate.models.demo runs/scenes
"""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import timm
from safetensors import SafetensorError, safe_open
from timm.layers import to_2tuple
from timm.models import build_model_with_cfg, generate_default_cfgs, register_model
from timm.models.vision_transformer import VisionTransformer
from torch import nn

from foveate.models.untrained import untrained

__all__ = ["WEIGHTS", "about_demo", "demo_classes", "demo_model"]

NAME = "scenes_vit"
WEIGHTS = Path(__file__).with_name("scenes_vit.safetensors")
SHAPE = {"img_size": 96, "patch_size": 8, "embed_dim": 128, "depth": 6, "num_heads": 4}
"""144 patches, enough to drop some, and few enough blocks to train on a CPU."""
CLASSES = 20
"""How many warm objects a scene of ``scenes:counting`` shows: 1 to 20."""


def demo_model() -> nn.Module:
    """Load the trained model, in single precision and evaluation mode."""
    about_demo()  # raises a clearer error than timm if the file is damaged
    return timm.create_model(NAME, pretrained=True).eval()


def demo_classes() -> tuple[str, ...]:
    """Class names, in the order of the model's outputs."""
    return tuple(json.loads(about_demo()["classes"]))


def about_demo() -> dict[str, str]:
    """Metadata of the weights file: recipe, seed, version, accuracy, classes."""
    try:
        with safe_open(WEIGHTS, "pt") as file:
            return dict(file.metadata())
    except (SafetensorError, OSError, TypeError) as error:
        raise ValueError(
            f"The demonstration's weights {WEIGHTS} cannot be read: {error}. Install foveate again, or train them: "
            "foveate train scenes --out runs/scenes; python -m foveate.models.demo runs/scenes."
        ) from error


CONFIG = untrained(
    file=str(WEIGHTS),
    num_classes=CLASSES,
    input_size=(3, 96, 96),
    crop_pct=1.0,  # scenes are drawn at the model's size, and objects may touch the edges
    mean=(0.5, 0.5, 0.5),
    std=(0.5, 0.5, 0.5),
    first_conv="patch_embed.proj.0",
)
default_cfgs = generate_default_cfgs({f"{NAME}.scenes": CONFIG})  # timm reads this name


@register_model
def scenes_vit(pretrained: bool = False, **options: Any) -> VisionTransformer:
    """The demonstration's model; ``pretrained=True`` loads the weights that ship with foveate."""
    return build_model_with_cfg(_build, NAME, pretrained, **(SHAPE | {"num_classes": CLASSES} | options))


def _build(embed_dim: int, patch_size: Any, in_chans: int = 3, **options: Any) -> VisionTransformer:
    if tuple(to_2tuple(patch_size)) != (8, 8):
        raise ValueError(
            f"{NAME} has patches of 8 x 8, because its stem halves the image three times; got {patch_size}."
        )
    model = VisionTransformer(embed_dim=embed_dim, patch_size=patch_size, in_chans=in_chans, **options)
    model.patch_embed.proj = _stem(in_chans, embed_dim)
    return model


def _stem(in_chans: int, width: int) -> nn.Sequential:
    """Three convolutions that each halve the image: with them, edges are learned from far fewer images."""
    layers: list[nn.Module] = []
    for before, after in pairwise((in_chans, 32, 64, 128)):
        layers += [nn.Conv2d(before, after, 3, 2, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers, nn.Conv2d(128, width, 1))
