"""Blocks of timm's VisionTransformer, split into the pieces that reduction needs."""

from __future__ import annotations

from typing import Any

from timm.models.vision_transformer import ResPostBlock
from torch import Tensor
from torch.nn.functional import linear

from foveate.adapters.blocks import BlockPieces, Heads, linear_macs
from foveate.costs import BlockShape


class TimmBlock(BlockPieces):
    """timm's ``Block`` around its ``Attention``."""

    def normed(self, x: Tensor) -> Tensor:
        return self.block.norm1(x)

    def queries(self, normed: Tensor) -> Tensor:
        attn = self.block.attn
        return attn.q_norm(_part(attn, normed, 0, 1)[0])

    def keys_values(self, normed: Tensor) -> tuple[Tensor, Tensor]:
        attn = self.block.attn
        k, v = _part(attn, normed, 1, 3)
        return attn.k_norm(k), v

    def project(self, normed: Tensor) -> Heads:
        attn = self.block.attn
        q, k, v = _split_heads(attn.qkv(normed), 3, attn).unbind(0)
        return Heads(attn.q_norm(q), attn.k_norm(k), v)

    def after_attention(self, attended: Tensor, normed: Tensor) -> Tensor:
        attn = self.block.attn
        x = attn.norm(attended.transpose(1, 2).flatten(2))
        if getattr(attn, "gate", None) is not None:
            x = x * attn.gate(normed).sigmoid()
        return self.scaled_attention(attn.proj_drop(attn.proj(x)))

    def scaled_attention(self, update: Tensor) -> Tensor:
        """The update that the block adds to the residual stream after attention."""
        return self.block.drop_path1(self.block.ls1(update))

    def mlp(self, x: Tensor) -> Tensor:
        block = self.block
        return x + block.drop_path2(block.ls2(block.mlp(block.norm2(x))))

    @property
    def scale(self) -> float:
        return float(self.block.attn.scale)

    @property
    def attention_dropout(self) -> float:
        attn = self.block.attn
        return float(attn.attn_drop.p) if attn.training else 0.0

    def shape(self) -> BlockShape:
        attn = self.block.attn
        third = attn.qkv.weight.numel() // 3
        return BlockShape(
            dim=attn.qkv.in_features,
            heads=attn.num_heads,
            head_dim=attn.qkv.out_features // 3 // attn.num_heads,
            query_macs=third + linear_macs(getattr(attn, "gate", None)),
            key_value_macs=2 * third,
            proj_macs=linear_macs(attn.proj),
            mlp_macs=linear_macs(self.block.mlp),
        )


class TimmPostNormBlock(TimmBlock):
    """timm's ``ResPostBlock``: norms after attention and MLP."""

    def normed(self, x: Tensor) -> Tensor:
        return x

    def scaled_attention(self, update: Tensor) -> Tensor:
        return self.block.drop_path1(self.block.norm1(update))

    def mlp(self, x: Tensor) -> Tensor:
        block = self.block
        return x + block.drop_path2(block.norm2(block.mlp(x)))


def timm_pieces(block: Any) -> TimmBlock:
    """The pieces of one block of timm's VisionTransformer."""
    return TimmPostNormBlock(block) if isinstance(block, ResPostBlock) else TimmBlock(block)


def _part(attn: Any, normed: Tensor, start: int, stop: int) -> Tensor:
    """Thirds ``start`` to ``stop`` of the fused qkv projection, as (stop - start, B, H, N, D)."""
    third = attn.qkv.out_features // 3
    rows = slice(start * third, stop * third)
    bias = None if attn.qkv.bias is None else attn.qkv.bias[rows]
    return _split_heads(linear(normed, attn.qkv.weight[rows], bias), stop - start, attn)


def _split_heads(x: Tensor, parts: int, attn: Any) -> Tensor:
    b, n, _ = x.shape
    return x.view(b, n, parts, attn.num_heads, -1).permute(2, 0, 3, 1, 4)
