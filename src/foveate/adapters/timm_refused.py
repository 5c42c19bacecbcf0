"""timm's other transformers, which are refused with the reason."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from foveate.adapters.family import UnsupportedModel
from foveate.adapters.registry import register_family, supported_titles
from foveate.adapters.timm_family import TimmFamily

WINDOWS = "it attends inside windows of the grid, which have holes once tokens are gone"
STAGES = "its stages shrink the grid, which needs every patch"
MIXED = "its blocks mix neighboring patches by convolutions, which need every patch"
REASONS: dict[str, str] = {
    "swin_transformer": WINDOWS,
    "swin_transformer_v2": WINDOWS,
    "swin_transformer_v2_cr": WINDOWS,
    "maxxvit": WINDOWS,
    "gcvit": WINDOWS,
    "davit": WINDOWS,
    "nest": WINDOWS,
    "hiera": WINDOWS,
    "hieradet_sam2": WINDOWS,
    "vision_transformer_sam": WINDOWS,
    "tiny_vit": WINDOWS,
    "twins": WINDOWS,
    "efficientvit_msra": WINDOWS,
    "pit": STAGES,
    "pvt_v2": STAGES,
    "mvitv2": STAGES,
    "levit": STAGES,
    "visformer": STAGES,
    "volo": "its first stage attends inside windows of pixels around each patch",
    "coat": MIXED,
    "xcit": MIXED,
    "efficientformer": STAGES,
    "efficientformer_v2": STAGES,
    "efficientvit_mit": MIXED,
    "fastvit": STAGES,
    "iformer": STAGES,
    "lowformer": STAGES,
    "metaformer": STAGES,
    "mobilevit": STAGES,
    "nextvit": STAGES,
    "repvit": STAGES,
    "shvit": STAGES,
    "swiftformer": STAGES,
    "cait": "its class token attends in blocks of its own, and its heads are mixed before the softmax",
    "convit": "its attention adds a second softmax over positions",
    "crossvit": "it has two branches with patches of different sizes",
    "tnt": "every patch has tokens of its own inside",
}
"""Modules of timm, and why their models are refused."""


@register_family
class TimmRefused(TimmFamily):
    """timm's transformers with windows, stages or other attention."""

    title = "timm transformers with windows, stages or other attention"

    @classmethod
    def matches(cls, model: nn.Module) -> bool:
        return _reason(type(model)) is not None

    @classmethod
    def can_rebuild(cls, architecture: Mapping[str, Any]) -> bool:
        return False

    def check(self) -> None:
        found = f"{self.base_class.__module__}.{self.base_class.__qualname__}"
        raise UnsupportedModel(
            f"foveate does not support {found}: {_reason(self.base_class)}. Supported: {supported_titles()}."
        )

    @property
    def blocks(self) -> list[nn.Module]:
        return []

    @property
    def image_size(self) -> tuple[int, int, int]:
        raise UnsupportedModel(f"{self.title} have no image size that foveate knows.")

    def build_options(self) -> dict[str, Any]:
        return {}


def _reason(kind: type) -> str | None:
    library, _, module = kind.__module__.partition(".models.")
    return REASONS.get(module) if library == "timm" else None
