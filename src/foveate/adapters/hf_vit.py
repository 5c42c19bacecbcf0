"""transformers: ViT, DeiT, DINOv2 (with registers), CLIP vision and SigLIP vision, with their classifiers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import transformers
from torch import Tensor, nn

from foveate.adapters import hf_heads as heads
from foveate.adapters.blocks import BlockPieces
from foveate.adapters.engine import Encoded
from foveate.adapters.family import UnsupportedModel
from foveate.adapters.hf_blocks import ClipBlock, Dinov2Block, HfBlock, VitBlock
from foveate.adapters.hf_family import HfFamily, class_name, pair
from foveate.adapters.reduced import Reduced
from foveate.adapters.registry import register_family
from foveate.costs import ModelShape


@dataclass(frozen=True)
class Backbone:
    """The names of the parts of one encoder class."""

    pieces: type[HfBlock]
    layer: str  # class name of its blocks
    layers: str  # path to them
    final_norm: str | None  # applied to all tokens after the last block
    prefix: int  # number of prefix tokens without registers
    pre_norm: str | None = None


@dataclass(frozen=True)
class Variant:
    """One model class: its backbone and what its head reads."""

    backbone: str  # attribute that holds the backbone; empty if the model is one
    head: Callable[..., Any]
    reads_patches: bool


BACKBONES = {
    "ViTModel": Backbone(VitBlock, "ViTLayer", "layers", "layernorm", 1),
    "DeiTModel": Backbone(VitBlock, "DeiTLayer", "layers", "layernorm", 2),
    "Dinov2Model": Backbone(Dinov2Block, "Dinov2Layer", "encoder.layer", "layernorm", 1),
    "Dinov2WithRegistersModel": Backbone(Dinov2Block, "Dinov2WithRegistersLayer", "encoder.layer", "layernorm", 1),
    "CLIPVisionModel": Backbone(ClipBlock, "CLIPEncoderLayer", "encoder.layers", None, 1, "pre_layrnorm"),
    "SiglipVisionModel": Backbone(ClipBlock, "SiglipEncoderLayer", "encoder.layers", "post_layernorm", 0),
}

VARIANTS = {
    "ViTModel": Variant("", heads.plain, False),
    "DeiTModel": Variant("", heads.plain, False),
    "Dinov2Model": Variant("", heads.plain, False),
    "Dinov2WithRegistersModel": Variant("", heads.plain, False),
    "CLIPVisionModel": Variant("", heads.plain, False),
    "SiglipVisionModel": Variant("", heads.plain, True),
    "ViTForImageClassification": Variant("vit", heads.class_token, False),
    "DeiTForImageClassification": Variant("deit", heads.class_token, False),
    "DeiTForImageClassificationWithTeacher": Variant("deit", heads.both_classifiers, False),
    "Dinov2ForImageClassification": Variant("dinov2", heads.class_and_mean, True),
    "Dinov2WithRegistersForImageClassification": Variant("dinov2_with_registers", heads.class_and_mean, True),
    "CLIPVisionModelWithProjection": Variant("vision_model", heads.projection, False),
    "CLIPForImageClassification": Variant("vision_model", heads.mean, True),
    "SiglipForImageClassification": Variant("vision_model", heads.mean, True),
}


class ReducedHf(Reduced):
    """The forward of a reduced transformers model."""

    def forward(
        self: Any,
        pixel_values: Tensor | None = None,
        labels: Tensor | None = None,
        interpolate_pos_encoding: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        **refused: Any,
    ) -> Any:
        if pixel_values is None:
            raise ValueError("You have to specify pixel_values.")
        _refuse_extras(self, refused)
        if output_hidden_states is None:
            output_hidden_states = self.config.output_hidden_states
        family = self._family
        options = {"interpolate_pos_encoding": interpolate_pos_encoding}
        encoded = family.encode(pixel_values, record=bool(output_hidden_states), **options)
        hidden = None
        if output_hidden_states:
            hidden = (encoded.embedded, *(output.stream.tokens for output in encoded.blocks))
        output = family.head(encoded, labels, hidden)
        wants_dict = self.config.return_dict if return_dict is None else return_dict
        return output if wants_dict else output.to_tuple()


def _refuse_extras(model: Any, extras: dict[str, Any]) -> None:
    """Raise ``ValueError`` for arguments that have no meaning for a reduced model, instead of ignoring them."""
    for name, value in extras.items():
        if value is not None and value is not False:
            raise ValueError(f"A reduced {type(model).__name__} takes no {name}. Call restore_(model) to use it.")
    if getattr(model.config, "output_attentions", False):
        raise ValueError("A reduced model has no attention maps to return. Set config.output_attentions=False.")


@register_family
class HfVit(HfFamily):
    """transformers' plain vision transformers, as backbones and with their heads."""

    title = "transformers ViT, DeiT, DINOv2, DINOv2 with registers, CLIP vision, SigLIP vision"
    mixin = ReducedHf
    embed_options = frozenset({"interpolate_pos_encoding"})

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self.variant = VARIANTS[class_name(model)]
        self.backbone = getattr(model, self.variant.backbone) if self.variant.backbone else model
        self.parts = BACKBONES[class_name(self.backbone)]

    @classmethod
    def known_classes(cls) -> tuple[str, ...]:
        return tuple(VARIANTS)

    @classmethod
    def matches(cls, model: nn.Module) -> bool:
        return class_name(model) in VARIANTS

    def check(self) -> None:
        name = class_name(self.model)
        if type(self.model).forward is not getattr(transformers, name).forward:
            raise UnsupportedModel(f"{type(self.model).__name__} overrides the forward of transformers' {name}.")
        known = self.parts.layer
        for i, block in enumerate(self.blocks):
            if type(block).__name__ != known:
                raise UnsupportedModel(f"Block {i} of {name} is a {type(block).__name__}. Supported: {known}.")

    @property
    def blocks(self) -> list[nn.Module]:
        return list(self.backbone.get_submodule(self.parts.layers))

    def pieces(self) -> list[BlockPieces]:
        return [self.parts.pieces(block) for block in self.blocks]

    @property
    def num_prefix(self) -> int:
        return self.parts.prefix + getattr(self.backbone.config, "num_register_tokens", 0)

    @property
    def has_cls(self) -> bool:
        return self.parts.prefix > 0

    @property
    def image_size(self) -> tuple[int, int, int]:
        config = self.backbone.config
        return config.num_channels, *pair(config.image_size)

    def grid_for(self, height: int, width: int) -> tuple[int, int]:
        rows, columns = pair(self.backbone.config.patch_size)
        return height // rows, width // columns

    def shape(self, grid: tuple[int, int] | None = None) -> ModelShape:
        per_image, per_token = heads.head_macs(self.model, self.backbone)
        return ModelShape(
            blocks=tuple(pieces.shape() for pieces in self.pieces()),
            grid=self.grid if grid is None else grid,
            num_prefix=self.num_prefix,
            has_cls=self.has_cls,
            stem_macs_per_patch=self._patch_convolution.weight.numel(),
            head_macs=per_image,
            head_macs_per_patch=per_token,
            head_reads_patches=self.variant.reads_patches,
        )

    def embed(self, images: Tensor, **options: Any) -> Tensor:
        backbone, pre_norm = self.backbone, self.parts.pre_norm
        images = images.to(self._patch_convolution.weight.dtype)
        if class_name(backbone).startswith("Dinov2"):
            tokens = backbone.embeddings(images)  # resamples its positions to any size
        else:
            interpolate = bool(options.get("interpolate_pos_encoding"))
            self._check_size(images, interpolate)
            tokens = backbone.embeddings(images, interpolate_pos_encoding=interpolate)
        return getattr(backbone, pre_norm)(tokens) if pre_norm else tokens

    def _check_size(self, images: Tensor, interpolate: bool) -> None:
        _, height, width = self.image_size
        if not interpolate and tuple(images.shape[-2:]) != (height, width):
            raise ValueError(
                f"The image is {images.shape[-2]} x {images.shape[-1]}, the model takes {height} x {width}. "
                "Resize it, or pass interpolate_pos_encoding=True."
            )

    def final_norm(self, tokens: Tensor) -> Tensor:
        name = self.parts.final_norm
        return tokens if name is None else getattr(self.backbone, name)(tokens)

    def head(self, encoded: Encoded, labels: Tensor | None = None, hidden: Any = None) -> Any:
        tokens = self.final_norm(encoded.stream.tokens)
        return self.variant.head(self.model, self.backbone, tokens, encoded.stream.size, labels, hidden)

    @property
    def recomputes(self) -> bool:
        return any(getattr(block, "gradient_checkpointing", False) for block in self.blocks)

    @property
    def _patch_convolution(self) -> nn.Conv2d:
        embeddings = self.backbone.embeddings
        if hasattr(embeddings, "patch_embedding"):  # CLIP and SigLIP
            return embeddings.patch_embedding
        return embeddings.patch_embeddings.projection
