"""The kinds of transformer block that transformers' vision models are made of."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor, nn
from torch.nn.functional import linear

from foveate.adapters.blocks import BlockPieces, Heads, linear_macs
from foveate.adapters.pair_bias import BiasRows, bias_of_pairs
from foveate.adapters.rotary import rotated
from foveate.costs import BlockShape


class HfBlock(BlockPieces):
    """What all kinds share: separate q, k and v projections. Subclasses name their parts."""

    norm1: ClassVar[str]
    norm2: ClassVar[str]
    attention: ClassVar[str] = "attention"
    projections: ClassVar[tuple[str, str, str]] = ("q_proj", "k_proj", "v_proj")
    out_proj: ClassVar[str] = "attention.o_proj"
    scale_name: ClassVar[str] = "scaling"
    dropout_name: ClassVar[str] = "attention_dropout"
    head_dim_name: ClassVar[str] = "head_dim"
    feed_forward: ClassVar[tuple[str, ...]] = ("mlp",)

    @property
    def attn(self) -> Any:
        return self.block.get_submodule(self.attention)

    @property
    def head_dim(self) -> int:
        return int(getattr(self.attn, self.head_dim_name))

    def whole(self, x: Tensor, rows: Any = None) -> Tensor:
        # not the layer's __call__, which would checkpoint a second time inside the engine's checkpoint
        return nn.Module.__call__(self.block, x, None)

    def normed(self, x: Tensor) -> Tensor:
        return getattr(self.block, self.norm1)(x)

    def queries(self, normed: Tensor) -> Tensor:
        return self._heads(0, normed)

    def keys_values(self, normed: Tensor) -> tuple[Tensor, Tensor]:
        return self._heads(1, normed), self._heads(2, normed)

    def _heads(self, which: int, normed: Tensor) -> Tensor:
        b, n, _ = normed.shape
        return self.projected(which, normed).view(b, n, -1, self.head_dim).transpose(1, 2)

    def projected(self, which: int, normed: Tensor) -> Tensor:
        """Queries (0), keys (1) or values (2) before they are split into heads."""
        return getattr(self.attn, self.projections[which])(normed)

    def after_attention(self, attended: Tensor, normed: Tensor) -> Tensor:
        return self.scaled(self.projected_out(attended.transpose(1, 2).flatten(2), normed), 1)

    def projected_out(self, attended: Tensor, normed: Tensor) -> Tensor:
        """The output projection of what was attended to, heads side by side."""
        return self.block.get_submodule(self.out_proj)(attended)

    def mlp(self, x: Tensor) -> Tensor:
        update = getattr(self.block, self.norm2)(x)
        for name in self.feed_forward:
            update = getattr(self.block, name)(update)
        return x + self.scaled(update, 2)

    def scaled(self, update: Tensor, half: int) -> Tensor:
        """The update that the block adds to the residual stream after attention (1) or the MLP (2)."""
        return update

    @property
    def scale(self) -> float:
        return float(getattr(self.attn, self.scale_name))

    @property
    def attention_dropout(self) -> float:
        return float(getattr(self.attn, self.dropout_name)) if self.attn.training else 0.0

    def shape(self) -> BlockShape:
        query, key, value = (getattr(self.attn, name) for name in self.projections)
        return BlockShape(
            dim=query.in_features,
            heads=query.out_features // self.head_dim,
            head_dim=self.head_dim,
            query_macs=linear_macs(query),
            key_value_macs=linear_macs(key, value),
            proj_macs=linear_macs(self.block.get_submodule(self.out_proj)),
            mlp_macs=linear_macs(*(getattr(self.block, name) for name in self.feed_forward)),
        )


class VitBlock(HfBlock):
    """ViTLayer and DeiTLayer, and those of I-JEPA, ViT-MSN and ViT-MAE."""

    norm1, norm2 = "layernorm_before", "layernorm_after"

    def scaled(self, update: Tensor, half: int) -> Tensor:
        return self.block.dropout(update)


class Dinov2Block(HfBlock):
    """Dinov2Layer, with or without registers: LayerScale and stochastic depth."""

    norm1, norm2 = "norm1", "norm2"

    def scaled(self, update: Tensor, half: int) -> Tensor:
        block = self.block
        return block.drop_path((block.layer_scale1 if half == 1 else block.layer_scale2)(update))


class Dinov3Block(Dinov2Block):
    """DINOv3ViTLayer: rotary positions on patch tokens."""

    dropout_name = "dropout"

    def whole(self, x: Tensor, rows: Any = None) -> Tensor:
        sine, cosine = rows.chunk(2, dim=-1)
        return nn.Module.__call__(self.block, x, None, (cosine, sine))

    def placed(self, heads: Heads, query_rows: Any, key_rows: Any) -> tuple[Heads, Tensor | None]:
        return rotated(heads, query_rows, key_rows, heads.q.shape[2] - query_rows.shape[-2], half=True), None


class ClipBlock(HfBlock):
    """CLIPEncoderLayer and SiglipEncoderLayer, and those of MetaCLIP 2 and SigLIP 2."""

    norm1, norm2 = "layer_norm1", "layer_norm2"
    attention, out_proj = "self_attn", "self_attn.out_proj"
    scale_name, dropout_name = "scale", "dropout"


class BeitBlock(HfBlock):
    """BeitLayer: relative positions, of its own or shared by all blocks."""

    norm1, norm2 = "layernorm_before", "layernorm_after"

    def whole(self, x: Tensor, rows: BiasRows | None = None) -> Tensor:
        if rows is None:
            return self._as_its_library(x, None, None)
        if rows.index is not None:  # the layer adds the bias of all patches
            return self.whole_in_pieces(x, rows)
        height, width = rows.source.grid
        patch = self.block.patch_size if hasattr(self.block, "patch_size") else self.attn.config.patch_size
        return self._as_its_library(x, rows.source.shared, (height * patch, width * patch))

    def _as_its_library(self, x: Tensor, shared: Tensor | None, image: tuple[int, int] | None) -> Tensor:
        return nn.Module.__call__(self.block, x, shared, False, image)

    def placed(self, heads: Heads, query_rows: Any, key_rows: Any) -> tuple[Heads, Tensor | None]:
        return heads, None if query_rows is None else bias_of_pairs(query_rows, key_rows)

    def scaled(self, update: Tensor, half: int) -> Tensor:
        gamma = self.block.lambda_1 if half == 1 else self.block.lambda_2
        update = self._dropped(update, half)
        return self.block.drop_path(update if gamma is None else gamma * update)

    def _dropped(self, update: Tensor, half: int) -> Tensor:
        return self.block.dropout(update)


class OldNames(HfBlock):
    """The names that parts had before transformers 5, which some models still use."""

    norm1, norm2 = "layernorm_before", "layernorm_after"
    attention, out_proj = "attention.attention", "attention.output"
    projections = ("query", "key", "value")
    head_dim_name, dropout_name = "attention_head_size", "dropout_prob"

    def projected_out(self, attended: Tensor, normed: Tensor) -> Tensor:
        return self.block.attention.output(attended, normed)


class Data2VecBlock(OldNames, BeitBlock):
    """Data2VecVisionLayer: BEiT's, with the old names."""

    feed_forward = ("intermediate", "output")

    def _as_its_library(self, x: Tensor, shared: Tensor | None, image: tuple[int, int] | None) -> Tensor:
        return nn.Module.__call__(self.block, x, False, shared, False, image)[0]

    def _dropped(self, update: Tensor, half: int) -> Tensor:
        return update  # its output layers drop

    @property
    def scale(self) -> float:
        return self.head_dim**-0.5

    @property
    def attention_dropout(self) -> float:
        return float(self.attn.dropout.p) if self.attn.training else 0.0


