"""Softmax attention with the two additions token reduction needs: a log-size bias and scores on the way."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import dropout as drop
from torch.nn.functional import pad
from torch.nn.functional import scaled_dot_product_attention as fused_attention

STREAM_ELEMENTS = 2**24
"""Attention weights held at once when a score needs the matrix: 64 MiB in float32."""


def attend(
    q: Tensor, k: Tensor, v: Tensor, *, bias: Tensor | None = None, scale: float | None = None, dropout: float = 0.0
) -> Tensor:
    """softmax(q k^T * scale + bias) v for heads (B, H, N, D), by the fused kernel."""
    return fused_attention(q, k, v, attn_mask=bias, dropout_p=dropout, scale=scale)


def attend_and_score(
    q: Tensor, k: Tensor, v: Tensor, *, bias: Tensor | None = None, scale: float | None = None, dropout: float = 0.0
) -> tuple[Tensor, Tensor]:
    """``attend``, and the attention each key receives: sum over heads and queries, (B, N_k).

    The score needs the matrix, so it is formed once for both uses, a block of queries at a time.
    """
    b, heads, n, head_dim = q.shape
    scale = head_dim**-0.5 if scale is None else scale
    rows = max(1, STREAM_ELEMENTS // max(1, b * heads * k.shape[2]))
    outputs, received = [], torch.zeros((), device=q.device)
    for start in range(0, n, rows):
        part = slice(start, start + rows)
        own_bias = bias[:, :, part] if bias is not None and bias.shape[2] > 1 else bias
        weights = attention_weights(q[:, :, part], k, bias=own_bias, scale=scale)
        received = received + weights.sum(dim=(1, 2))
        outputs.append(drop(weights.to(v.dtype), dropout, training=dropout > 0) @ v)
    return (outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=2)), received


def attention_weights(q: Tensor, k: Tensor, *, bias: Tensor | None = None, scale: float | None = None) -> Tensor:
    """The weights themselves, (B, H, N_q, N_k), normalised in float32."""
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    logits = (q * scale) @ k.transpose(-2, -1)
    return (logits if bias is None else logits + bias).softmax(dim=-1, dtype=torch.float32)


def log_size_bias(size: Tensor, prefix: int, dtype: torch.dtype) -> Tensor:
    """log(size) of every patch token, 0 for prefix tokens: (B, 1, 1, prefix + N), to be added to attention logits.

    A token that stands for s patches then weighs as much as s equal tokens would:
    exp(q.k + log s) = s exp(q.k).
    """
    return pad(size.log(), (prefix, 0)).to(dtype).view(size.shape[0], 1, 1, -1)


def key_mask_bias(keep: Tensor, dtype: torch.dtype) -> Tensor:
    """0 where ``keep`` (B, N) is true, -inf elsewhere, shaped for ``attend``: masked keys get no weight."""
    return torch.zeros(keep.shape, dtype=dtype, device=keep.device).masked_fill(~keep, -torch.inf)[:, None, None, :]
