"""Semantic FPN (Kirillov et al., CVPR 2019), with the layers that give ClusTR's 26.4 M parameters (table 2)."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor, nn
from torch.nn.functional import dropout, interpolate

from foveate.models.dense.head import Head, Levels, register_head, require_pyramid
from foveate.models.dense.layers import FeaturePyramid, conv_norm, start_classifier_, upsampled


@register_head("semantic-fpn")
class SemanticFPN(Head):
    """A feature pyramid of 256 channels; each map is brought to the finest stride in steps of two, and all are summed.

    A map of stride s goes through log2(s / finest) convolutions of 128 channels, at least one, each followed by
    up-sampling. segmentation-models-pytorch's FPN has other layers (no 3x3 behind the pyramid, group norm).
    """

    task = "segmentation"
    default_classes = 150

    def __init__(
        self, levels: Levels, num_classes: int, channels: int = 256, width: int = 128, drop: float = 0.1
    ) -> None:
        super().__init__(levels, num_classes, channels=channels, width=width, drop=drop)
        require_pyramid("semantic-fpn", levels)
        self.pyramid = FeaturePyramid(levels.channels, channels)
        self.branches = nn.ModuleList(
            nn.ModuleList(conv_norm(channels if step == 0 else width, width) for step in range(max(1, ups)))
            for ups in (int(math.log2(stride // levels.strides[0])) for stride in levels.strides)
        )
        self.classifier = start_classifier_(nn.Conv2d(width, num_classes, 1))
        self.drop = drop

    def forward(self, maps: list[Tensor], size: tuple[int, int], upsample: bool = True) -> Tensor:
        """Logits (B, classes, height, width), or at the finest stride."""
        pyramid = self.pyramid(maps)
        finer = [tuple(one.shape[-2:]) for one in pyramid]
        branches: Any = self.branches
        total = branches[0][0](pyramid[0])
        for level, one in enumerate(pyramid[1:], start=1):
            for step, layer in enumerate(branches[level]):
                one = interpolate(layer(one), size=finer[level - 1 - step], mode="bilinear")
            total = total + one
        return upsampled(self.classifier(dropout(total, self.drop, self.training)), size if upsample else None)
