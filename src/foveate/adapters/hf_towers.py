"""transformers' image towers for batches whose images differ in size: SigLIP 2, Pixtral, Idefics 3 and Qwen3-VL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutputWithPooling

from foveate.adapters import hf_heads as heads
from foveate.adapters.hf_backbones import Backbone, Grid, pool_nothing, pool_siglip
from foveate.adapters.hf_blocks import ClipBlock, PixtralBlock
from foveate.adapters.hf_reduced import as_asked, refuse_extras
from foveate.adapters.hf_vit import HfVit, Variant
from foveate.adapters.positions import PositionSource
from foveate.adapters.ragged import Group, does_nothing, encode_by_size, in_order, padded
from foveate.adapters.reduced import Reduced
from foveate.adapters.registry import register_family
from foveate.adapters.rotary import RotaryTable

Sizes = Sequence[tuple[int, int]]


class ReducedTower(Reduced):
    """The forward of a reduced tower: the batch is taken apart into images, and put together again."""

    def _run(self: Any, images: Sequence[Tensor], places: Sequence[Any], length: int, extras: dict[str, Any]) -> Any:
        """The output for images, padded to ``length`` tokens, or packed if it is 0."""
        shows = bool(extras.pop("output_hidden_states", self.config.output_hidden_states))
        return_dict = extras.pop("return_dict", None)
        refuse_extras(self, extras)
        family = self._family
        groups = encode_by_size(family, images, record=shows or family.records)
        tokens = [family.final_norm(group.encoded.stream.tokens) for group in groups]
        found = family.assembled(groups, tokens, places, length)
        if shows:
            found["hidden_states"] = tuple(
                family.together(in_order(groups, [group.hidden[level] for group in groups]), places, length)
                for level in range(len(groups[0].hidden))
            )
        return as_asked(self, family.output_class(**found), return_dict)


class HfTower(HfVit):
    """A tower that reads images of any size. A subclass says how its batch is laid out."""

    embed_options = frozenset()
    output_class: ClassVar[type] = BaseModelOutputWithPooling
    records = False
    """Whether tokens after each block are needed."""

    def together(self, tokens: Sequence[Tensor], places: Sequence[Any], length: int) -> Tensor:
        """The tokens of all images, as the tower lays them out."""
        return padded(tokens, places, length) if length else torch.cat(list(tokens)).unsqueeze(0)

    def assembled(
        self, groups: Sequence[Group], tokens: Sequence[Tensor], places: Sequence[Any], length: int
    ) -> dict[str, Any]:
        """The fields of the output."""
        found: dict[str, Any] = {"last_hidden_state": self.together(in_order(groups, tokens), places, length)}
        pool, pairs = self.parts.pool, zip(groups, tokens, strict=True)
        if pool is not pool_nothing:
            pooled: list[Any] = [pool(self.backbone, one, group.encoded.stream.size) for group, one in pairs]
            found["pooler_output"] = None if pooled[0] is None else torch.stack(in_order(groups, pooled))
        return found


def one_each(images: Tensor, sizes: Sequence[Any], what: str) -> None:
    """Raise ``ValueError`` unless there is a size for every image."""
    if len(images) != len(sizes):
        raise ValueError(f"The batch has {len(images)} images and {len(sizes)} {what}; one of each is needed.")


def visible(mask: Tensor, sizes: Sizes, what: str) -> None:
    """Raise ``ValueError`` unless ``mask`` (B, N) shows as many patches of each image as its size has."""
    for number, (shown, (rows, columns)) in enumerate(zip(mask.flatten(1).sum(dim=1).tolist(), sizes, strict=True)):
        if not shown:
            raise ValueError(f"Image {number} of the batch has no visible patch: its {what} is all zero.")
        if shown != rows * columns:
            raise ValueError(
                f"Image {number} of the batch has {rows} x {columns} patches, but its {what} shows {int(shown)}. "
                "A reduced model takes whole rectangles of patches."
            )


# -- SigLIP 2: patches, padded at the end


class ReducedSiglip2(ReducedTower):
    def forward(
        self: Any, pixel_values: Tensor, pixel_attention_mask: Tensor, spatial_shapes: Tensor, **extras: Any
    ) -> Any:
        if does_nothing(self.foveate):
            return super().forward(pixel_values, pixel_attention_mask, spatial_shapes, **extras)  # type: ignore[misc]
        sizes = [(int(rows), int(columns)) for rows, columns in spatial_shapes.tolist()]
        one_each(pixel_values, sizes, "spatial_shapes")
        if pixel_attention_mask is not None:
            visible(pixel_attention_mask, sizes, "pixel_attention_mask")
        patch = self.config.patch_size
        images = []
        for patches, (rows, columns) in zip(pixel_values, sizes, strict=True):
            folded = patches[: rows * columns].view(rows, columns, patch, patch, -1)
            images.append(folded.permute(4, 0, 2, 1, 3).flatten(3).flatten(1, 2))
        length = pixel_values.shape[1] if self.foveate.plan.output != "tokens" else 1
        return self._run(images, [None] * len(images), length, extras)


def embed_siglip2(backbone: Any, images: Tensor, interpolate: bool) -> Tensor:
    patch = backbone.config.patch_size
    patches = images.unfold(2, patch, patch).unfold(3, patch, patch)  # (B, C, rows, columns, patch, patch)
    shapes = torch.tensor([patches.shape[2:4]] * len(images), device=images.device)
    return backbone.embeddings(patches.permute(0, 2, 3, 4, 5, 1).flatten(3).flatten(1, 2), shapes)


@register_family
class HfSiglip2(HfTower):
    """SigLIP 2's tower."""

    title = "transformers SigLIP 2 vision"
    mixin = ReducedSiglip2
    variants: ClassVar[Mapping[str, Variant]] = {"Siglip2VisionModel": Variant("", heads.plain, True)}
    backbones: ClassVar[Mapping[str, Backbone]] = {
        "Siglip2VisionModel": Backbone(
            ClipBlock, "Siglip2EncoderLayer", "encoder.layers", "post_layernorm", 0, pool_siglip, embed_siglip2
        )
    }

    @property
    def image_size(self) -> tuple[int, int, int]:
        config = self.model.config
        side = round(config.num_patches**0.5) * config.patch_size
        return config.num_channels, side, side


