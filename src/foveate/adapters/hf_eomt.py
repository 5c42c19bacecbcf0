"""transformers' EoMT, on DINOv2 and on DINOv3: a plain encoder whose last blocks also carry queries, and masks of them.

Tokens are reduced in the blocks before the queries join. From there on every patch has a token again: the masks that
queries predict between the last blocks, and attend by, are maps of all patches. The encoder's share is most of the
model: 20 of 24 blocks in EoMT-L.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate
from transformers.models.eomt.modeling_eomt import EomtForUniversalSegmentationOutput
from transformers.models.eomt_dinov3.modeling_eomt_dinov3 import EomtDinov3ForUniversalSegmentationOutput

from foveate.adapters.blocks import linear_macs
from foveate.adapters.hf_backbones import Backbone, Grid, pool_nothing, rotary
from foveate.adapters.hf_blocks import Dinov2Block, Dinov3Block
from foveate.adapters.hf_heads import plain
from foveate.adapters.hf_reduced import as_asked, refuse_extras
from foveate.adapters.hf_vit import HfVit, Variant
from foveate.adapters.ragged import does_nothing
from foveate.adapters.reduced import Reduced
from foveate.adapters.registry import register_family
from foveate.adapters.stream import Encoded
from foveate.costs import ModelShape, Output

OUTPUTS: dict[str, Any] = {
    "EomtForUniversalSegmentation": EomtForUniversalSegmentationOutput,
    "EomtDinov3ForUniversalSegmentation": EomtDinov3ForUniversalSegmentationOutput,
}


class EomtBlock(Dinov2Block):
    """EomtLayer."""

    out_proj, scale_name, dropout_name = "attention.out_proj", "scale", "dropout"


class ReducedEomt(Reduced):
    """The forward of a reduced EoMT."""

    def forward(
        self: Any,
        pixel_values: Tensor,
        mask_labels: list[Tensor] | None = None,
        class_labels: list[Tensor] | None = None,
        patch_offsets: list[Tensor] | None = None,
        return_dict: bool | None = None,
        **extras: Any,
    ) -> Any:
        labels = {"mask_labels": mask_labels, "class_labels": class_labels}
        if does_nothing(self.foveate):
            given = {"patch_offsets": patch_offsets, "return_dict": return_dict, **labels, **extras}
            return super().forward(pixel_values, **given)  # type: ignore[misc]
        refuse_extras(self, extras)
        found = self._family.head(self._family.encode(pixel_values), patch_offsets=patch_offsets, **labels)
        return as_asked(self, found, return_dict)


def embed_with_positions(backbone: Any, images: Tensor, interpolate: bool) -> Tensor:
    return backbone.embeddings(images)


def embed_without_positions(backbone: Any, images: Tensor, interpolate: bool) -> Tensor:
    return backbone.dropout(backbone.embeddings(images))


@register_family
class HfEomt(HfVit):
    """EoMT. Its blocks here are those before the queries join; the others belong to its head."""

    title = "transformers EoMT (on DINOv2 and DINOv3)"
    mixin = ReducedEomt
    embed_options = frozenset()
    branches_on = ("attn_mask_probs",)
    variants: ClassVar[Mapping[str, Variant]] = {name: Variant("", plain, True) for name in OUTPUTS}
    backbones: ClassVar[Mapping[str, Backbone]] = {
        "EomtForUniversalSegmentation": Backbone(
            EomtBlock, "EomtLayer", "layers", None, 1, pool_nothing, embed_with_positions
        ),
        "EomtDinov3ForUniversalSegmentation": Backbone(
            Dinov3Block, "EomtDinov3Layer", "layers", None, 1, pool_nothing, embed_without_positions, rotary
        ),
    }

    @property
    def output(self) -> Output | None:  # type: ignore[override]
        return "grid"

    @property
    def grid_only(self) -> bool:  # type: ignore[override]
        return True

    @property
    def blocks(self) -> list[nn.Module]:
        return list(self.model.layers)[: -self.model.config.num_blocks or None]

    @property
    def query_blocks(self) -> list[nn.Module]:
        """The blocks that carry queries."""
        return list(self.model.layers)[len(self.blocks) :]

    def grid_for(self, height: int, width: int) -> Grid:
        if (height, width) != self.image_size[1:]:
            raise ValueError(
                f"{type(self.model).__name__} takes images of {self.image_size[1]} x {self.image_size[2]}, "
                f"got {height} x {width}. Resize or cut them, as its image processor does."
            )
        return self.model.grid_size

    def embed(self, images: Tensor, **options: Any) -> Tensor:
        self.grid_for(*images.shape[-2:])
        return super().embed(images, **options)

    def head(self, encoded: Encoded, **given: Any) -> Any:
        """The blocks with queries, masks and classes; ``given`` are labels and ``patch_offsets``."""
        model, tokens, mask = self.model, encoded.stream.tokens, None
        tokens = torch.cat([model.query.weight.expand(tokens.shape[0], -1, -1), tokens], dim=1)
        positions = None if encoded.stream.positions is None else encoded.stream.positions.rows(0).chunk(2, dim=-1)
        options = {} if positions is None else {"position_embeddings": positions[::-1]}  # cosines first
        found = []
        for block, chance in zip(self.query_blocks, model.attn_mask_probs, strict=True):
            if model.training or chance > 0:
                found.append(model.predict(model.layernorm(tokens)))
                mask = self._attention_mask(found[-1][0], tokens, chance)
            tokens = block(tokens, mask, **options)
        tokens = model.layernorm(tokens)
        found.append(model.predict(tokens))
        masks, classes = found[-1]
        return OUTPUTS[type(model).__name__](
            loss=self._loss(found, given.get("mask_labels"), given.get("class_labels")),
            masks_queries_logits=masks,
            class_queries_logits=classes,
            last_hidden_state=tokens,
            patch_offsets=given.get("patch_offsets"),
        )

    def _attention_mask(self, masks: Tensor, tokens: Tensor, chance: Tensor) -> Tensor:
        """Queries attend to the patches that their own mask shows; some, by chance, to all."""
        model, (batch, length) = self.model, tokens.shape[:2]
        queries, start = model.config.num_queries, model.config.num_queries + self.num_prefix
        seen = torch.ones(batch, length, length, dtype=torch.bool, device=tokens.device)
        seen[:, :queries, start:] = interpolate(masks, size=model.grid_size, mode="bilinear").flatten(2) > 0
        seen = model._disable_attention_mask(
            seen, prob=chance, num_query_tokens=queries, encoder_start_tokens=start, device=tokens.device
        )
        seen = seen[:, None].expand(-1, model.config.num_attention_heads, -1, -1)
        # a visible pair adds 1 and not 0, as in the library: the same to a softmax, and equal to the last bit
        return seen.to(tokens.dtype).masked_fill(~seen, -1e9 if tokens.dtype != torch.float16 else -6e4)

    def _loss(self, found: list[tuple[Tensor, Tensor]], masks: Any, classes: Any) -> Any:
        if masks is None or classes is None:
            return None
        model, loss = self.model, 0.0
        for mask_logits, class_logits in found:
            parts = model.get_loss_dict(mask_logits, class_logits, masks, classes, auxiliary_predictions=None)
            loss = loss + model.get_loss(parts)
        return loss

    def shape(self, grid: Grid | None = None) -> ModelShape:
        return self._shape(grid, self._head_macs(), 0)

    def _head_macs(self) -> int:
        """MACs of the blocks with queries, and of every prediction between and behind them."""
        model, config = self.model, self.model.config
        patches = model.grid_size[0] * model.grid_size[1]
        length, total = config.num_queries + self.num_prefix + patches, 0
        for shape in (self.parts.pieces(block).shape() for block in self.query_blocks):
            per_token = shape.query_macs + shape.key_value_macs + shape.proj_macs + shape.mlp_macs
            total += length * (per_token + 2 * length * shape.heads * shape.head_dim)
        chances = model.attn_mask_probs
        masked = len(chances) if chances.is_meta else int((chances > 0).sum())
        return total + (1 + masked) * self._prediction_macs(patches)

    def _prediction_macs(self, patches: int) -> int:
        model, queries = self.model, self.model.config.num_queries
        total = queries * linear_macs(model.class_predictor, model.mask_head)
        for layer in model.upscale_block.block:
            total += patches * layer.conv1.weight.numel()
            patches *= 4
            total += patches * layer.conv2.weight.numel()
        return total + queries * model.config.hidden_size * patches

    def image_embedding(self, images: Tensor) -> Tensor:
        raise ValueError(f"{type(self.model).__name__} gives no vector for an image, so it cannot be compared.")
