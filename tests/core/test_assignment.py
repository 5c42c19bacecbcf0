"""Laws of Assignment, held against plain loops over edges."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from assignments import KINDS, cases, chains, edge_list, max_by_loops, pool_by_loops, tokens
from foveate.core import (
    Assignment,
    Clusters,
    cluster_medoids,
    compose,
    joined_means,
    partition,
    pool,
    pool_at_mean_norm,
    pool_size,
    selection,
    slot_weights,
    take,
    unpool,
    weighted_means,
)

pair_laws = settings(max_examples=10, deadline=None)  # run for every pair of kinds


def close(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and torch.allclose(a, b, rtol=1e-5, atol=1e-5)


def windows_over(n: int, kernel: int, stride: int, batch: int) -> Assignment:
    """Sliding means; every token lies in at least one window."""
    starts = [*range(0, n - kernel, stride), n - kernel]
    src = [i for start in starts for i in range(start, start + kernel)]
    dst = [slot for slot in range(len(starts)) for _ in range(kernel)]
    weight = torch.full((batch, len(src)), 1 / kernel)
    return Assignment(torch.tensor(src).expand(batch, -1), torch.tensor(dst).expand(batch, -1), weight, n, len(starts))


@given(cases())
def test_pool_equals_plain_loops(case):
    x, a = case
    assert close(pool(x, a), pool_by_loops(x, a))


@given(cases())
def test_pooling_by_maximum_equals_plain_loops(case):
    x, a = case
    assert torch.equal(pool(x, a, reduce="max"), max_by_loops(x, a))


def test_an_edge_of_weight_zero_is_still_an_edge():
    """It adds nothing to the sum; the maximum, sizes, traces and features that are spread back know it."""
    x = tokens(1, 3)
    a = partition(torch.tensor([[0, 0, 1]]), 2, torch.tensor([[1.0, 0.0, 0.0]]))
    assert torch.equal(pool(x, a), torch.stack([x[0, 0], torch.zeros(3)]).unsqueeze(0))
    assert torch.equal(pool(x, a, reduce="max")[:, 1], x[:, 2])
    assert pool_size(torch.ones(1, 3), a).tolist() == [[2.0, 1.0]]
    y = tokens(1, 2, seed=5)
    assert torch.equal(unpool(y, a, fill=x), y[:, [0, 0, 1]])
    twice = compose(a, partition(torch.tensor([[0, 0]]), 1, torch.tensor([[0.0, 0.0]])), batch=1)
    assert pool_size(torch.ones(1, 3), twice).tolist() == [[3.0]]
    assert torch.equal(unpool(y[:, :1], twice, fill=x), y[:, [0, 0, 0]])


def test_padding_is_no_edge_whatever_its_weight():
    x = tokens(1, 2)
    a = Assignment(
        None, torch.tensor([[0, 0]]), torch.tensor([[1.0, math.nan]]), 2, 1, present=torch.tensor([[1, 0]]) > 0
    )
    assert torch.equal(pool(x, a), x[:, :1])
    assert torch.equal(pool(x, a, reduce="max"), x[:, :1])
    assert slot_weights(a, 1).tolist() == [[1.0]]
    assert pool_size(torch.ones(1, 2), a).tolist() == [[1.0]]
    assert torch.equal(unpool(x[:, :1], a, fill=x), x)
    assert compose(a, selection(torch.tensor([[0]]), 1), 1).edges(1).present.tolist() == [[True, False]]


def test_tokens_that_join_without_weight_stay_members():
    a = cluster_medoids(Clusters(torch.tensor([[0, 0, 1, 1]]), torch.tensor([[1, 2]])))
    src, dst, weight, present = a.edges(1)
    assert present.all()
    assert dict(zip(src[0].tolist(), dst[0].tolist(), strict=True)) == {0: 0, 1: 0, 2: 1, 3: 1}
    assert dict(zip(src[0].tolist(), weight[0].tolist(), strict=True)) == {0: 0.0, 1: 1.0, 2: 1.0, 3: 0.0}
    assert pool_size(torch.ones(1, 4), compose(a, selection(torch.tensor([[1]]), 2), 1)).tolist() == [[2.0]]


@given(cases())
def test_an_image_gets_the_same_result_alone_and_in_a_batch(case):
    x, a = case
    whole = pool(x, a)
    for image in range(x.shape[0]):
        own = slice(image, image + 1)
        src, dst, weight, present = (None if t is None else t[own] for t in (a.src, a.dst, a.weight, a.present))
        alone = Assignment(src, dst, weight, a.num_in, a.num_out, present=present)
        assert torch.equal(pool(x[image : image + 1], alone), whole[image : image + 1])


@given(cases(), st.integers(0, 999))
def test_a_token_with_several_edges_shares_its_size_among_them(case, seed):
    x, a = case
    size = tokens(x.shape[0], a.num_in, seed, channels=1).abs().squeeze(-1)
    expected = size.new_zeros(x.shape[0], a.num_out)
    for image in range(x.shape[0]):
        edges = edge_list(a, image)
        for token, slot, _ in edges:
            expected[image, slot] += size[image, token] / sum(other == token for other, _, _ in edges)
    assert close(pool_size(size, a), expected)


@given(cases("partition", "means", "weighted means"))
def test_sizes_of_a_partition_sum_to_the_number_of_patches(case):
    x, a = case
    size = pool_size(torch.ones(x.shape[:2]), a)
    assert torch.equal(size.sum(dim=1), torch.full((x.shape[0],), float(a.num_in)))


@pytest.mark.parametrize(("n", "kernel", "stride"), [(8, 3, 2), (9, 3, 2), (7, 3, 1), (10, 4, 3), (5, 5, 1)])
def test_sizes_are_conserved_by_overlapping_windows(n, kernel, stride):
    a = windows_over(n, kernel, stride, batch=2)
    size = tokens(2, n, channels=1).abs().squeeze(-1)
    assert close(pool_size(size, a).sum(dim=1), size.sum(dim=1))


@given(cases("means", "weighted means"))
def test_weights_of_means_sum_to_one_in_every_slot_that_has_members(case):
    x, a = case
    total = slot_weights(a, x.shape[0])
    for image in range(x.shape[0]):
        members = {slot for _, slot, _ in edge_list(a, image)}
        expected = torch.tensor([float(slot in members) for slot in range(a.num_out)])
        assert close(total[image], expected)


@given(cases())
def test_slot_weights_equal_pooling_a_constant_one(case):
    x, a = case
    assert close(slot_weights(a, x.shape[0]).double(), pool_by_loops(torch.ones_like(x), a)[..., 0])


@pytest.mark.parametrize("then", KINDS)
@pytest.mark.parametrize("first", KINDS)
def test_a_composition_pools_like_its_two_steps(first, then):
    @pair_laws
    @given(chains(first, then))
    def law(chain):
        x, a, b = chain
        both = compose(a, b, x.shape[0])
        assert (both.num_in, both.num_out) == (a.num_in, b.num_out)
        assert close(pool(x, both), pool(pool(x, a), b))

    law()


@given(st.data(), st.sampled_from(["partition", "means"]), st.sampled_from(["partition", "weighted means"]))
def test_composed_partitions_carry_sizes_like_their_two_steps(data, first, then):
    x, a, b = data.draw(chains(first, then))
    size = x[..., 0].abs()
    assert close(pool_size(size, compose(a, b, x.shape[0])), pool_size(pool_size(size, a), b))


def test_composing_with_a_selection_of_nothing_leaves_no_slot():
    nothing = selection(torch.zeros(2, 0, dtype=torch.long), 3)
    both = compose(selection(torch.tensor([[0, 1, 2], [4, 1, 0]]), 5), nothing, batch=2)
    assert pool(tokens(2, 5), both).shape == (2, 0, 3)


def test_composing_steps_that_do_not_meet_is_refused():
    with pytest.raises(ValueError, match="ends in 2 slots, the second starts at 3"):
        compose(selection(torch.tensor([[0, 1]]), 5), selection(torch.tensor([[0]]), 3), batch=1)


@given(cases("selection", "partition", "weighted partition", "means", "weighted means"), st.integers(0, 999))
def test_unpool_gives_a_token_its_slot_and_a_dropped_token_its_fill(case, seed):
    x, a = case
    y, fill = tokens(x.shape[0], a.num_out, seed), tokens(x.shape[0], a.num_in, seed + 1)
    filled, zeros = unpool(y, a, fill=fill), unpool(y, a)
    for image in range(x.shape[0]):
        slot_of = {token: slot for token, slot, _ in edge_list(a, image)}
        for token in range(a.num_in):
            dropped = token not in slot_of
            assert torch.equal(filled[image, token], fill[image, token] if dropped else y[image, slot_of[token]])
            if dropped:
                assert torch.equal(zeros[image, token], torch.zeros(3).double())


@pytest.mark.parametrize(("n", "kernel", "stride"), [(8, 3, 2), (9, 3, 2), (10, 4, 3)])
def test_unpool_gives_a_token_in_overlapping_windows_the_mean_of_its_windows(n, kernel, stride):
    a = windows_over(n, kernel, stride, batch=2)
    y = tokens(2, a.num_out)
    spread = unpool(y, a)
    for token in range(n):
        mine = [slot for other, slot, _ in edge_list(a, 0) if other == token]
        assert close(spread[:, token], y[:, mine].mean(dim=1))


@given(cases("means"))
def test_spreading_means_back_keeps_the_mean_of_every_cluster(case):
    x, a = case
    spread = unpool(pool(x, a), a)
    for image in range(x.shape[0]):
        for slot in a.dst[image].unique():
            members = a.dst[image] == slot
            assert close(spread[image, members].mean(dim=0), x[image, members].mean(dim=0))


@given(cases("means", "weighted means"), st.integers(0, 999))
def test_pooling_what_was_spread_gives_the_means_back(case, seed):
    x, a = case
    y = tokens(x.shape[0], a.num_out, seed)
    again = pool(unpool(y, a), a)
    for image in range(x.shape[0]):
        for slot in a.dst[image].unique():  # a slot without members has nowhere to be spread to
            assert close(again[image, slot], y[image, slot])


@given(cases(), st.integers(0, 3))
def test_behind_a_prefix_the_prefix_is_untouched_and_the_rest_is_as_before(case, prefix):
    x, a = case
    front = tokens(x.shape[0], prefix, seed=1) if prefix else x[:, :0]
    shifted = a.behind_prefix(prefix)
    y = pool(torch.cat([front, x], dim=1), shifted)
    assert torch.equal(y[:, :prefix], front)
    assert torch.equal(y[:, prefix:], pool(x, a))
    assert (shifted.num_in, shifted.num_out) == (a.num_in + prefix, a.num_out + prefix)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("n", [3, 7, 100, 3000])
def test_the_mean_of_equal_half_precision_tokens_is_that_token(n, dtype):
    one = torch.randn(1, 1, 64, generator=torch.Generator().manual_seed(0)).to(dtype)
    pooled = pool(one.expand(1, n, 64), weighted_means(torch.zeros(1, n, dtype=torch.long), 1))
    assert pooled.dtype is dtype
    assert torch.equal(pooled, one)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_sum_of_half_precision_tokens_does_not_stall(dtype):
    # adding 1 to 256 in bfloat16 (2048 in float16) changes nothing, so a sum kept in half precision would stop there
    ones = torch.ones(1, 4096, 2, dtype=dtype)
    assert torch.equal(pool(ones, partition(torch.zeros(1, 4096, dtype=torch.long), 1)), ones[:, :1] * 4096)


@given(cases("selection"))
def test_take_gives_the_named_rows_of_each_image(case):
    x, a = case
    expected = [[x[image, i].tolist() for i in a.src[image]] for image in range(x.shape[0])]
    assert take(x, a.src).tolist() == expected


@pytest.mark.parametrize(
    ("src", "dst", "weight", "words"),
    [
        ((2, 3), (2, 4), None, "share one"),
        ((2, 3), (1, 3), None, "share one"),
        ((2, 3), None, (2, 2), "share one"),
        (None, (2, 4), None, "without src needs 5 edges"),
        ((2, 4), None, None, "without dst needs 3 edges"),
        (None, None, (2, 4), "without src needs 5 edges"),
    ],
)
def test_mismatched_fields_are_refused(src, dst, weight, words):
    def field(shape: tuple[int, int] | None) -> Tensor | None:
        return None if shape is None else torch.zeros(shape, dtype=torch.long)

    with pytest.raises(ValueError, match=words):
        Assignment(field(src), field(dst), field(weight), num_in=5, num_out=3)


def test_membership_is_a_bool_of_the_edges_shape():
    index = torch.zeros(1, 2, dtype=torch.long)
    with pytest.raises(ValueError, match=r"share one \(B, E\) shape"):
        Assignment(index, None, None, 5, 2, present=torch.ones(1, 3, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"present must be a bool tensor, got torch\.float32"):
        Assignment(index, None, None, 5, 2, present=torch.ones(1, 2))


def test_an_identity_that_changes_the_number_of_tokens_is_refused():
    with pytest.raises(ValueError, match="5"):
        Assignment(None, None, None, num_in=5, num_out=3)


@pytest.mark.parametrize("shape", [(1, 4, 2), (1, 6, 2), (5, 2)])
def test_pooling_another_number_of_tokens_is_refused(shape):
    with pytest.raises(ValueError, match="5 input tokens"):
        pool(torch.zeros(shape), selection(torch.tensor([[0, 1]]), 5))


@pytest.mark.parametrize("shape", [(1, 1, 2), (1, 5, 2), (2, 2)])
def test_spreading_another_number_of_slots_is_refused(shape):
    with pytest.raises(ValueError, match="2 output slots"):
        unpool(torch.zeros(shape), selection(torch.tensor([[0, 1]]), 5))


@pytest.mark.parametrize("width", [8, 192, 193])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_token_that_nobody_joins_stays_as_it_is_and_a_mean_has_the_mean_norm(width, dtype):
    x = tokens(2, 41, 0, width).to(dtype)
    joining, slot = torch.tensor([[1, 4, 9, 30]] * 2), torch.tensor([[0, 0, 7, 20]] * 2)
    first = torch.tensor([[i for i in range(40) if i not in (1, 4, 9, 30)]] * 2)
    y = pool_at_mean_norm(x, joined_means(first, joining, slot, 40), prefix=1)
    alone = [j for j in range(36) if j not in (0, 7, 20)]
    assert torch.equal(y[:, 0], x[:, 0])
    assert torch.equal(y[:, 1:][:, alone], x[:, 1:][:, first[0, alone]])
    for j, members in ((0, [0, 1, 4]), (7, [9, int(first[0, 7])]), (20, [30, int(first[0, 20])])):
        wanted = x[:, 1:][:, members].float().norm(dim=-1).mean(dim=1)
        torch.testing.assert_close(y[:, 1 + j].float().norm(dim=-1), wanted, rtol=1e-2, atol=0)
