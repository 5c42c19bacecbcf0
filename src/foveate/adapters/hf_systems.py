"""transformers models with a supported encoder inside: two towers and vision-language models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoTokenizer

from foveate.adapters.hf_family import HfFamily, class_name
from foveate.adapters.registry import register_family
from foveate.adapters.systems import System
from foveate.costs import Output


@dataclass(frozen=True)
class Place:
    """Where a model has its encoder, and what it reads of it."""

    path: str
    otherwise: str = ""
    """Where it is in a model that has nothing at ``path``."""
    output: Output = "grid"
    layers: Callable[[Any], Any] | None = None
    """From the model's config to the hidden states that are read, by index, 0 being the embedding."""
    grid_only: bool = True
    """Whether every patch must have a feature; otherwise ``output="tokens"`` hands on fewer."""
    needs_text: bool = False
    refused: bool = False
    """Whether its encoder is one that is known and refused."""


_POOLED: dict[str, Any] = {"output": "tokens", "grid_only": False, "needs_text": True}  # only the pooled vector is read
_ANY: dict[str, Any] = {"grid_only": False}  # as many features as there are


def _feature_layers(config: Any) -> Any:
    return config.vision_feature_layer


PLACES = {
    "CLIPModel": Place("vision_model", **_POOLED),
    "MetaClip2Model": Place("vision_model", **_POOLED),
    "SiglipModel": Place("vision_model", **_POOLED),
    "Siglip2Model": Place("vision_model", **_POOLED),
    "Siglip2ForImageClassification": Place("vision_model"),
    "VisionTextDualEncoderModel": Place("vision_model", **_POOLED),
    "VisionEncoderDecoderModel": Place("encoder", needs_text=True, **_ANY),
    "BeitBackbone": Place("beit"),
    "DPTForDepthEstimation": Place("backbone", otherwise="dpt"),
    "DPTForSemanticSegmentation": Place("dpt"),
    "DepthAnythingForDepthEstimation": Place("backbone"),
    "PromptDepthAnythingForDepthEstimation": Place("backbone"),
    "ZoeDepthForDepthEstimation": Place("backbone"),
    "UperNetForSemanticSegmentation": Place("backbone"),
    "VitPoseForPoseEstimation": Place("backbone"),
    "YolosForObjectDetection": Place("vit", output="tokens", grid_only=False),  # detection tokens alone are read
    "SamModel": Place("vision_encoder", refused=True),
}

LANGUAGE = {
    "Llava": Place("vision_tower", layers=_feature_layers, **_ANY),
    "LlavaNext": Place("vision_tower", layers=_feature_layers),
    "LlavaOnevision": Place("vision_tower", layers=_feature_layers),
    "VipLlava": Place("vision_tower", layers=lambda config: config.vision_feature_layers),
    "AyaVision": Place("vision_tower", layers=_feature_layers),
    "InternVL": Place("vision_tower", layers=_feature_layers),
    "PaliGemma": Place("vision_tower", **_ANY),
    "Gemma3": Place("vision_tower"),
    "Mistral3": Place("vision_tower", layers=_feature_layers),
    "Idefics3": Place("vision_model"),
    "SmolVLM": Place("vision_model"),
    "Qwen2VL": Place("visual"),
    "Qwen3VL": Place("visual"),
    "Qwen3VLMoe": Place("visual"),
    "Qwen2_5_VL": Place("visual", refused=True),
}
"""Models with a language model behind; the class for generation holds the other one as ``model``."""

for _name, _place in LANGUAGE.items():
    PLACES[f"{_name}Model"] = replace(_place, needs_text=True)
    PLACES[f"{_name}ForConditionalGeneration"] = replace(_place, path=f"model.{_place.path}", needs_text=True)


@register_family
class HfSystem(System, HfFamily):
    """A transformers model around one of the encoders that foveate supports."""

    title = (
        "transformers models around an encoder: two towers, vision-language models, depth, segmentation, detection, "
        "pose"
    )

    @classmethod
    def known_classes(cls) -> tuple[str, ...]:
        return tuple(name for name, place in PLACES.items() if not place.refused)

    @classmethod
    def matches(cls, model: nn.Module) -> bool:
        return class_name(model) in PLACES

    @property
    def place(self) -> Place:
        return PLACES[class_name(self.model)]

    @property
    def path(self) -> str:
        place = self.place
        return place.otherwise if place.otherwise and getattr(self.model, place.path, None) is None else place.path

    @property
    def output(self) -> Output:  # type: ignore[override]
        return self.place.output

    @property
    def grid_only(self) -> bool:  # type: ignore[override]
        return self.place.grid_only

    @property
    def last_read(self) -> int | None:
        if self.place.layers is None:
            return None
        layers, depth = self.place.layers(self.model.config), len(self.blocks)
        given = [layers] if isinstance(layers, int) else list(layers)
        last = max(layer % (depth + 1) for layer in given) - 1
        return last if 0 <= last < depth - 1 else None

    @property
    def image_model(self) -> nn.Module:
        return self.model.get_submodule(self.path) if self.place.needs_text else self.model

    def image_embedding(self, images: Tensor) -> Tensor:
        read = getattr(self.model, "get_image_features", None)
        if self.place.output != "tokens" or read is None:
            raise ValueError(f"{type(self.model).__name__} gives no vector for an image, so it cannot be compared.")
        return read(pixel_values=images).pooler_output

    def text_embedding(self, texts: Sequence[str]) -> Tensor:
        if self.place.output != "tokens":
            return super().text_embedding(texts)
        name = self.model.config._name_or_path
        try:
            tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=False)
        except Exception as error:  # a folder without a tokenizer raises many kinds
            raise ValueError(
                f"Prompts need the tokenizer of {type(self.model).__name__}, and {name!r} has none: {error!s:.200}"
            ) from error
        # SigLIP was trained with padded texts, and reads the last position
        length = getattr(self.model.config.text_config, "max_position_embeddings", None)
        padding = "max_length" if "siglip" in self.model.config.model_type else True
        given = tokenizer(list(texts), padding=padding, truncation=True, max_length=length, return_tensors="pt")
        with torch.no_grad():
            return self.model.get_text_features(**given.to(self.model.device)).pooler_output
