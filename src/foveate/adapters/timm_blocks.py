"""Blocks of timm's plain encoders, split into the pieces that reduction needs."""

from __future__ import annotations

from typing import Any

import torch
from timm.models.eva import EvaBlock, EvaBlockPostNorm
from timm.models.vision_transformer import ResPostBlock
from torch import Tensor, nn
from torch.nn.functional import linear

from foveate.adapters.blocks import BlockPieces, Heads, linear_macs
from foveate.adapters.rotary import rotated
from foveate.costs import BlockShape


class TimmBlock(BlockPieces):
    """A pre-norm block of timm: attention with fused or separate projections, then an MLP."""

    def normed(self, x: Tensor) -> Tensor:
        return self.block.norm1(x)

    def queries(self, normed: Tensor) -> Tensor:
        return queries(self.block.attn, normed)

    def keys_values(self, normed: Tensor) -> tuple[Tensor, Tensor]:
        return keys_values(self.block.attn, normed)

    def project(self, normed: Tensor) -> Heads:
        return project(self.block.attn, normed)

    def after_attention(self, attended: Tensor, normed: Tensor) -> Tensor:
        return self.scaled_attention(after_attention(self.block.attn, attended, normed))

    def scaled_attention(self, update: Tensor) -> Tensor:
        """The update that the block adds to the residual stream after attention."""
        return self.block.drop_path1(_scaled(self.block, 1, update))

    def mlp(self, x: Tensor) -> Tensor:
        block = self.block
        return x + block.drop_path2(_scaled(block, 2, block.mlp(block.norm2(x))))

    @property
    def scale(self) -> float:
        return float(self.block.attn.scale)

    @property
    def attention_dropout(self) -> float:
        attn = self.block.attn
        return float(attn.attn_drop.p) if attn.training else 0.0

    def shape(self) -> BlockShape:
        return attention_shape(self.block.attn, mlp_macs=linear_macs(self.block.mlp))


class TimmPostNormBlock(TimmBlock):
    """timm's ``ResPostBlock``: norms after attention and MLP."""

    def normed(self, x: Tensor) -> Tensor:
        return x

    def scaled_attention(self, update: Tensor) -> Tensor:
        return self.block.drop_path1(self.block.norm1(update))

    def mlp(self, x: Tensor) -> Tensor:
        block = self.block
        return x + block.drop_path2(block.norm2(block.mlp(x)))


class Rotary(BlockPieces):
    """Pieces of a block that rotates queries and keys; rows are those of a ``RotaryTable``."""

    def whole(self, x: Tensor, rows: Any = None) -> Tensor:
        return self.block(x, rope=rows)  # timm takes one table for all images, or one for each

    def placed(self, heads: Heads, query_rows: Any, key_rows: Any) -> tuple[Heads, Tensor | None]:
        if query_rows is None:
            return heads, None
        attn = self.block.attn
        return rotated(heads, query_rows, key_rows, attn.num_prefix_tokens, bool(attn.rotate_half)), None


class TimmRotaryBlock(Rotary, TimmBlock):
    """timm's ``EvaBlock``."""


class TimmRotaryPostNormBlock(Rotary, TimmPostNormBlock):
    """timm's ``EvaBlockPostNorm``."""


def timm_pieces(block: Any) -> BlockPieces:
    """The pieces of one block of timm's VisionTransformer or Eva."""
    if isinstance(block, EvaBlockPostNorm):
        return TimmRotaryPostNormBlock(block)
    if isinstance(block, EvaBlock):
        return TimmRotaryBlock(block)
    return TimmPostNormBlock(block) if isinstance(block, ResPostBlock) else TimmBlock(block)


# -- attention of timm: one projection for queries, keys and values or three; norms, a gate, fewer keys than queries


def queries(attn: Any, normed: Tensor) -> Tensor:
    """(B, H, N, D)."""
    if attn.qkv is None:
        return _normed(attn, "q_norm", _heads(attn.q_proj(normed), attn.num_heads))
    return _normed(attn, "q_norm", _part(attn, normed, 0, 1)[0])


