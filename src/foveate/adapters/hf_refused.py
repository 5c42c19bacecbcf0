"""Encoders of transformers that are known and refused, each with the reason."""

from __future__ import annotations

from typing import Any

from torch import nn

from foveate.adapters.family import UnsupportedModel
from foveate.adapters.hf_family import HfFamily, class_name
from foveate.adapters.hf_systems import PLACES
from foveate.adapters.registry import register_family

WINDOWS = (
    "most of its blocks attend in windows, which need every patch at its place, so only the few blocks with full "
    "attention between them could keep fewer tokens"
)
REFUSED = {
    "Qwen2_5_VisionTransformerPretrainedModel": WINDOWS,
    "SamVisionEncoder": WINDOWS,
    "VitDetBackbone": WINDOWS,
    "ViTMAEForPreTraining": "its decoder rebuilds hidden patches; reduce model.vit with config.mask_ratio = 0",
}


@register_family
class HfRefused(HfFamily):
    """An encoder that cannot be reduced."""

    title = "transformers encoders that are refused"

    @classmethod
    def refused_classes(cls) -> dict[str, str]:
        """The reason for every class that is refused, with the models around such encoders."""
        return REFUSED | {name: f"its encoder is refused: {WINDOWS}" for name, place in PLACES.items() if place.refused}

    @classmethod
    def matches(cls, model: nn.Module) -> bool:
        return class_name(model) in REFUSED

    def check(self) -> None:
        name = class_name(self.model)
        raise UnsupportedModel(f"foveate does not reduce transformers' {name}: {REFUSED[name]}.")

    @property
    def blocks(self) -> list[nn.Module]:
        return []

    @property
    def image_size(self) -> tuple[int, int, int]:
        raise UnsupportedModel(REFUSED[class_name(self.model)])

    def architecture(self) -> dict[str, Any] | None:
        return None
