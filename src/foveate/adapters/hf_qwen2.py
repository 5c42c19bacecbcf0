"""transformers' image tower of Qwen2-VL: packed patches with rotary positions alone, merged behind the last block."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from transformers.modeling_outputs import BaseModelOutputWithPooling
from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VisionTransformerPretrainedModel

from foveate.adapters import hf_heads as heads
from foveate.adapters.hf_backbones import Backbone
from foveate.adapters.hf_qwen import HfQwen, qwen
from foveate.adapters.hf_vit import Variant
from foveate.adapters.registry import register_family

NAME = Qwen2VisionTransformerPretrainedModel.__name__
SIDE = 16
"""Patches on each side of the image that costs are counted for: the tower has no size of its own."""


@register_family
class HfQwen2(HfQwen):
    """The tower of Qwen2-VL, whose blocks all attend to the whole image."""

    title = "transformers Qwen2-VL vision"
    output_class = BaseModelOutputWithPooling
    records = False
    variants: ClassVar[Mapping[str, Variant]] = {NAME: Variant("", heads.plain, True)}
    backbones: ClassVar[Mapping[str, Backbone]] = {NAME: qwen("Qwen2VLVisionBlock")}

    @classmethod
    def class_named(cls, name: str) -> Any:
        return Qwen2VisionTransformerPretrainedModel  # the package does not export it

    @property
    def image_size(self) -> tuple[int, int, int]:
        config = self.model.config
        return config.in_channels, SIDE * config.patch_size, SIDE * config.patch_size