class VitPoseBlock(OldNames):
    """VitPoseBackboneLayer with one expert."""


class DptBlock(OldNames):
    """DPTViTLayer, whose last layer adds to the residual stream itself."""

    feed_forward = ("intermediate", "output")

    def whole(self, x: Tensor, rows: Any = None) -> Tensor:
        return nn.Module.__call__(self.block, x)

    def mlp(self, x: Tensor) -> Tensor:
        return self.block.output(self.block.intermediate(self.block.layernorm_after(x)), x)


class InternVLBlock(HfBlock):
    """InternVLVisionLayer: LayerScale, and norms of queries and keys over all heads."""

    norm1, norm2 = "layernorm_before", "layernorm_after"
    out_proj, scale_name = "attention.projection_layer", "scale"

    def whole(self, x: Tensor, rows: Any = None) -> Tensor:
        return nn.Module.__call__(self.block, x)

    def projected(self, which: int, normed: Tensor) -> Tensor:
        found = super().projected(which, normed)
        return found if which == 2 else (self.attn.q_norm, self.attn.k_norm)[which](found)

    def projected_out(self, attended: Tensor, normed: Tensor) -> Tensor:
        return self.attn.projection_dropout(super().projected_out(attended, normed))

    def scaled(self, update: Tensor, half: int) -> Tensor:
        if half == 1:
            return self.block.lambda_1 * update
        return self.block.lambda_2 * self.block.dropout(update)


class PixtralBlock(HfBlock):
    """PixtralAttentionLayer: rotary positions."""

    norm1, norm2 = "attention_norm", "ffn_norm"
    dropout_name, feed_forward = "dropout", ("feed_forward",)

    def whole(self, x: Tensor, rows: Any = None) -> Tensor:
        return self.whole_in_pieces(x, rows)  # the layer has room for one image's positions only

    def placed(self, heads: Heads, query_rows: Any, key_rows: Any) -> tuple[Heads, Tensor | None]:
        return rotated(heads, query_rows, key_rows, heads.q.shape[2] - query_rows.shape[-2], half=True), None


class QwenBlock(PixtralBlock):
    """Qwen3VLVisionBlock: rotary positions, and one projection for queries, keys and values."""

    norm1, norm2 = "norm1", "norm2"
    attention, out_proj = "attn", "attn.proj"
    dropout_name, feed_forward = "attention_dropout", ("mlp",)

    def project(self, normed: Tensor) -> Heads:
        b, n, _ = normed.shape
        found = self.attn.qkv(normed).view(b, n, 3, self.attn.num_heads, self.head_dim)
        return Heads(*found.permute(2, 0, 3, 1, 4).unbind(0))

    def projected(self, which: int, normed: Tensor) -> Tensor:
        layer = self.attn.qkv
        weight, bias = layer.weight.chunk(3)[which], layer.bias.chunk(3)[which]
        return linear(normed, weight, bias)

    def shape(self) -> BlockShape:
        width = self.attn.dim
        return BlockShape(
            dim=width,
            heads=self.attn.num_heads,
            head_dim=self.head_dim,
            query_macs=width**2,
            key_value_macs=2 * width**2,
            proj_macs=linear_macs(self.attn.proj),
            mlp_macs=linear_macs(self.block.mlp),
        )
