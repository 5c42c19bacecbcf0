"""Softmax attention with what token reduction needs: a log-size bias, and scores read from the weights."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import dropout as drop
from torch.nn.functional import pad
from torch.nn.functional import scaled_dot_product_attention as fused_attention

from foveate.core.graphs import exporting, in_graph

STREAM_ELEMENTS = 2**24
"""Attention weights in memory at once if a score needs the whole matrix: 64 MiB in float32."""

CACHED_ELEMENTS = 2**20
"""The same limit on a CPU, where weights that fit the cache make scored attention two to three times as fast."""

LARGEST_EXPONENT = 20.0
"""How far a masked key's logit may exceed all others before its gradient stops growing."""


def attend(
    q: Tensor, k: Tensor, v: Tensor, *, bias: Tensor | None = None, scale: float | None = None, dropout: float = 0.0
) -> Tensor:
    """softmax(q k^T * scale + bias) v for heads (B, H, N, D), by the fused kernel."""
    return fused_attention(q, k, v, attn_mask=bias, dropout_p=dropout, scale=scale)


def attend_masked(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    keep: Tensor,
    *,
    bias: Tensor | None = None,
    scale: float | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """Attention in which key j counts ``keep[j]`` times (B, N), but every token counts for itself.

    exp(P_ij) G_ij / sum_k exp(P_ik) G_ik with G_ij = 1 where i = j, else keep_j. Gradients reach ``keep`` also where
    it is zero, so that a token can return; a fused kernel has no such gradient.
    """
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    logits = (q.float() * scale) @ k.float().transpose(2, 3)
    logits = logits if bias is None else logits + bias.float()
    own = torch.eye(keep.shape[1], dtype=logits.dtype, device=q.device)
    counts = keep.float()[:, None, None, :] * (1 - own) + own
    largest = logits.detach().masked_fill(counts == 0, -torch.inf).amax(dim=-1, keepdim=True)
    # only keys of count zero exceed the largest; the clamp keeps their gradients finite
    weights = (logits - largest).clamp(max=LARGEST_EXPONENT).exp() * counts
    weights = weights / weights.sum(dim=-1, keepdim=True)
    return drop(weights.to(v.dtype), dropout, training=dropout > 0) @ v


class Scored(NamedTuple):
    """The result of attention, and scores of the keys read from its weights."""

    attended: Tensor  # (B, H, N_q, D)
    received: Tensor  # (B, N_k) attention each key receives, sum over heads and queries
    class_row: Tensor  # (B, N_k) attention the first query pays, mean over heads


def attend_and_score(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    bias: Tensor | None = None,
    scale: float | None = None,
    dropout: float = 0.0,
    from_others: bool = False,
) -> Scored:
    """``attend`` with scores that need the matrix of weights, computed once for both, a few images at a time.

    ``from_others``: the attention received leaves out what each token pays to itself, the matrix's diagonal.
    """
    b, heads, n, head_dim = q.shape
    scale = head_dim**-0.5 if scale is None else scale
    images = b if in_graph() else max(1, _elements_at_once(q) // max(1, heads * n * k.shape[2]))
    if images >= b:
        return _attend_and_score(q, k, v, bias, scale, dropout, from_others)
    passes = []
    for start in range(0, b, images):
        part = slice(start, start + images)
        own_bias = bias[part] if bias is not None and bias.shape[0] > 1 else bias
        passes.append(_attend_and_score(q[part], k[part], v[part], own_bias, scale, dropout, from_others))
    heads_apart, received, class_row = zip(*passes, strict=True)
    # contiguous as (B, N, H, D), so that the following projection needs no copy
    attended = torch.cat([part.transpose(1, 2) for part in heads_apart]).transpose(1, 2)
    return Scored(attended, torch.cat(received), torch.cat(class_row))


def _attend_and_score(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, scale: float, dropout: float, from_others: bool
) -> Scored:
    """Process large images one block of queries at a time."""
    images = 1 if in_graph() else q.shape[0]  # a compiled graph must work for any batch size
    rows = max(1, STREAM_ELEMENTS // max(1, images * q.shape[1] * k.shape[2]))
    outputs, own, received, first_row = [], [], torch.zeros((), device=q.device), None
    for start in range(0, q.shape[2], rows):
        part = slice(start, start + rows)
        own_bias = bias[:, :, part] if bias is not None and bias.shape[2] > 1 else bias
        weights = attention_weights(q[:, :, part], k, bias=own_bias, scale=scale)
        received = received + weights.sum(dim=(1, 2))
        own += [_own_weights(weights, start)] if from_others else []
        first_row = weights[:, :, 0].mean(dim=1) if first_row is None else first_row
        outputs.append(_weighted_sum(drop(weights.to(v.dtype), dropout, training=dropout > 0), v))
    assert first_row is not None
    received = received - torch.cat(own, dim=1) if from_others else received
    return Scored(outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=2), received, first_row)


def _own_weights(weights: Tensor, start: int) -> Tensor:
    """What the queries from ``start`` on pay to themselves, sum over heads: (B, rows)."""
    if not exporting():
        return weights.diagonal(offset=start, dim1=2, dim2=3).sum(dim=1)
    rows = weights.shape[2]  # not every runtime reads a diagonal
    own = torch.eye(rows, dtype=weights.dtype, device=weights.device)
    return (weights[..., start : start + rows].sum(dim=1) * own).sum(dim=2)


def _weighted_sum(weights: Tensor, v: Tensor) -> Tensor:
    return torch.bmm(weights.flatten(0, 1), v.reshape(-1, *v.shape[2:])).unflatten(0, v.shape[:2])


def _elements_at_once(q: Tensor) -> int:
    return CACHED_ELEMENTS if q.device.type == "cpu" else STREAM_ELEMENTS


def attention_weights(q: Tensor, k: Tensor, *, bias: Tensor | None = None, scale: float | None = None) -> Tensor:
    """Attention weights (B, H, N_q, N_k), normalized in float32."""
    b, heads, n, head_dim = q.shape
    scale = head_dim**-0.5 if scale is None else scale
    # bmm over (B * H): matmul would copy its operands, and scale and bias would be separate passes
    q, k = q.reshape(b * heads, n, head_dim), k.reshape(b * heads, -1, head_dim)
    if bias is None:
        logits = torch.bmm(q * scale, k.transpose(1, 2))
    else:
        bias = bias.expand(b, heads, -1, -1).reshape(b * heads, bias.shape[2], -1)
        logits = torch.baddbmm(bias, q, k.transpose(1, 2), alpha=scale)
    return logits.softmax(dim=-1, dtype=torch.float32).view(b, heads, n, -1)


def log_size_bias(size: Tensor, prefix: int, dtype: torch.dtype, strength: float = 1.0) -> Tensor:
    """strength * log(size) of every patch token, 0 for prefix tokens: (B, 1, 1, prefix + N), added to attention logits.

    At strength 1, a token that stands for s patches weighs as much as s equal tokens would:
    exp(q.k + log s) = s exp(q.k). At a smaller one it weighs s^strength.
    """
    bias = size.log() if strength == 1 else size.log() * strength
    return pad(bias, (prefix, 0)).to(dtype).view(size.shape[0], 1, 1, -1)


def size_strength(damping: float, share: float) -> float:
    """1 - damping * log(1 / share), at least 0: how much log(size) counts if a ``share`` of all tokens is left."""
    return max(0.0, 1 + damping * math.log(share))


def key_mask_bias(keep: Tensor, dtype: torch.dtype) -> Tensor:
    """0 where ``keep`` (B, N) is true, else -inf: a bias for ``attend`` that gives masked keys no weight."""
    return torch.zeros(keep.shape, dtype=dtype, device=keep.device).masked_fill(~keep, -torch.inf)[:, None, None, :]
