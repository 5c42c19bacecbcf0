"""timm's models inside transformers: the wrapper's model is reduced as timm's own."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from foveate.adapters.hf_family import HfFamily, class_name
from foveate.adapters.registry import register_family
from foveate.adapters.systems import System

WRAPPERS = ("TimmWrapperModel", "TimmWrapperForImageClassification")


@register_family
class HfTimm(System, HfFamily):
    """A wrapper around a timm model."""

    title = "transformers TimmWrapper (its timm model)"
    output = None
    path = "timm_model"

    @classmethod
    def known_classes(cls) -> tuple[str, ...]:
        return WRAPPERS

    @classmethod
    def matches(cls, model: nn.Module) -> bool:
        return class_name(model) in WRAPPERS

    def classifiers(self) -> list[nn.Module]:
        return self.encoder.classifiers()

    def set_classes_(self, num_classes: int) -> None:
        self.encoder.set_classes_(num_classes)

    def image_embedding(self, images: Tensor) -> Tensor:
        return self.encoder.image_embedding(images)

    def architecture(self) -> dict[str, Any] | None:
        """None: its config holds arguments for timm, which a file must not choose. Save the timm model instead."""
        return None

    @classmethod
    def can_rebuild(cls, architecture: Any) -> bool:
        return False
