"""Selection by score, at random, and at random in proportion to a score."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from foveate.core import (
    Assignment,
    counter_uniform,
    fuse_rest,
    keep_proportional,
    keep_random,
    keep_topk,
    keep_topk_fuse_rest,
    pool,
    pool_size,
)


@st.composite
def scored(draw: st.DrawFn) -> tuple[Tensor, int]:
    """Scores (B, N) without ties, and a k."""
    batch, n = draw(st.integers(1, 3)), draw(st.integers(1, 8))
    rows = [draw(st.permutations(range(1, n + 1))) for _ in range(batch)]
    return torch.tensor(rows, dtype=torch.float32) / 8, draw(st.integers(0, n))


def best_in_order(score: list[float], k: int) -> list[int]:
    by_score = sorted(range(len(score)), key=lambda i: score[i], reverse=True)
    return sorted(by_score[:k])


def features(batch: int, n: int) -> Tensor:
    return torch.randn(batch, n, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def kept(a: Assignment) -> list[list[int]]:
    return a.src.tolist()


@given(scored())
def test_the_k_largest_stay_in_their_original_order(case):
    score, k = case
    a = keep_topk(score, k)
    assert kept(a) == [best_in_order(row, k) for row in score.tolist()]
    assert (a.num_in, a.num_out) == (score.shape[1], k)


def test_keeping_none_leaves_nothing_and_keeping_all_changes_nothing():
    x = features(2, 5)
    score = x[..., 0]
    assert pool(x, keep_topk(score, 0)).shape == (2, 0, 3)
    assert torch.equal(pool(x, keep_topk(score, 5)), x)


@pytest.mark.parametrize("keep", [keep_topk, keep_topk_fuse_rest])
@pytest.mark.parametrize("k", [-1, 6])
def test_a_k_out_of_range_is_refused_with_the_range(keep, k):
    with pytest.raises(ValueError, match=f"0 <= k <= 5 .*got k={k}"):
        keep(torch.rand(2, 5), k)


@given(scored(), st.booleans())
def test_fusing_the_rest_equals_plain_loops(case, normalize):
    score, k = case
    batch, n = score.shape
    x = features(batch, n)
    expected = torch.zeros(batch, k + 1, 3, dtype=torch.float64)
    for image in range(batch):
        best = best_in_order(score[image].tolist(), k)
        rest = [i for i in range(n) if i not in best]
        for slot, i in enumerate(best):
            expected[image, slot] = x[image, i]
        total = sum(float(score[image, i]) for i in rest) if normalize else 1.0
        for i in rest:
            expected[image, k] += float(score[image, i]) / total * x[image, i]
    y = pool(x, keep_topk_fuse_rest(score, k, normalize=normalize))
    assert torch.allclose(y, expected, atol=1e-6)


@given(scored(), st.booleans())
def test_fusing_loses_no_patch(case, normalize):
    score, k = case
    batch, n = score.shape
    size = pool_size(torch.ones(batch, n), keep_topk_fuse_rest(score, k, normalize))
    assert torch.equal(size, torch.tensor([[1.0] * k + [float(n - k)]] * batch))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_token_of_score_zero_is_fused_and_not_forgotten(dtype):
    score = torch.tensor([[0.5, 0.0, 0.0, 0.0]], dtype=dtype)
    assert pool_size(torch.ones(1, 4), keep_topk_fuse_rest(score, 1)).tolist() == [[1.0, 3.0]]


def test_a_slot_whose_scores_are_all_zero_is_a_plain_mean():
    x = features(1, 4)
    fused = pool(x, keep_topk_fuse_rest(torch.tensor([[0.5, 0.0, 0.0, 0.0]]), 1, normalize=True))[:, 1]
    assert torch.allclose(fused, x[:, 1:].mean(dim=1), atol=1e-6)


def test_counter_numbers_lie_between_zero_and_one_with_mean_one_half():
    u = torch.cat([counter_uniform(10_000, seed, stream) for seed in (0, 1, 12345) for stream in (0, 7)])
    assert u.dtype is torch.float32
    assert ((u > 0) & (u < 1)).all()
    assert abs(float(u.mean()) - 0.5) < 0.01
    assert abs(float(u.var()) - 1 / 12) < 0.005


def test_counter_numbers_are_fixed_by_seed_and_stream():
    assert torch.equal(counter_uniform(50, 3, 4), counter_uniform(50, 3, 4))
    assert torch.equal(counter_uniform(50, 3, 4)[:20], counter_uniform(20, 3, 4))
    for other in (counter_uniform(50, 4, 4), counter_uniform(50, 3, 5), counter_uniform(50, 4, 3)):
        assert not (counter_uniform(50, 3, 4) == other).any()


def test_not_one_in_sixty_million_counter_numbers_is_zero_or_one():
    extremes = torch.stack([torch.stack(counter_uniform(2**18, 0, stream).aminmax()) for stream in range(256)])
    assert extremes.min() > 0
    assert extremes.max() < 1


def test_neighboring_seeds_do_not_give_one_sequence_shifted():
    for seed in range(5):
        assert not torch.equal(counter_uniform(100, seed, 0)[1:], counter_uniform(100, seed + 1, 0)[:-1])


def test_a_random_draw_is_reproducible_and_the_same_for_all_images():
    first, again = keep_random(3, 20, 8, seed=1, stream=2), keep_random(3, 20, 8, seed=1, stream=2)
    assert kept(first) == kept(again)
    assert kept(first) == kept(keep_random(1, 20, 8, seed=1, stream=2)) * 3


def test_random_draws_differ_between_seeds_and_between_streams():
    draws = {tuple(kept(keep_random(1, 50, 25, seed, stream))[0]) for seed in range(5) for stream in range(5)}
    assert len(draws) == 25


@pytest.mark.parametrize("vary", ["seed", "stream"])
def test_every_token_is_drawn_about_equally_often(vary):
    n, k, draws = 10, 3, 2000
    times = torch.zeros(n)
    for number in range(draws):
        index = keep_random(1, n, k, **{"seed": 0, "stream": 0, vary: number}).src[0]
        assert len(set(index.tolist())) == k
        times[index] += 1
    assert torch.allclose(times / draws, torch.full((n,), k / n), atol=0.05)


@given(st.integers(0, 10_000), st.integers(0, 11), st.integers(1, 12), st.data())
def test_a_proportional_draw_takes_k_different_tokens_in_order(seed, stream, n, data):
    k = data.draw(st.integers(0, n))
    score = torch.rand(2, n, generator=torch.Generator().manual_seed(seed)) + 0.01
    index = keep_proportional(score, k, seed, stream).src
    assert index.shape == (2, k)
    assert all(row == sorted(set(row)) for row in index.tolist())
    assert torch.equal(index, keep_proportional(score, k, seed, stream).src)


def test_a_single_proportional_draw_has_chances_in_proportion_to_the_score():
    score = torch.tensor([[1.0, 2.0, 0.0, 3.0, 4.0]])
    times, draws = torch.zeros(5), 3000
    for seed in range(draws):
        times[keep_proportional(score, 1, seed, stream=0).src[0]] += 1
    assert torch.allclose(times / draws, score[0] / score.sum(), atol=0.04)


def test_a_higher_score_is_kept_more_often():
    score = torch.tensor([[0.1, 0.4, 1.0, 3.0, 9.0]])
    times = torch.zeros(5)
    for seed in range(1000):
        times[keep_proportional(score, 2, seed, stream=0).src[0]] += 1
    assert (times.diff() > 0).all()


@given(st.integers(0, 10_000))
def test_a_token_of_score_zero_waits_until_the_others_are_kept(seed):
    score = torch.tensor([[0.0, 1.0, 0.0, 1e-6, 0.0, 5.0]])
    assert set(kept(keep_proportional(score, 2, seed, 0))[0]) < {1, 3, 5}
    assert kept(keep_proportional(score, 3, seed, 0)) == [[1, 3, 5]]
    assert set(kept(keep_proportional(score, 4, seed, 0))[0]) > {1, 3, 5}


def test_a_token_of_score_zero_waits_even_with_the_luckiest_noise(monkeypatch):
    largest = float(torch.nextafter(torch.tensor(1.0), torch.tensor(0.0)))
    smallest = torch.finfo(torch.float32).tiny
    noise = torch.tensor([largest, smallest, 0.5])
    monkeypatch.setattr("foveate.core.select.counter_uniform", lambda *_: noise)
    assert kept(keep_proportional(torch.tensor([[0.0, 1.0, 1.0]]), 2, seed=0, stream=0)) == [[1, 2]]


def test_a_proportional_draw_of_an_image_does_not_depend_on_its_batch():
    score = torch.rand(4, 30, generator=torch.Generator().manual_seed(0))
    together = keep_proportional(score, 9, seed=5, stream=1).src
    for image in range(4):
        assert torch.equal(keep_proportional(score[image : image + 1], 9, 5, 1).src[0], together[image])


def test_scores_that_are_not_numbers_still_give_valid_positions():
    score = torch.full((2, 6), torch.nan)
    x = features(2, 6)
    assert pool(x, keep_topk(score, 3)).shape == (2, 3, 3)
    fused = pool(x, keep_topk_fuse_rest(score, 3))
    assert fused[:, 3].isnan().all()


@pytest.mark.parametrize("normalize", [False, True])
def test_any_selection_can_fuse_what_it_leaves(normalize):
    generator = torch.Generator().manual_seed(0)
    x, weight = torch.randn(2, 9, 3, generator=generator), torch.rand(2, 9, generator=generator)
    for kept in (keep_random(2, 9, 4, seed=1, stream=2), keep_proportional(weight, 4, seed=1, stream=2)):
        y = pool(x, fuse_rest(kept.src, weight, normalize))
        assert torch.equal(y[:, :4], pool(x, kept))
        for image in range(2):
            rest = [i for i in range(9) if i not in kept.src[image].tolist()]
            fused = sum(weight[image, i] * x[image, i] for i in rest)
            scale = sum(weight[image, i] for i in rest) if normalize else 1.0
            assert torch.allclose(y[image, 4], fused / scale, atol=1e-6)
