"""How much the size of a merged token counts in later attention."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from torch import Tensor, nn

import foveate as fv
from foveate.core import log_size_bias, size_strength
from zoo import PATCHES, blocks_of, defaults, encoded, family_of, images, make

METHODS = [fv.Ward(size_damping=0.3), fv.TokenPooling(size_damping=0.3), fv.ToMe(size_damping=0.3)]
KEEP = fv.Keep({1: 24, 2: 15})
ENTERING = (PATCHES, PATCHES, 24, 15)


def block_by_hand(block: nn.Module, x: Tensor, copies: Tensor) -> Tensor:
    """A block of timm for one image (N, C), in which key j counts ``copies[j]`` times."""
    attention = block.attn
    q, k, v = attention.qkv(block.norm1(x)).view(len(x), 3, attention.num_heads, -1).permute(1, 2, 0, 3)
    weights = (q @ k.transpose(1, 2) * q.shape[2] ** -0.5).exp() * copies
    attended = weights / weights.sum(dim=2, keepdim=True) @ v
    x = x + attention.proj(attended.transpose(0, 1).flatten(1))
    return x + block.mlp(block.norm2(x))


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_later_attention_counts_a_token_size_to_the_strength_times(method):
    model = fv.reduce_(make("timm-cls"), method, KEEP).double()
    share = sum(ENTERING) / (len(ENTERING) * PATCHES)
    strength = 1 - 0.3 * math.log(1 / share)
    assert 0.5 < strength < 0.95
    with torch.no_grad():
        run = encoded(model, images().double(), record=True)
        before, after = run.blocks[2].stream, run.blocks[3].stream
        for tokens, size, expected in zip(before.tokens, before.size, after.tokens, strict=True):
            copies = torch.cat([torch.ones(1), size**strength])
            assert torch.allclose(block_by_hand(blocks_of(model)[3], tokens, copies), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_without_damping_a_token_counts_as_often_as_it_has_members(method):
    model = fv.reduce_(make("timm-cls"), dataclasses.replace(method, size_damping=0.0), KEEP).double()
    with torch.no_grad():
        run = encoded(model, images().double(), record=True)
        before, after = run.blocks[2].stream, run.blocks[3].stream
        for tokens, size, expected in zip(before.tokens, before.size, after.tokens, strict=True):
            copies = torch.cat([torch.ones(1), size])
            assert torch.allclose(block_by_hand(blocks_of(model)[3], tokens, copies), expected, rtol=0, atol=1e-6)


def test_full_damping_is_attention_without_sizes():
    damped, plain = (
        fv.reduce_(make("timm-cls"), method, KEEP)(images())
        for method in (fv.Ward(size_damping=50.0), fv.Ward(proportional_attention=False))
    )
    assert torch.allclose(damped, plain, atol=1e-5)


def test_a_weak_reduction_is_hardly_damped_and_none_not_at_all():
    shape = family_of(make("timm-cls")).shape()
    plans = [fv.Reduction(fv.Ward(), fv.Keep({1: keep})).plan(shape) for keep in (PATCHES, PATCHES - 1, 4)]
    none, weak, strong = (size_strength(0.3, plan.mean_share) for plan in plans)
    assert none == 1
    assert 0.99 < weak < 1
    assert strong < 0.9


def test_strength_is_never_negative():
    assert size_strength(1.0, 0.001) == 0
    size = torch.tensor([[1.0, 8.0]])
    assert torch.equal(log_size_bias(size, 1, torch.float32, 0.0).flatten(), torch.zeros(3))


def test_a_negative_damping_is_refused():
    with pytest.raises(ValueError, match=r"Ward\.size_damping must be at least 0, got -0\.1"):
        fv.Ward(size_damping=-0.1)


def test_it_is_off_unless_asked_for():
    assert all(method.size_damping == 0 for method in defaults())
