"""UperNet (Xiao et al., ECCV 2018) and its auxiliary head, with the layers that give ClusTR's 52.5 M parameters."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool2d, dropout, interpolate

from foveate.models.dense.head import Head, Levels, register_head, require_pyramid
from foveate.models.dense.layers import WithAuxiliary, conv_norm, fit, start_classifier_, upsampled

POOLED = (1, 2, 3, 6)
"""Sides of the grids that the coarsest map is pooled to."""
AUXILIARY_WIDTH = 256


@register_head("upernet")
class UperNet(Head):
    """Pyramid pooling of the coarsest map, a feature pyramid of 512 channels, and one convolution over all its maps.

    segmentation-models-pytorch's UPerNet also normalizes the encoder's maps and has no auxiliary head.
    """

    task = "segmentation"
    default_classes = 150

    def __init__(
        self, levels: Levels, num_classes: int, channels: int = 512, auxiliary: bool = True, drop: float = 0.1
    ):
        super().__init__(levels, num_classes, channels=channels, auxiliary=auxiliary, drop=drop)
        require_pyramid("upernet", levels)
        *finer, coarsest = levels.channels
        self.pooled = nn.ModuleList(conv_norm(coarsest, channels, 1) for _ in POOLED)
        self.bottleneck = conv_norm(coarsest + len(POOLED) * channels, channels)
        self.laterals = nn.ModuleList(conv_norm(width, channels, 1) for width in finer)
        self.outputs = nn.ModuleList(conv_norm(channels, channels) for _ in finer)
        self.fusion = conv_norm(len(levels.channels) * channels, channels)
        self.classifier = start_classifier_(nn.Conv2d(channels, num_classes, 1))
        self.auxiliary = AuxiliaryHead(levels.channels[-2], num_classes, drop) if auxiliary else None
        self.drop = drop

    def forward(self, maps: list[Tensor], size: tuple[int, int], upsample: bool = True) -> Tensor | WithAuxiliary:
        """Logits (B, classes, height, width); in training also those of the auxiliary head."""
        found = self.merged(maps)
        finest = (found[0].shape[-2], found[0].shape[-1])
        fused = self.fusion(torch.cat([fit(one, finest) for one in found], dim=1))
        place = size if upsample else None
        logits = upsampled(self.classifier(dropout(fused, self.drop, self.training)), place)
        if self.auxiliary is None or not self.training:
            return logits
        return WithAuxiliary(logits, upsampled(self.auxiliary(maps[-2]), place))

    def merged(self, maps: list[Tensor]) -> list[Tensor]:
        """The feature pyramid, from fine to coarse."""
        coarsest = maps[-1]
        context = [layer(adaptive_avg_pool2d(coarsest, n)) for n, layer in zip(POOLED, self.pooled, strict=True)]
        place = (coarsest.shape[-2], coarsest.shape[-1])
        top = self.bottleneck(torch.cat([coarsest, *(fit(one, place) for one in context)], dim=1))
        laterals = [layer(one) for layer, one in zip(self.laterals, maps[:-1], strict=True)]
        found = [top]
        below = top
        for level in reversed(range(len(laterals))):
            below = laterals[level] + interpolate(below, size=laterals[level].shape[-2:], mode="bilinear")
            found.insert(0, self.outputs[level](below))
        return found


class AuxiliaryHead(nn.Module):
    """One convolution and a classifier on the second coarsest map, for the loss alone."""

    def __init__(self, channels: int, num_classes: int, drop: float) -> None:
        super().__init__()
        self.conv = conv_norm(channels, AUXILIARY_WIDTH)
        self.classifier = start_classifier_(nn.Conv2d(AUXILIARY_WIDTH, num_classes, 1))
        self.drop = drop

    def forward(self, one: Tensor) -> Tensor:
        return self.classifier(dropout(self.conv(one), self.drop, self.training))