def keys_values(attn: Any, normed: Tensor) -> tuple[Tensor, Tensor]:
    """Each (B, H, N, D); keys that several heads share are repeated."""
    if attn.qkv is not None:
        k, v = _part(attn, normed, 1, 3)
        return _normed(attn, "k_norm", k), v
    kept = getattr(attn, "num_kv_heads", attn.num_heads)
    k, v = _heads(attn.k_proj(normed), kept), _heads(attn.v_proj(normed), kept)
    k = _normed(attn, "k_norm", k)
    times = attn.num_heads // kept
    return (k, v) if times == 1 else (k.repeat_interleave(times, dim=1), v.repeat_interleave(times, dim=1))


def project(attn: Any, normed: Tensor) -> Heads:
    """Queries, keys and values, by one multiplication where that is possible."""
    if attn.qkv is None:
        return Heads(queries(attn, normed), *keys_values(attn, normed))
    q, k, v = _part(attn, normed, 0, 3).unbind(0)
    return Heads(_normed(attn, "q_norm", q), _normed(attn, "k_norm", k), v)


def after_attention(attn: Any, attended: Tensor, normed: Tensor) -> Tensor:
    """The output of attention from ``attended`` (B, H, N, D)."""
    x = _normed(attn, "norm", attended.transpose(1, 2).flatten(2))
    if getattr(attn, "gate", None) is not None:
        x = x * attn.gate(normed).sigmoid()
    return attn.proj_drop(attn.proj(x))


def attention_shape(attn: Any, mlp_macs: int) -> BlockShape:
    """Sizes of a block with this attention."""
    if attn.qkv is None:
        dim, width = attn.q_proj.in_features, attn.q_proj.out_features
        own, others = linear_macs(attn.q_proj), linear_macs(attn.k_proj, attn.v_proj)
    else:
        dim, width = attn.qkv.in_features, attn.qkv.out_features // 3
        own, others = attn.qkv.weight.numel() // 3, attn.qkv.weight.numel() // 3 * 2
    return BlockShape(
        dim=dim,
        heads=attn.num_heads,
        head_dim=width // attn.num_heads,
        query_macs=own + linear_macs(getattr(attn, "gate", None)),
        key_value_macs=others,
        proj_macs=linear_macs(attn.proj),
        mlp_macs=mlp_macs,
    )


def _scaled(block: Any, half: int, update: Tensor) -> Tensor:
    """LayerScale of a block's first or second half: a module in most of timm, a parameter in some."""
    scale = getattr(block, f"ls{half}", None)
    gamma = getattr(block, f"gamma_{half}", None)
    return scale(update) if scale is not None else update if gamma is None else gamma * update


def _normed(attn: Any, name: str, x: Tensor) -> Tensor:
    norm: nn.Module | None = getattr(attn, name, None)
    return x if norm is None else norm(x)


def _part(attn: Any, normed: Tensor, start: int, stop: int) -> Tensor:
    """Thirds ``start`` to ``stop`` of the fused qkv projection, as (stop - start, B, H, N, D)."""
    bias = _fused_bias(attn)
    if (start, stop) == (0, 3) and bias is attn.qkv.bias:
        found = attn.qkv(normed)
    else:
        third = attn.qkv.out_features // 3
        rows = slice(start * third, stop * third)
        found = linear(normed, attn.qkv.weight[rows], None if bias is None else bias[rows])
    b, n, _ = found.shape
    return found.view(b, n, stop - start, attn.num_heads, -1).permute(2, 0, 3, 1, 4)


def _fused_bias(attn: Any) -> Tensor | None:
    """The bias of queries, keys and values; models from BEiT on keep it apart, and that of keys is always zero."""
    if getattr(attn, "q_bias", None) is None:
        return attn.qkv.bias
    return torch.cat([attn.q_bias, attn.k_bias, attn.v_bias])


def _heads(x: Tensor, heads: int) -> Tensor:
    b, n, _ = x.shape
    return x.view(b, n, heads, -1).transpose(1, 2)
