"""Attention with sizes, masks and scores, held against a softmax written out by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from foveate.core import attend, attend_and_score, attention, class_row, key_mask_bias, log_size_bias

BATCH, HEADS, QUERIES, KEYS, DIM = 2, 3, 5, 7, 4


def heads(n: int, seed: int) -> Tensor:
    return torch.randn(BATCH, HEADS, n, DIM, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.fixture
def qkv() -> tuple[Tensor, Tensor, Tensor]:
    return heads(QUERIES, 0), heads(KEYS, 1), heads(KEYS, 2)


def key_bias(seed: int = 3) -> Tensor:
    return torch.randn(BATCH, 1, 1, KEYS, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def matrix_by_loops(q: Tensor, k: Tensor, bias: Tensor | None = None, scale: float | None = None) -> Tensor:
    """softmax(q k^T * scale + bias), one number at a time."""
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    weights = torch.zeros(*q.shape[:3], k.shape[2], dtype=torch.float64)
    bias = torch.zeros(()) if bias is None else bias
    bias = bias.expand(weights.shape)
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            for i in range(q.shape[2]):
                row = [
                    math.exp(float(q[b, h, i] @ k[b, h, j]) * scale + float(bias[b, h, i, j]))
                    for j in range(k.shape[2])
                ]
                weights[b, h, i] = torch.tensor(row, dtype=torch.float64) / sum(row)
    return weights


def test_the_reference_rows_are_distributions(qkv):
    q, k, _ = qkv
    assert torch.allclose(matrix_by_loops(q, k, key_bias()).sum(-1), torch.ones(BATCH, HEADS, QUERIES).double())


@pytest.mark.parametrize("scale", [None, 0.3])
@pytest.mark.parametrize("biased", [False, True])
def test_attend_equals_a_plain_softmax(qkv, biased, scale):
    q, k, v = qkv
    bias = key_bias() if biased else None
    assert torch.allclose(attend(q, k, v, bias=bias, scale=scale), matrix_by_loops(q, k, bias, scale) @ v)


@pytest.mark.parametrize("prefix", [0, 1, 2])
def test_a_token_of_size_s_weighs_as_much_as_s_copies_of_it(qkv, prefix):
    q, k, v = qkv
    size = torch.tensor([[3, 1, 2, 1, 5, 4, 2], [1, 1, 1, 7, 1, 2, 6]])[:, prefix:]
    merged = attend(q, k, v, bias=log_size_bias(size.double(), prefix, torch.float64))
    for image in range(BATCH):
        copies = torch.cat([torch.ones(prefix, dtype=torch.long), size[image]])
        one = slice(image, image + 1)
        spelled_out = attend(q[one], *(t[one].repeat_interleave(copies, dim=2) for t in (k, v)))
        assert torch.allclose(merged[one], spelled_out)


def test_masking_a_key_equals_removing_it(qkv):
    q, k, v = qkv
    keep = torch.tensor([[1, 0, 1, 1, 0, 1, 1], [0, 0, 1, 0, 0, 0, 1]]).bool()
    masked = attend(q, k, v, bias=key_mask_bias(keep, torch.float64))
    for image in range(BATCH):
        one = slice(image, image + 1)
        removed = attend(q[one], k[one][:, :, keep[image]], v[one][:, :, keep[image]])
        assert torch.allclose(masked[one], removed)


def test_a_bias_comes_in_the_type_the_kernel_asks_for():
    size = torch.tensor([[1.0, 2.0, 4.0]])
    assert log_size_bias(size, 2, torch.bfloat16).dtype is torch.bfloat16
    assert key_mask_bias(size > 1, torch.bfloat16).dtype is torch.bfloat16


@pytest.mark.parametrize("held", [2**24, 2 * BATCH * HEADS * KEYS, 1])  # all queries at once, two at a time, one
@pytest.mark.parametrize("cached", [2**20, 1])  # all images at once, one by one
@pytest.mark.parametrize("scale", [None, 0.3])
@pytest.mark.parametrize("biased", [False, True])
def test_scoring_gives_attend_and_the_attention_every_key_receives(qkv, biased, scale, held, cached, monkeypatch):
    monkeypatch.setattr(attention, "STREAM_ELEMENTS", held)
    monkeypatch.setattr(attention, "CACHED_ELEMENTS", cached)
    q, k, v = qkv
    bias = key_bias() if biased else None
    out, received, first_row = attend_and_score(q, k, v, bias=bias, scale=scale)
    matrix = matrix_by_loops(q, k, bias, scale)
    assert torch.allclose(out, attend(q, k, v, bias=bias, scale=scale), atol=1e-6)
    assert torch.allclose(received.double(), matrix.sum(dim=(1, 2)), atol=1e-5)
    assert torch.allclose(first_row.double(), matrix[:, :, 0].mean(dim=1), atol=1e-6)


def test_attention_received_sums_to_heads_times_queries(qkv):
    received = attend_and_score(*qkv).received
    assert torch.allclose(received.sum(dim=1), torch.full((BATCH,), float(HEADS * QUERIES)))


def test_streaming_never_holds_more_weights_than_allowed(qkv, monkeypatch):
    allowed, sizes = 2 * BATCH * HEADS * KEYS + 1, []
    original = attention.attention_weights

    def recording(*args, **kwargs):
        weights = original(*args, **kwargs)
        sizes.append(weights.numel())
        return weights

    monkeypatch.setattr(attention, "STREAM_ELEMENTS", allowed)
    monkeypatch.setattr(attention, "attention_weights", recording)
    attend_and_score(*qkv)
    assert max(sizes) <= allowed
    assert sum(sizes) == BATCH * HEADS * QUERIES * KEYS


def test_streaming_cuts_a_bias_that_differs_between_queries(qkv, monkeypatch):
    monkeypatch.setattr(attention, "STREAM_ELEMENTS", 1)
    bias = torch.randn(BATCH, 1, QUERIES, KEYS, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    out, _, _ = attend_and_score(*qkv, bias=bias)
    reference = attend(*qkv, bias=bias)
    assert out.shape == reference.shape
    assert torch.allclose(out, reference, atol=1e-6)


@pytest.mark.parametrize("scale", [None, 0.3])
@pytest.mark.parametrize("biased", ["no", "keys", "pairs"])
def test_class_row_is_the_first_row_averaged_over_heads(qkv, biased, scale):
    q, k, _ = qkv
    pairs = torch.randn(BATCH, HEADS, QUERIES, KEYS, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    bias = {"no": None, "keys": key_bias(), "pairs": pairs}[biased]
    expected = matrix_by_loops(q, k, bias, scale)[:, :, 0].mean(dim=1)
    assert torch.allclose(class_row(q, k, bias=bias, scale=scale).double(), expected, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_scores_of_half_precision_heads_are_float32_and_sum_to_one(qkv, dtype):
    row = class_row(*(t.to(dtype) for t in qkv[:2]))
    assert row.dtype is torch.float32
    assert torch.allclose(row.sum(dim=1), torch.ones(BATCH), atol=1e-6)


def test_attention_from_others_leaves_out_the_diagonal(monkeypatch):
    q, k, v = (torch.randn(3, 2, 7, 4, generator=torch.Generator().manual_seed(i)) for i in range(3))
    weights = attention.attention_weights(q, k)
    expected = sum(weights[:, :, i] * (torch.arange(7) != i) for i in range(7)).sum(dim=1)
    for elements in (2**24, 40, 14):  # at once, one image at a time, and a few rows at a time
        monkeypatch.setattr(attention, "CACHED_ELEMENTS", elements)
        monkeypatch.setattr(attention, "STREAM_ELEMENTS", elements)
        scored = attend_and_score(q, k, v, from_others=True)
        torch.testing.assert_close(scored.received, expected)
        torch.testing.assert_close(scored.attended, attend_and_score(q, k, v).attended)
