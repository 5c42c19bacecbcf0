"""Scores that rank tokens, read from queries and keys."""

from __future__ import annotations

from torch import Tensor

from foveate.core.attention import attention_weights


def class_row(q: Tensor, k: Tensor, *, bias: Tensor | None = None, scale: float | None = None) -> Tensor:
    """Attention of the class token (first query) to every key, averaged over heads: (B, N_k).

    This score needs only one row of the attention matrix, so the attention itself can stay fused.
    """
    bias = None if bias is None else bias[:, :, :1]  # of each pair, or of keys alone
    return attention_weights(q[:, :, :1], k, bias=bias, scale=scale).squeeze(2).mean(dim=1)
