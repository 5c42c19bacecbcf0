"""The three kinds of transformer block that transformers' vision models are made of."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor, nn

from foveate.adapters.blocks import BlockPieces, linear_macs
from foveate.costs import BlockShape


class HfBlock(BlockPieces):
    """What all kinds share: separate q, k and v projections. Subclasses name their parts."""

    norm1: ClassVar[str]
    norm2: ClassVar[str]
    attention: ClassVar[str]
    out_proj: ClassVar[str]
    scale_name: ClassVar[str]
    dropout_name: ClassVar[str]

    @property
    def attn(self) -> Any:
        return getattr(self.block, self.attention)

    def whole(self, x: Tensor) -> Tensor:
        # not the layer's __call__, which would checkpoint a second time inside the engine's checkpoint
        return nn.Module.__call__(self.block, x, None)

    def normed(self, x: Tensor) -> Tensor:
        return getattr(self.block, self.norm1)(x)

    def queries(self, normed: Tensor) -> Tensor:
        return _split_heads(self.attn.q_proj(normed), self.attn)

    def keys_values(self, normed: Tensor) -> tuple[Tensor, Tensor]:
        attn = self.attn
        return _split_heads(attn.k_proj(normed), attn), _split_heads(attn.v_proj(normed), attn)

    def after_attention(self, attended: Tensor, normed: Tensor) -> Tensor:
        out = getattr(self.attn, self.out_proj)
        return self.scaled(out(attended.transpose(1, 2).flatten(2)), 1)

    def mlp(self, x: Tensor) -> Tensor:
        return x + self.scaled(self.block.mlp(getattr(self.block, self.norm2)(x)), 2)

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
        attn = self.attn
        return BlockShape(
            dim=attn.q_proj.in_features,
            heads=attn.q_proj.out_features // attn.head_dim,
            head_dim=attn.head_dim,
            query_macs=linear_macs(attn.q_proj),
            key_value_macs=linear_macs(attn.k_proj, attn.v_proj),
            proj_macs=linear_macs(getattr(attn, self.out_proj)),
            mlp_macs=linear_macs(self.block.mlp),
        )


class VitBlock(HfBlock):
    """ViTLayer and DeiTLayer."""

    norm1, norm2 = "layernorm_before", "layernorm_after"
    attention, out_proj = "attention", "o_proj"
    scale_name, dropout_name = "scaling", "attention_dropout"

    def scaled(self, update: Tensor, half: int) -> Tensor:
        return self.block.dropout(update)


class Dinov2Block(HfBlock):
    """Dinov2Layer, with or without registers: LayerScale and stochastic depth."""

    norm1, norm2 = "norm1", "norm2"
    attention, out_proj = "attention", "o_proj"
    scale_name, dropout_name = "scaling", "attention_dropout"

    def scaled(self, update: Tensor, half: int) -> Tensor:
        block = self.block
        return block.drop_path((block.layer_scale1 if half == 1 else block.layer_scale2)(update))


class ClipBlock(HfBlock):
    """CLIPEncoderLayer and SiglipEncoderLayer."""

    norm1, norm2 = "layer_norm1", "layer_norm2"
    attention, out_proj = "self_attn", "out_proj"
    scale_name, dropout_name = "scale", "dropout"


def _split_heads(x: Tensor, attention: Any) -> Tensor:
    b, n, _ = x.shape
    return x.view(b, n, -1, attention.head_dim).transpose(1, 2)
