"""A transformer block split into the pieces that reduction needs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

from torch import Tensor, nn

from foveate.core import attend
from foveate.costs import BlockShape


class Heads(NamedTuple):
    """Queries, keys and values split into heads, each (B, H, N, D)."""

    q: Tensor
    k: Tensor
    v: Tensor


class BlockPieces(ABC):
    """One transformer block, split into the pieces that reduction needs. One subclass per kind of block.

    A whole block is ``x = x + after_attention(attend(project(normed(x))), normed(x))``, then ``x = mlp(x)``.
    """

    def __init__(self, block: Any) -> None:
        self.block = block

    def entered(self, x: Tensor, rows: Any) -> Tensor:
        """The residual stream as the block reads it; only for models that add positions before every block."""
        return x

    def whole(self, x: Tensor, rows: Any = None) -> Tensor:
        """The block as its library runs it, behind ``entered``; ``rows`` is what it reads for the tokens' positions."""
        return self.block(x)

    def whole_in_pieces(self, x: Tensor, rows: Any = None) -> Tensor:
        """The block, run piece by piece."""
        normed = self.normed(x)
        heads, bias = self.placed(self.project(normed), rows, rows)
        attended = attend(*heads, bias=bias, scale=self.scale, dropout=self.attention_dropout)
        return self.mlp(x + self.after_attention(attended, normed))

    def placed(self, heads: Heads, query_rows: Any, key_rows: Any) -> tuple[Heads, Tensor | None]:
        """Queries and keys with their positions, and a bias for each pair of them.

        Only for blocks that read positions; ``rows`` are what ``PositionSource`` gives for patch tokens.
        """
        return heads, None

    @abstractmethod
    def normed(self, x: Tensor) -> Tensor:
        """What attention reads: the first norm's output in a pre-norm block."""

    @abstractmethod
    def queries(self, normed: Tensor) -> Tensor: ...

    @abstractmethod
    def keys_values(self, normed: Tensor) -> tuple[Tensor, Tensor]: ...

    def project(self, normed: Tensor) -> Heads:
        """Queries, keys and values; blocks that compute them faster together override this."""
        return Heads(self.queries(normed), *self.keys_values(normed))

    @abstractmethod
    def after_attention(self, attended: Tensor, normed: Tensor) -> Tensor:
        """The update of the residual stream from ``attended`` (B, H, N_q, D): projection, scale, drop path."""

    @abstractmethod
    def mlp(self, x: Tensor) -> Tensor:
        """The residual stream after the second half of the block."""

    @property
    @abstractmethod
    def scale(self) -> float:
        """Factor of the attention logits."""

    @property
    @abstractmethod
    def attention_dropout(self) -> float:
        """Dropout on attention weights, 0 outside training."""

    @abstractmethod
    def shape(self) -> BlockShape:
        """Sizes and multiply-accumulates."""


def linear_macs(*modules: nn.Module | None) -> int:
    """Multiply-accumulates per token of all linear layers inside ``modules``."""
    layers = (layer for m in modules if m is not None for layer in m.modules())
    return sum(layer.weight.numel() for layer in layers if isinstance(layer, nn.Linear))
