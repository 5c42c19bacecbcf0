"""Layers that dense heads share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeVar

from torch import Tensor, nn
from torch.nn.functional import interpolate

Conv = TypeVar("Conv", bound=nn.Conv2d)


class WithAuxiliary(NamedTuple):
    """What a head with an auxiliary one returns in training."""

    logits: Tensor
    auxiliary: Tensor


class FeaturePyramid(nn.Module):
    """A feature pyramid (Lin et al., 2017): 1x1 laterals, a sum from coarse to fine, and a 3x3 behind each map.

    Args:
        channels: of the encoder's maps, from fine to coarse.
        width: of the pyramid.
    """

    def __init__(self, channels: Sequence[int], width: int) -> None:
        super().__init__()
        self.laterals = nn.ModuleList(nn.Conv2d(one, width, 1) for one in channels)
        self.outputs = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in channels)

    def forward(self, maps: Sequence[Tensor]) -> list[Tensor]:
        found = [layer(one) for layer, one in zip(self.laterals, maps, strict=True)]
        for level in reversed(range(len(found) - 1)):
            found[level] = found[level] + interpolate(found[level + 1], size=found[level].shape[-2:], mode="nearest")
        return [layer(one) for layer, one in zip(self.outputs, found, strict=True)]


def conv_norm(channels: int, width: int, kernel: int = 3) -> nn.Sequential:
    """A convolution without bias, batch norm and ReLU."""
    conv = nn.Conv2d(channels, width, kernel, padding=kernel // 2, bias=False)
    nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")
    return nn.Sequential(conv, nn.BatchNorm2d(width), nn.ReLU(inplace=True))


def start_classifier_(conv: Conv) -> Conv:
    """Start with nearly equal logits, so that the first steps do not depend on chance."""
    nn.init.normal_(conv.weight, std=0.01)
    assert conv.bias is not None
    nn.init.zeros_(conv.bias)
    return conv


def fit(values: Tensor, size: tuple[int, int]) -> Tensor:
    """Resize (B, C, h, w) to ``size``; unchanged if it has that size."""
    return values if tuple(values.shape[-2:]) == tuple(size) else interpolate(values, size=size, mode="bilinear")


def upsampled(logits: Tensor, size: tuple[int, int] | None) -> Tensor:
    """Logits at the images' size; as they are if ``size`` is None."""
    return logits if size is None else fit(logits, size)
