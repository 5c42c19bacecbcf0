"""Heatmaps of keypoints for top-down pose estimation."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor, nn

from foveate.methods.validation import check_sizes
from foveate.models.dense.head import Head, Levels, register_head
from foveate.models.dense.layers import start_classifier_

STRIDE = 4
"""Pixels of the image in one of a heatmap: 256 x 192 gives 64 x 48."""


@register_head("heatmaps")
class Heatmaps(Head):
    """Deconvolutions from the coarsest map to stride 4, and one heatmap per keypoint (Xiao et al., ECCV 2018).

    A pyramid of stride 32 needs three deconvolutions; a plain ViT of stride 16 two, as in ViTPose. ``num_classes`` is
    the number of keypoints.
    """

    task = "pose"
    default_classes = 17

    def __init__(self, levels: Levels, num_classes: int, channels: int = 256) -> None:
        super().__init__(levels, num_classes, channels=channels)
        check_sizes(channels=channels)
        steps = round(math.log2(levels.strides[-1] / STRIDE))
        if steps < 0:
            raise ValueError(
                f"heatmaps has stride {STRIDE}, but the coarsest map of this encoder has stride {levels.strides[-1]}."
            )
        layers: list[nn.Module] = []
        width = levels.channels[-1]
        for _ in range(steps):
            deconvolution = nn.ConvTranspose2d(width, channels, 4, stride=2, padding=1, bias=False)
            nn.init.normal_(deconvolution.weight, std=0.001)
            layers += [deconvolution, nn.BatchNorm2d(channels), nn.ReLU(inplace=True)]
            width = channels
        self.layers = nn.Sequential(*layers)
        self.classifier = start_classifier_(nn.Conv2d(width, num_classes, 1))

    def forward(self, maps: list[Tensor], size: tuple[int, int], **given: Any) -> Tensor:
        """Heatmaps (B, keypoints, height / 4, width / 4)."""
        found = self.classifier(self.layers(maps[-1]))
        return found[..., : -(-size[0] // STRIDE), : -(-size[1] // STRIDE)]  # a map may reach beyond the image
