"""transformers' plain vision transformers, with their classifiers and as backbones of other models."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn

from foveate.adapters import hf_heads as heads
from foveate.adapters.blocks import BlockPieces
from foveate.adapters.family import UnsupportedModel
from foveate.adapters.hf_backbones import BACKBONES, Backbone, patch_layer
from foveate.adapters.hf_family import HfFamily, class_name, library_class, pair
from foveate.adapters.hf_reduced import ReducedHf
from foveate.adapters.pooling import mean_of_patches
from foveate.adapters.positions import PositionSource
from foveate.adapters.reduced import Reduced
from foveate.adapters.registry import register_family
from foveate.adapters.stream import Encoded
from foveate.costs import ModelShape, Output


@dataclass(frozen=True)
class Variant:
    """One model class: its backbone and what its head reads."""

    backbone: str  # attribute that holds the backbone; empty if the model is one
    head: Callable[[heads.Final], Any]
    reads_patches: bool | Callable[[Any], bool] = False  # or from the model's config
    maps: bool = False  # whether it puts out maps of hidden states


def _pools_mean(config: Any) -> bool:
    return bool(config.use_mean_pooling)


VARIANTS = {
    "ViTModel": Variant("", heads.plain),
    "DeiTModel": Variant("", heads.plain),
    "IJepaModel": Variant("", heads.plain, True),
    "ViTMSNModel": Variant("", heads.plain),
    "ViTMAEModel": Variant("", heads.unmasked),
    "Dinov2Model": Variant("", heads.plain),
    "Dinov2WithRegistersModel": Variant("", heads.plain),
    "DINOv3ViTModel": Variant("", heads.plain),
    "CLIPVisionModel": Variant("", heads.plain),
    "MetaClip2VisionModel": Variant("", heads.plain),
    "SiglipVisionModel": Variant("", heads.plain, True),
    "BeitModel": Variant("", heads.plain, _pools_mean),
    "Data2VecVisionModel": Variant("", heads.plain, _pools_mean),
    "InternVLVisionModel": Variant("", heads.plain, True),
    "DPTModel": Variant("", heads.dpt, True),
    "ViTForImageClassification": Variant("vit", heads.class_token),
    "DeiTForImageClassification": Variant("deit", heads.class_token),
    "DeiTForImageClassificationWithTeacher": Variant("deit", heads.both_classifiers),
    "IJepaForImageClassification": Variant("ijepa", heads.mean, True),
    "ViTMSNForImageClassification": Variant("vit", heads.class_token),
    "Dinov2ForImageClassification": Variant("dinov2", heads.class_and_mean, True),
    "Dinov2WithRegistersForImageClassification": Variant("dinov2_with_registers", heads.class_and_mean, True),
    "CLIPVisionModelWithProjection": Variant("vision_model", heads.projection),
    "CLIPForImageClassification": Variant("vision_model", heads.mean, True),
    "MetaClip2VisionModelWithProjection": Variant("vision_model", heads.projection),
    "MetaClip2ForImageClassification": Variant("vision_model", heads.mean, True),
    "SiglipForImageClassification": Variant("vision_model", heads.mean, True),
    "BeitForImageClassification": Variant("beit", heads.pooled, _pools_mean),
    "Data2VecVisionForImageClassification": Variant("data2vec_vision", heads.pooled, _pools_mean),
    "Dinov2Backbone": Variant("", heads.dinov2_maps, True, maps=True),
    "Dinov2WithRegistersBackbone": Variant("", heads.dinov2_maps, True, maps=True),
    "DINOv3ViTBackbone": Variant("", heads.dinov3_maps, True, maps=True),
    "VitPoseBackbone": Variant("", heads.vitpose_maps, True, maps=True),
}


@register_family
class HfVit(HfFamily):
    """transformers' plain vision transformers, as backbones and with their heads."""

    title = (
        "transformers ViT, DeiT, DINOv2 (with registers), DINOv3 ViT, CLIP and MetaCLIP 2 vision, SigLIP vision, BEiT, "
        "Data2Vec vision, I-JEPA, ViT-MSN, ViT-MAE without masks, InternVL vision, DPT, ViTPose"
    )
    mixin: ClassVar[type[Reduced] | None] = ReducedHf
    embed_options = frozenset({"interpolate_pos_encoding"})
    variants: ClassVar[Mapping[str, Variant]] = VARIANTS
    backbones: ClassVar[Mapping[str, Backbone]] = BACKBONES

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self.variant = self.variants[class_name(model)]
        self.backbone = getattr(model, self.variant.backbone) if self.variant.backbone else model
        self.parts = self.backbones[class_name(self.backbone)]

    @classmethod
    def known_classes(cls) -> tuple[str, ...]:
        return tuple(cls.variants)

    @classmethod
    def matches(cls, model: nn.Module) -> bool:
        return class_name(model) in cls.variants

    def check(self) -> None:
        name = class_name(self.model)
        if type(self.model).forward is not library_class(self.model).forward:
            raise UnsupportedModel(f"{type(self.model).__name__} overrides the forward of transformers' {name}.")
        known = self.parts.layer
        for i, block in enumerate(self.blocks):
            if type(block).__name__ != known:
                raise UnsupportedModel(f"Block {i} of {name} is a {type(block).__name__}. Supported: {known}.")
        reason = self.parts.refuses(self.backbone)
        if reason is not None:
            raise UnsupportedModel(reason)

    @property
    def output(self) -> Output | None:  # type: ignore[override]
        return "grid" if self.variant.maps else None

    @property
    def grid_only(self) -> bool:  # type: ignore[override]
        return self.variant.maps

    @property
    def last_read(self) -> int | None:
        if not self.variant.maps:
            return None
        read = [index for index, name in enumerate(self.model.stage_names) if name in self.model.out_features]
        return read[-1] - 1 if 0 < read[-1] < len(self.blocks) else None

    @property
    def positions_between_patches(self) -> bool:  # type: ignore[override]
        return bool(self.parts.rotary)

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

    @property
    def reads_patches(self) -> bool:
        reads = self.variant.reads_patches
        return reads if isinstance(reads, bool) else reads(self.model.config)

    def shape(self, grid: tuple[int, int] | None = None) -> ModelShape:
        return self._shape(grid, *heads.head_macs(self.model, self.backbone, self.parts.pool))

    def _shape(self, grid: tuple[int, int] | None, per_image: int, per_token: int) -> ModelShape:
        return ModelShape(
            blocks=tuple(pieces.shape() for pieces in self.pieces()),
            grid=self.grid if grid is None else grid,
            num_prefix=self.num_prefix,
            has_cls=self.has_cls,
            stem_macs_per_patch=patch_layer(self.backbone).weight.numel(),  # type: ignore[operator]
            head_macs=per_image,
            head_macs_per_patch=per_token,
            head_reads_patches=self.reads_patches,
        )

    def embed(self, images: Tensor, **options: Any) -> Tensor:
        interpolate = bool(options.get("interpolate_pos_encoding"))
        if self.parts.one_size:
            self._check_size(images, interpolate)
        return self.parts.embed(self.backbone, self._as_weights(images), interpolate)

    def position_source(self, images: Tensor, **options: Any) -> PositionSource | None:
        if self.parts.positions is None:
            return None
        return self.parts.positions(self.backbone, self._as_weights(images), self.grid_for(*images.shape[-2:]))

    def _as_weights(self, images: Tensor) -> Tensor:
        return images.to(patch_layer(self.backbone).weight.dtype)  # type: ignore[arg-type]

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

    def head(self, encoded: Encoded, **given: Any) -> Any:
        """The model's output; ``given`` are further fields of ``Final``."""
        tokens, size = self.final_norm(encoded.stream.tokens), encoded.stream.size
        given = {"grid": self.grid} | given
        final = heads.Final(self.model, self.backbone, tokens, size, self.num_prefix, pool=self.parts.pool, **given)
        return self.variant.head(final)

    def image_embedding(self, images: Tensor) -> Tensor:
        """What the model calls its embedding or pools; else its class token, or the mean over patches."""
        output = self.model(images)
        for name in ("image_embeds", "pooler_output"):
            if getattr(output, name, None) is not None:
                return getattr(output, name)
        encoded = self.encode(images)
        tokens = self.final_norm(encoded.stream.tokens)
        return tokens[:, 0] if self.has_cls else mean_of_patches(tokens, encoded.stream.size)

    @property
    def recomputes(self) -> bool:
        return any(getattr(block, "gradient_checkpointing", False) for block in self.blocks)
