"""The three kinds of transformer block that transformers' vision models are made of."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor, nn

from foveate.adapters.base import BlockOps, linear_macs
from foveate.cost import BlockShape


class HfBlock(BlockOps):
    """What the kinds share: separate q, k and v projections. Subclasses name their parts."""

    norm1: ClassVar[str]
    norm2: ClassVar[str]
    attention: ClassVar[str]
    out_proj: ClassVar[str]
    scale_name: ClassVar[str]
    dropout_name: ClassVar[str]

    def whole(self, block: Any, x: Tensor) -> Tensor:
        # past the layer's own __call__, which would checkpoint a second time inside the engine's checkpoint
        return nn.Module.__call__(block, x, None)

    def normed(self, block: Any, x: Tensor) -> Tensor:
        return getattr(block, self.norm1)(x)

    def queries(self, block: Any, normed: Tensor) -> Tensor:
        attention = getattr(block, self.attention)
        return _split_heads(attention.q_proj(normed), attention)

    def keys_values(self, block: Any, normed: Tensor) -> tuple[Tensor, Tensor]:
        attention = getattr(block, self.attention)
        return _split_heads(attention.k_proj(normed), attention), _split_heads(attention.v_proj(normed), attention)

    def after_attention(self, block: Any, attended: Tensor, normed: Tensor) -> Tensor:
        out = getattr(getattr(block, self.attention), self.out_proj)
        return self.scaled(block, out(attended.transpose(1, 2).flatten(2)), 1)

    def mlp(self, block: Any, x: Tensor) -> Tensor:
        return x + self.scaled(block, block.mlp(getattr(block, self.norm2)(x)), 2)

    def scaled(self, block: Any, update: Tensor, half: int) -> Tensor:
        """An update of the residual stream as the block adds it, after its attention (1) or its MLP (2)."""
        return update

    def scale(self, block: Any) -> float:
        return float(getattr(getattr(block, self.attention), self.scale_name))

    def attention_dropout(self, block: Any) -> float:
        attention = getattr(block, self.attention)
        return float(getattr(attention, self.dropout_name)) if attention.training else 0.0

    def shape(self, block: Any) -> BlockShape:
        attention = getattr(block, self.attention)
        return BlockShape(
            dim=attention.q_proj.in_features,
            heads=attention.q_proj.out_features // attention.head_dim,
            head_dim=attention.head_dim,
            query_macs=linear_macs(attention.q_proj),
            key_value_macs=linear_macs(attention.k_proj, attention.v_proj),
            proj_macs=linear_macs(getattr(attention, self.out_proj)),
            mlp_macs=linear_macs(block.mlp),
        )


class VitBlock(HfBlock):
    """ViTLayer and DeiTLayer."""

    norm1, norm2 = "layernorm_before", "layernorm_after"
    attention, out_proj = "attention", "o_proj"
    scale_name, dropout_name = "scaling", "attention_dropout"

    def scaled(self, block: Any, update: Tensor, half: int) -> Tensor:
        return block.dropout(update)


class Dinov2Block(HfBlock):
    """Dinov2Layer, with or without registers: LayerScale and stochastic depth."""

    norm1, norm2 = "norm1", "norm2"
    attention, out_proj = "attention", "o_proj"
    scale_name, dropout_name = "scaling", "attention_dropout"

    def scaled(self, block: Any, update: Tensor, half: int) -> Tensor:
        return block.drop_path((block.layer_scale1 if half == 1 else block.layer_scale2)(update))


class ClipBlock(HfBlock):
    """CLIPEncoderLayer and SiglipEncoderLayer."""

    norm1, norm2 = "layer_norm1", "layer_norm2"
    attention, out_proj = "self_attn", "out_proj"
    scale_name, dropout_name = "scale", "dropout"


def _split_heads(x: Tensor, attention: Any) -> Tensor:
    b, n, _ = x.shape
    return x.view(b, n, -1, attention.head_dim).transpose(1, 2)
