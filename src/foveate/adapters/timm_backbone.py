"""Backbones of timm that are no plain sequence of tokens: they cannot be reduced, but trained, saved and drawn."""

from __future__ import annotations

from typing import Any

import timm
from torch import nn

from foveate.adapters.base import Keeper
from foveate.cost import CountsItself


class TimmBackbone(Keeper):
    """A timm model with stages that counts its own cost and says by ``recipe_options`` how to build it again."""

    library = "timm-backbone"

    def matches(self, model: nn.Module) -> bool:
        return isinstance(model, CountsItself) and hasattr(model, "recipe_options")

    def blocks(self, model: Any) -> list[nn.Module]:
        return [block for stage in model.stages for block in stage.blocks]

    def image_size(self, model: Any) -> tuple[int, int, int]:
        height, width = model.img_size
        return int(model.in_chans), int(height), int(width)

    def recipe(self, model: Any) -> dict[str, Any] | None:
        architecture = (getattr(model, "pretrained_cfg", None) or {}).get("architecture")
        if not architecture:
            return None
        return {"library": self.library, "architecture": architecture, "options": model.recipe_options}

    def rebuild(self, recipe: dict[str, Any]) -> nn.Module:
        return timm.create_model(recipe["architecture"], pretrained=False, **recipe["options"])


BACKBONE = TimmBackbone()