# -- Idefics 3 and SmolVLM: images, padded at the right and below


class ReducedIdefics3(ReducedTower):
    def forward(self: Any, pixel_values: Tensor, patch_attention_mask: Tensor | None = None, **extras: Any) -> Any:
        if does_nothing(self.foveate):
            return super().forward(pixel_values, patch_attention_mask, **extras)  # type: ignore[misc]
        patch = self.config.patch_size
        whole = (len(pixel_values), pixel_values.shape[2] // patch, pixel_values.shape[3] // patch)
        mask = torch.ones(whole) if patch_attention_mask is None else patch_attention_mask
        rows, columns = mask[:, :, 0].sum(dim=1).long().tolist(), mask[:, 0].sum(dim=1).long().tolist()
        sizes = list(zip(rows, columns, strict=True))
        visible(mask, sizes, "patch_attention_mask")
        images = [image[:, : r * patch, : c * patch] for image, (r, c) in zip(pixel_values, sizes, strict=True)]
        places = [one.flatten().bool().nonzero().flatten().to(pixel_values.device) for one in mask]
        length = whole[1] * whole[2] if self.foveate.plan.output != "tokens" else 1
        return self._run(images, places, length, extras)


def embed_idefics3(backbone: Any, images: Tensor, interpolate: bool) -> Tensor:
    patch = backbone.config.patch_size
    shape = (len(images), images.shape[2] // patch, images.shape[3] // patch)
    return backbone.embeddings(images, torch.ones(shape, dtype=torch.bool, device=images.device))


def _idefics3(layer: str) -> Backbone:
    return Backbone(ClipBlock, layer, "encoder.layers", "post_layernorm", 0, pool_nothing, embed_idefics3)


@register_family
class HfIdefics3(HfTower):
    """The tower of Idefics 3 and SmolVLM."""

    title = "transformers Idefics 3 and SmolVLM vision"
    mixin = ReducedIdefics3
    variants: ClassVar[Mapping[str, Variant]] = {
        "Idefics3VisionTransformer": Variant("", heads.plain, True),
        "SmolVLMVisionTransformer": Variant("", heads.plain, True),
    }
    backbones: ClassVar[Mapping[str, Backbone]] = {
        "Idefics3VisionTransformer": _idefics3("Idefics3EncoderLayer"),
        "SmolVLMVisionTransformer": _idefics3("SmolVLMEncoderLayer"),
    }


# -- Pixtral: images, packed into one sequence


class ReducedPixtral(ReducedTower):
    def forward(self: Any, pixel_values: Tensor, image_sizes: Any = None, **extras: Any) -> Any:
        if does_nothing(self.foveate):
            return super().forward(pixel_values, image_sizes, **extras)  # type: ignore[misc]
        whole = pixel_values.shape[2:]
        sizes = [tuple(whole)] * len(pixel_values) if image_sizes is None else [tuple(map(int, s)) for s in image_sizes]
        one_each(pixel_values, sizes, "image_sizes")
        patch = self.config.patch_size
        images = [
            image[:, : height // patch * patch, : width // patch * patch]
            for image, (height, width) in zip(pixel_values, sizes, strict=True)
        ]
        return self._run(images, [None] * len(images), 0, extras)


def embed_pixtral(backbone: Any, images: Tensor, interpolate: bool) -> Tensor:
    return backbone.ln_pre(backbone.patch_conv(images).flatten(2).transpose(1, 2))


def axial(rotary: nn.Module, like: Tensor, grid: Grid) -> PositionSource:
    """The table of a rotary embedding of rows and columns."""
    rows, columns = torch.meshgrid(*(torch.arange(n, device=like.device) for n in grid), indexing="ij")
    cosine, sine = rotary(like, torch.stack([rows.flatten(), columns.flatten()], dim=-1))
    return RotaryTable(grid, torch.cat([sine, cosine], dim=-1))


def positions_pixtral(backbone: Any, images: Tensor, grid: Grid) -> PositionSource:
    return axial(backbone.patch_positional_embedding, images, grid)


@register_family
class HfPixtral(HfTower):
    """Pixtral's tower."""

    title = "transformers Pixtral vision"
    mixin = ReducedPixtral
    positions_between_patches = True
    variants: ClassVar[Mapping[str, Variant]] = {"PixtralVisionModel": Variant("", heads.plain, True)}
    backbones: ClassVar[Mapping[str, Backbone]] = {
        "PixtralVisionModel": Backbone(
            PixtralBlock,
            "PixtralAttentionLayer",
            "transformer.layers",
            None,
            0,
            pool_nothing,
            embed_pixtral,
            positions_pixtral,
        )
    }
