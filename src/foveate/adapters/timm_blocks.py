"""Blocks of timm's VisionTransformer in the pieces that reduction needs."""

from __future__ import annotations

from typing import Any

from timm.models.vision_transformer import ResPostBlock
from torch import Tensor
from torch.nn.functional import linear

from foveate.adapters.base import BlockOps, Heads


class TimmBlock(BlockOps):
    """timm's ``Block`` and ``ResPostBlock`` around its ``Attention``."""

    def normed(self, block: Any, x: Tensor) -> Tensor:
        return x if isinstance(block, ResPostBlock) else block.norm1(x)

    def queries(self, block: Any, normed: Tensor) -> Tensor:
        return block.attn.q_norm(self._part(block.attn, normed, 0, 1)[0])

    def keys_values(self, block: Any, normed: Tensor) -> tuple[Tensor, Tensor]:
        k, v = self._part(block.attn, normed, 1, 3)
        return block.attn.k_norm(k), v

    def project(self, block: Any, normed: Tensor) -> Heads:
        attn = block.attn
        q, k, v = _split_heads(attn.qkv(normed), 3, attn).unbind(0)
        return Heads(attn.q_norm(q), attn.k_norm(k), v)

    def after_attention(self, block: Any, attended: Tensor, normed: Tensor) -> Tensor:
        attn = block.attn
        x = attn.norm(attended.transpose(1, 2).flatten(2))
        if getattr(attn, "gate", None) is not None:
            x = x * attn.gate(normed).sigmoid()
        x = attn.proj_drop(attn.proj(x))
        return block.drop_path1(block.norm1(x) if isinstance(block, ResPostBlock) else block.ls1(x))

    def mlp(self, block: Any, x: Tensor) -> Tensor:
        if isinstance(block, ResPostBlock):
            return x + block.drop_path2(block.norm2(block.mlp(x)))
        return x + block.drop_path2(block.ls2(block.mlp(block.norm2(x))))

    def scale(self, block: Any) -> float:
        return float(block.attn.scale)

    def attention_dropout(self, block: Any) -> float:
        return float(block.attn.attn_drop.p) if block.attn.training else 0.0

    @staticmethod
    def _part(attn: Any, normed: Tensor, start: int, stop: int) -> Tensor:
        """Thirds ``start`` to ``stop`` of the fused qkv projection, as (stop - start, B, H, N, D)."""
        third = attn.qkv.out_features // 3
        rows = slice(start * third, stop * third)
        bias = None if attn.qkv.bias is None else attn.qkv.bias[rows]
        return _split_heads(linear(normed, attn.qkv.weight[rows], bias), stop - start, attn)


def _split_heads(x: Tensor, parts: int, attn: Any) -> Tensor:
    b, n, _ = x.shape
    return x.view(b, n, parts, attn.num_heads, -1).permute(2, 0, 3, 1, 4)
