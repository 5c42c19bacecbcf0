"""Light heads for a plain ViT, whose features all have one stride: ``linear`` and ``simple-pyramid``."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from foveate.methods.validation import check_sizes
from foveate.models.dense.head import Head, Levels, register_head
from foveate.models.dense.layers import conv_norm, start_classifier_, upsampled
from foveate.models.dense.semantic_fpn import SemanticFPN

PYRAMID = (4, 8, 16, 32)
"""Strides of the simple feature pyramid."""


@register_head("linear")
class LinearHead(Head):
    """Batch norm and one linear layer on each feature: of the last block, or of several ``blocks`` side by side.

    On a pyramid it reads the coarsest map.
    """

    task = "segmentation"
    default_classes = 150

    def __init__(self, levels: Levels, num_classes: int, blocks: Sequence[int] = (-1,)) -> None:
        super().__init__(levels, num_classes, blocks=list(blocks))
        self.blocks = tuple(blocks)
        self.read = [i for i, stride in enumerate(levels.strides) if stride == max(levels.strides)]
        width = sum(levels.channels[i] for i in self.read)
        self.norm = nn.BatchNorm2d(width)
        self.classifier = start_classifier_(nn.Conv2d(width, num_classes, 1))

    def forward(self, maps: list[Tensor], size: tuple[int, int], upsample: bool = True) -> Tensor:
        """Logits (B, classes, height, width), or at the finest stride."""
        side_by_side = torch.cat([maps[i] for i in self.read], dim=1)
        return upsampled(self.classifier(self.norm(side_by_side)), size if upsample else None)


@register_head("simple-pyramid")
class SimplePyramid(Head):
    """Maps of strides 4, 8, 16 and 32 from the last one of a plain ViT (ViTDet), then a Semantic FPN on them."""

    task = "segmentation"
    default_classes = 150

    def __init__(self, levels: Levels, num_classes: int, channels: int = 256, width: int = 128) -> None:
        super().__init__(levels, num_classes, channels=channels, width=width)
        check_sizes(channels=channels, width=width)
        stride, dim = levels.strides[-1], levels.channels[-1]
        if len(set(levels.strides)) > 1:
            raise ValueError(
                f"simple-pyramid is for a plain ViT, whose features have one stride; this encoder gives "
                f"{', '.join(map(str, levels.strides))}. Use semantic-fpn or upernet."
            )
        self.scales = nn.ModuleList(scaled(dim, channels, math.log2(stride / wanted)) for wanted in PYRAMID)
        self.decoder = SemanticFPN(Levels((channels,) * len(PYRAMID), PYRAMID), num_classes, channels, width)

    def forward(self, maps: list[Tensor], size: tuple[int, int], upsample: bool = True) -> Tensor:
        """Logits (B, classes, height, width), or at the finest stride."""
        return self.decoder([layer(maps[-1]) for layer in self.scales], size, upsample)


def scaled(dim: int, width: int, ups: float) -> nn.Sequential:
    """Enlarge a map ``ups`` times by two (rounded: patches of 14 pixels count as 16), or shrink it, then 1x1."""
    layers: list[nn.Module] = []
    steps = round(ups)
    for _ in range(steps):
        layers += [nn.ConvTranspose2d(dim, max(dim // 2, 1), 2, stride=2), nn.GELU()]
        dim = max(dim // 2, 1)
    layers += [nn.MaxPool2d(2, ceil_mode=True)] * -steps
    return nn.Sequential(*layers, *conv_norm(dim, width, 1))
