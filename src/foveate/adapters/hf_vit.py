"""transformers: ViT, DeiT, DINOv2 (with registers), CLIP vision and SigLIP vision, with their classifiers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import transformers
from torch import Tensor, nn

from foveate.adapters import hf_heads as heads
from foveate.adapters.base import Adapter, BlockOps, Reduced, UnsupportedModel
from foveate.adapters.engine import encode
from foveate.adapters.hf_blocks import ClipBlock, Dinov2Block, HfBlock, VitBlock
from foveate.cost import ModelShape


@dataclass(frozen=True)
class Backbone:
    """One encoder class: where its parts are."""

    ops: HfBlock
    layer: str  # class name of its blocks
    layers: str  # path to them
    final_norm: str | None  # applied to all tokens after the last block
    prefix: int  # prefix tokens, registers not counted
    pre_norm: str | None = None


@dataclass(frozen=True)
class Variant:
    """One model class: its backbone and what its head reads."""

    backbone: str  # attribute that holds the backbone; "" where the model is one
    head: Callable[..., Any]
    reads_patches: bool


BACKBONES = {
    "ViTModel": Backbone(VitBlock(), "ViTLayer", "layers", "layernorm", 1),
    "DeiTModel": Backbone(VitBlock(), "DeiTLayer", "layers", "layernorm", 2),
    "Dinov2Model": Backbone(Dinov2Block(), "Dinov2Layer", "encoder.layer", "layernorm", 1),
    "Dinov2WithRegistersModel": Backbone(Dinov2Block(), "Dinov2WithRegistersLayer", "encoder.layer", "layernorm", 1),
    "CLIPVisionModel": Backbone(ClipBlock(), "CLIPEncoderLayer", "encoder.layers", None, 1, "pre_layrnorm"),
    "SiglipVisionModel": Backbone(ClipBlock(), "SiglipEncoderLayer", "encoder.layers", "post_layernorm", 0),
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
    """What a reduced transformers model does instead of its own forward."""

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
        options = {"interpolate_pos_encoding": interpolate_pos_encoding}
        encoded = encode(HF, self, pixel_values, record=bool(output_hidden_states), **options)
        hidden = None
        if output_hidden_states:
            hidden = (encoded.embedded, *(output.stream.tokens for output in encoded.blocks))
        tokens = HF.final_norm(self, encoded.stream.tokens)
        variant = VARIANTS[_class_name(self)]
        output = variant.head(self, _backbone(self), tokens, encoded.stream.size, labels, hidden)
        wants_dict = self.config.return_dict if return_dict is None else return_dict
        return output if wants_dict else output.to_tuple()


def _refuse_extras(model: Any, extras: dict[str, Any]) -> None:
    """Arguments that have no meaning once tokens are reduced are refused, not ignored."""
    for name, value in extras.items():
        if value is not None and value is not False:
            raise ValueError(f"A reduced {type(model).__name__} takes no {name}; restore_(model) to use it.")
    if getattr(model.config, "output_attentions", False):
        raise ValueError("A reduced model has no attention maps to return; set config.output_attentions=False.")


class HfAdapter(Adapter):
    family = "transformers ViT, DeiT, DINOv2, DINOv2 with registers, CLIP vision, SigLIP vision"
    library = "transformers"
    mixin = ReducedHf

    def matches(self, model: nn.Module) -> bool:
        return _class_name(model) in VARIANTS

    def check(self, model: Any) -> None:
        name = _class_name(model)
        if type(model).forward is not getattr(transformers, name).forward:
            raise UnsupportedModel(f"{type(model).__name__} overrides the forward of transformers' {name}.")
        known = _parts(model).layer
        for i, block in enumerate(self.blocks(model)):
            if type(block).__name__ != known:
                raise UnsupportedModel(f"Block {i} of {name} is a {type(block).__name__}; {known} is known.")

    def ops(self, model: Any) -> BlockOps:
        return _parts(model).ops

    def num_prefix(self, model: Any) -> int:
        return _parts(model).prefix + getattr(_backbone(model).config, "num_register_tokens", 0)

    def has_cls(self, model: Any) -> bool:
        return _parts(model).prefix > 0

    def blocks(self, model: Any) -> list[nn.Module]:
        return list(_backbone(model).get_submodule(_parts(model).layers))

    def grid(self, model: Any, height: int, width: int) -> tuple[int, int]:
        rows, columns = _patch_size(model)
        return height // rows, width // columns

    def image_size(self, model: Any) -> tuple[int, int, int]:
        config = _backbone(model).config
        return config.num_channels, *_pair(config.image_size)

    def shape(self, model: Any, grid: tuple[int, int]) -> ModelShape:
        backbone, parts = _backbone(model), _parts(model)
        per_image, per_token = heads.head_macs(model, backbone)
        return ModelShape(
            blocks=tuple(parts.ops.shape(block) for block in self.blocks(model)),
            grid=grid,
            num_prefix=self.num_prefix(model),
            has_cls=self.has_cls(model),
            stem_macs_per_patch=_patch_convolution(backbone).weight.numel(),
            head_macs=per_image,
            head_macs_per_patch=per_token,
            head_reads_patches=VARIANTS[_class_name(model)].reads_patches,
        )

    def embed(self, model: Any, images: Tensor, **options: Any) -> Tensor:
        backbone, parts = _backbone(model), _parts(model)
        images = images.to(_patch_convolution(backbone).weight.dtype)
        if _class_name(backbone).startswith("Dinov2"):
            tokens = backbone.embeddings(images)  # resamples its positions for any size
        else:
            interpolate = bool(options.get("interpolate_pos_encoding"))
            self._check_size(model, images, interpolate)
            tokens = backbone.embeddings(images, interpolate_pos_encoding=interpolate)
        return getattr(backbone, parts.pre_norm)(tokens) if parts.pre_norm else tokens

    def _check_size(self, model: Any, images: Tensor, interpolate: bool) -> None:
        _, height, width = self.image_size(model)
        if not interpolate and tuple(images.shape[-2:]) != (height, width):
            raise ValueError(
                f"The image is {images.shape[-2]} x {images.shape[-1]}, the model takes {height} x {width}. "
                "Resize it, or pass interpolate_pos_encoding=True."
            )

    def final_norm(self, model: Any, tokens: Tensor) -> Tensor:
        name = _parts(model).final_norm
        return tokens if name is None else getattr(_backbone(model), name)(tokens)

    def checkpointing(self, model: Any) -> bool:
        return any(getattr(block, "gradient_checkpointing", False) for block in self.blocks(model))

    def recipe(self, model: Any) -> dict[str, Any] | None:
        attention = model.config._attn_implementation
        return {
            "library": "transformers",
            "class": _class_name(model),
            "config": model.config.to_dict(),
            "attention": attention if attention in ("sdpa", "eager") else "sdpa",
        }

    def rebuild(self, recipe: dict[str, Any]) -> nn.Module:
        name = recipe["class"]
        if name not in VARIANTS:
            raise UnsupportedModel(f"The saved model is a {name!r}, which foveate does not know.")
        cls = getattr(transformers, name)
        config = cls.config_class.from_dict(recipe["config"])
        return cls._from_config(config, attn_implementation=recipe["attention"])


def _class_name(model: Any) -> str:
    """The name of the transformers class that ``model`` is, or extends; "" for anything else."""
    for cls in type(model).__mro__:
        if cls.__module__.startswith("transformers.models."):
            return cls.__name__
    return ""


def _backbone(model: Any) -> Any:
    name = VARIANTS[_class_name(model)].backbone
    return getattr(model, name) if name else model


def _parts(model: Any) -> Backbone:
    return BACKBONES[_class_name(_backbone(model))]


def _patch_convolution(backbone: Any) -> nn.Conv2d:
    embeddings = backbone.embeddings
    if hasattr(embeddings, "patch_embedding"):  # CLIP and SigLIP
        return embeddings.patch_embedding
    return embeddings.patch_embeddings.projection


def _patch_size(model: Any) -> tuple[int, int]:
    return _pair(_backbone(model).config.patch_size)


def _pair(value: Any) -> tuple[int, int]:
    return (int(value), int(value)) if isinstance(value, int) else (int(value[0]), int(value[1]))


HF = HfAdapter()
ReducedHf._foveate_adapter = HF
