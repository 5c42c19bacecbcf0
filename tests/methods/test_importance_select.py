"""Importance sampling: a draw fixed by its seed, without replacement, in proportion to attention received."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import foveate as fv
from foveate import ImportanceSelect
from foveate.methods import BlockView
from zoo import images, make

BATCH, PREFIX, N, CHANNELS = 3, 2, 9, 4


def view_of(received: Tensor, block: int = 1) -> BlockView:
    generator = torch.Generator().manual_seed(0)
    batch, n = received.shape
    tokens = torch.randn(batch, PREFIX + n, CHANNELS, generator=generator)
    return BlockView(tokens, PREFIX, None, block, has_cls=True, attn_received=received)


@pytest.fixture
def received() -> Tensor:
    return torch.rand(BATCH, N, generator=torch.Generator().manual_seed(1))


def drawn(received: Tensor, keep: int, seed: int, block: int = 1) -> list[list[int]]:
    return ImportanceSelect(seed).assign(view_of(received, block), keep).src.tolist()


@pytest.mark.parametrize("keep", [0, 1, 4, N])
def test_tokens_drawn_are_distinct_in_order_and_as_they_are(received, keep):
    view, method = view_of(received), ImportanceSelect(seed=2)
    rows = drawn(received, keep, seed=2)
    assert all(row == sorted(set(row)) and len(row) == keep for row in rows)
    out = method.combine(view, method.assign(view, keep))
    for image, row in enumerate(rows):
        assert torch.equal(out[image], torch.cat([view.tokens[image, :PREFIX], view.patches[image, row]]))


def test_the_seed_and_the_block_fix_the_draw(received):
    assert drawn(received, 4, seed=7) == drawn(received, 4, seed=7)
    assert len({repr(drawn(received, 4, seed)) for seed in range(6)}) > 3
    assert len({repr(drawn(received, 4, 0, block)) for block in range(6)}) > 3
    assert ImportanceSelect() == ImportanceSelect(seed=0)


def test_a_draw_depends_on_the_images_own_scores_alone(received):
    together = drawn(received, 4, seed=3)
    assert together == [drawn(received[i : i + 1], 4, seed=3)[0] for i in range(BATCH)]
    assert drawn(received[:1].expand(2, N), 4, seed=3) == [together[0]] * 2, "equal images, equal draws"
    assert drawn(5 * received, 4, seed=3) == together, "only relations of scores matter"


def test_over_many_seeds_chances_follow_the_scores():
    chance = [0.1, 0.2, 0.3, 0.4]
    received, seeds = torch.tensor([chance]), 3000
    first = [drawn(received, 1, seed)[0][0] for seed in range(seeds)]
    for token, expected in enumerate(chance):
        assert first.count(token) / seeds == pytest.approx(expected, abs=0.03)  # three deviations: 0.027 at most


def test_over_many_seeds_a_second_draw_follows_what_the_first_left():
    chance = [0.1, 0.2, 0.3, 0.4]
    received, seeds = torch.tensor([chance]), 3000
    pairs = [drawn(received, 2, seed)[0] for seed in range(seeds)]
    for token, own in enumerate(chance):
        second = sum(p * own / (1 - p) for other, p in enumerate(chance) if other != token)
        assert sum(token in pair for pair in pairs) / seeds == pytest.approx(own + second, abs=0.03)


def test_a_token_nobody_attends_to_is_drawn_last():
    received = torch.tensor([[0.5, 0.0, 0.2, 0.0, 0.3]])
    for seed in range(50):
        assert drawn(received, 3, seed) == [[0, 2, 4]]
        assert set(drawn(received, 4, seed)[0]) > {0, 2, 4}


def test_it_reads_attention_received_and_carries_no_sizes():
    for has_cls in (False, True):
        assert ImportanceSelect().needs(has_cls) == {"attn_received"}
    assert not ImportanceSelect().proportional_attention


def test_keeping_no_patch_leaves_the_class_token_alone():
    model = fv.reduce_(make("timm-cls"), ImportanceSelect(), fv.Keep({1: 10, 2: 0}))
    with torch.no_grad():
        assert fv.trace(model, images()).counts == (36, 10, 0, 0)
        assert model.forward_features(images()).shape == (3, 1, 32)
        assert model(images()).isfinite().all()


@pytest.mark.parametrize("family", ["timm-mean", "timm-map"])
def test_it_works_without_a_class_token_and_is_a_function(family):
    model = fv.reduce_(make(family), ImportanceSelect(), fv.Keep({1: 10, 2: 3}))
    with torch.no_grad():
        assert fv.trace(model, images()).counts == (36, 10, 3, 3)
        assert torch.equal(model(images()), model(images()))
