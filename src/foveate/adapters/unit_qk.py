"""Attention over normalized queries and keys (Token Pooling, appendix F), for any kind of block."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from foveate.adapters.blocks import BlockPieces, Heads
from foveate.adapters.inside import run_inside
from foveate.costs import BlockShape, ModelShape
from foveate.reductions import UnitQK


class UnitScales(nn.Module):
    """alpha of every block: logits are alpha * cos(q, k).

    A fixed alpha is 1. A learned alpha starts at sqrt(head_dim), at which logits of random queries and keys have the
    same spread as without normalization (the paper does not give a start value).
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


class UnitPieces(BlockPieces):
    """A block's pieces with queries and keys brought to unit length, and queries scaled by ``alpha``."""

    def __init__(self, pieces: BlockPieces, alpha: Tensor | float) -> None:
        super().__init__(pieces.block)
        self.pieces = pieces
        self.alpha = alpha

    def whole(self, x: Tensor, rows: Any = None) -> Tensor:
        return run_inside(self.block, x, lambda tokens: (self.whole_in_pieces(tokens, rows), None))[0]

    def entered(self, x: Tensor, rows: Any) -> Tensor:
        return self.pieces.entered(x, rows)

    def placed(self, heads: Heads, query_rows: Any, key_rows: Any) -> tuple[Heads, Tensor | None]:
        return self.pieces.placed(heads, query_rows, key_rows)

    def normed(self, x: Tensor) -> Tensor:
        return self.pieces.normed(x)

    def queries(self, normed: Tensor) -> Tensor:
        return self._unit_queries(self.pieces.queries(normed))

    def keys_values(self, normed: Tensor) -> tuple[Tensor, Tensor]:
        k, v = self.pieces.keys_values(normed)
        return _unit(k), v

    def project(self, normed: Tensor) -> Heads:
        q, k, v = self.pieces.project(normed)
        return Heads(self._unit_queries(q), _unit(k), v)

    def after_attention(self, attended: Tensor, normed: Tensor) -> Tensor:
        return self.pieces.after_attention(attended, normed)

    def mlp(self, x: Tensor) -> Tensor:
        return self.pieces.mlp(x)

    @property
    def scale(self) -> float:
        return 1.0

    @property
    def attention_dropout(self) -> float:
        return self.pieces.attention_dropout

    def shape(self) -> BlockShape:
        return self.pieces.shape()

    def _unit_queries(self, q: Tensor) -> Tensor:
        return _unit(q) * (self.alpha.to(q.dtype) if isinstance(self.alpha, Tensor) else self.alpha)


def _unit(x: Tensor) -> Tensor:
    """``x`` scaled to unit length, in float32, because half precision has no epsilon small enough to guard zero."""
    return normalize(x.float(), dim=-1).to(x.dtype) if x.dtype is torch.float16 else normalize(x, dim=-1)
