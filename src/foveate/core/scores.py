"""Scores that rank tokens, read from queries and keys."""

from __future__ import annotations

from torch import Tensor

from foveate.core.attention import attention_weights
from foveate.core.precision import row_norms


def class_row(q: Tensor, k: Tensor, *, bias: Tensor | None = None, scale: float | None = None) -> Tensor:
    """Attention of the class token (first query) to every key, averaged over heads: (B, N_k).

    This score needs only one row of the attention matrix, so the attention itself can stay fused.
    """
    return _class_rows(q, k, bias, scale).mean(dim=1)


def class_value_row(q: Tensor, k: Tensor, v: Tensor, *, bias: Tensor | None = None, scale: float | None) -> Tensor:
    """Attention of the class token to every key times the norm of its value, summed over heads: (B, N_k)."""
    return (_class_rows(q, k, bias, scale) * row_norms(v)).sum(dim=1)


def _class_rows(q: Tensor, k: Tensor, bias: Tensor | None, scale: float | None) -> Tensor:
    """The class token's row of every head, (B, H, N_k)."""
    bias = None if bias is None else bias[:, :, :1]  # of each pair, or of keys alone
    return attention_weights(q[:, :, :1], k, bias=bias, scale=scale).squeeze(2)
