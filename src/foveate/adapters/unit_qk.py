"""Attention over normalised queries and keys (Token Pooling, appendix F), for any kind of block."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from foveate.adapters.base import BlockOps, Heads, UnitQK
from foveate.core import attend
from foveate.cost import ModelShape


class UnitScales(nn.Module):
    """alpha of every block: logits are alpha * cos(q, k).

    Fixed, alpha is 1. Learned, it starts at sqrt(head_dim), where logits of random queries and keys have the spread
    they have in a block without normalisation (the paper does not say where it starts).
    """

    def __init__(self, kind: UnitQK, shape: ModelShape) -> None:
        super().__init__()
        self.kind = kind
        if kind == "learned":
            self.alpha = nn.Parameter(torch.tensor([block.head_dim**0.5 for block in shape.blocks]))

    def of(self, block: int) -> Tensor | float:
        """alpha of one block."""
        return self.alpha[block] if self.kind == "learned" else 1.0

    def extra_repr(self) -> str:
        return self.kind


class UnitHeads(BlockOps):
    """A block's pieces with queries and keys brought to unit length, and queries scaled by ``alpha``."""

    def __init__(self, ops: BlockOps, alpha: Tensor | float) -> None:
        self.ops = ops
        self.alpha = alpha

    def whole(self, block: Any, x: Tensor) -> Tensor:
        normed = self.normed(block, x)
        attended = attend(*self.project(block, normed), scale=1.0, dropout=self.attention_dropout(block))
        return self.mlp(block, x + self.after_attention(block, attended, normed))

    def normed(self, block: Any, x: Tensor) -> Tensor:
        return self.ops.normed(block, x)

    def queries(self, block: Any, normed: Tensor) -> Tensor:
        return self._unit_queries(self.ops.queries(block, normed))

    def keys_values(self, block: Any, normed: Tensor) -> tuple[Tensor, Tensor]:
        k, v = self.ops.keys_values(block, normed)
        return _unit(k), v

    def project(self, block: Any, normed: Tensor) -> Heads:
        q, k, v = self.ops.project(block, normed)
        return Heads(self._unit_queries(q), _unit(k), v)

    def after_attention(self, block: Any, attended: Tensor, normed: Tensor) -> Tensor:
        return self.ops.after_attention(block, attended, normed)

    def mlp(self, block: Any, x: Tensor) -> Tensor:
        return self.ops.mlp(block, x)

    def scale(self, block: Any) -> float:
        return 1.0

    def attention_dropout(self, block: Any) -> float:
        return self.ops.attention_dropout(block)

    def _unit_queries(self, q: Tensor) -> Tensor:
        return _unit(q) * (self.alpha.to(q.dtype) if isinstance(self.alpha, Tensor) else self.alpha)


def _unit(x: Tensor) -> Tensor:
    """``x`` at unit length; by way of float32, as half precision knows no number small enough to guard zero."""
    return normalize(x.float(), dim=-1).to(x.dtype) if x.dtype is torch.float16 else normalize(x, dim=-1)
