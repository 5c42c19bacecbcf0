"""Ward's agglomeration, greedy and in rounds, held against explicit clusters whose costs are computed afresh."""

from __future__ import annotations

from itertools import combinations

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor

from foveate.core import Clusters, cluster_means, pool, ward_greedy, ward_rounds
from foveate.core.cluster import LEAST_WEIGHT
from foveate.core.ward import merges_by_round

Rows = list[list[float]]
both = pytest.mark.parametrize("ward", [ward_greedy, ward_rounds])


def center(x: Rows, w: list[float], cluster: list[int]) -> tuple[list[float], float]:
    total = sum(w[i] for i in cluster)
    return [sum(w[i] * x[i][c] for i in cluster) / total for c in range(len(x[0]))], total


def merge_cost(x: Rows, w: list[float], a: list[int], b: list[int]) -> float:
    """w_a w_b / (w_a + w_b) |c_a - c_b|^2."""
    (ca, wa), (cb, wb) = center(x, w, a), center(x, w, b)
    return wa * wb / (wa + wb) * sum((p - q) ** 2 for p, q in zip(ca, cb, strict=True))


def greedy_by_loops(x: Rows, w: list[float], keep: int) -> list[list[int]]:
    clusters = [[i] for i in range(len(x))]
    while len(clusters) > keep:
        a, b = min(combinations(clusters, 2), key=lambda pair: merge_cost(x, w, *pair))
        clusters = [sorted(a + b) if c is a else c for c in clusters if c is not b]
    return clusters


def round_by_loops(x: Rows, w: list[float], clusters: list[list[int]], merges: int) -> list[list[int]]:
    """Even places propose to the odd place that is cheapest; the cheapest ``merges`` proposals are accepted."""
    sources, targets = range(0, len(clusters), 2), range(1, len(clusters), 2)
    proposals = []
    for s in sources:
        costs = {t: merge_cost(x, w, clusters[s], clusters[t]) for t in targets}
        best = min(costs, key=costs.__getitem__)
        proposals.append((costs[best], s, best))
    joined = [list(cluster) for cluster in clusters]
    accepted = sorted(proposals)[:merges]
    for _, s, t in accepted:
        joined[t] += clusters[s]
    gone = [s for _, s, _ in accepted]
    return [sorted(cluster) for place, cluster in enumerate(joined) if place not in gone]


@st.composite
def cases(draw: st.DrawFn, equals: bool = False, most: int = 10) -> tuple[Tensor, Tensor, int]:
    """Tokens (B, N, 3), weights (B, N), and how many are to be left; few values of tokens if ``equals``."""
    batch, n = draw(st.integers(1, 3)), draw(st.integers(1, most))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 9999)))
    x = torch.randn(batch, n, 3, generator=generator, dtype=torch.float64)
    x = x.clamp(-0.5, 0.5).round() if equals else x
    weight = 0.05 + torch.rand(batch, n, generator=generator, dtype=torch.float64)
    return x, weight, draw(st.integers(1, n))


def as_lists(clusters: Clusters, image: int) -> list[list[int]]:
    """Members of each cluster, in the order of the slots."""
    owner = clusters.owner[image].tolist()
    return [[i for i, o in enumerate(owner) if o == slot] for slot in range(clusters.member.shape[1])]


def check_partition(clusters: Clusters, keep: int) -> None:
    """K clusters, none empty; representatives are in their own clusters, and in order."""
    assert clusters.member.shape[1] == keep
    for image, member in enumerate(clusters.member.tolist()):
        lists = as_lists(clusters, image)
        assert sum(map(len, lists)) == clusters.owner.shape[1]
        assert all(m in cluster for m, cluster in zip(member, lists, strict=True))
        assert member == sorted(member)


@given(cases())
def test_greedy_equals_plain_loops(case):
    x, weight, keep = case
    clusters = ward_greedy(x, keep, weight)
    for image in range(x.shape[0]):
        expected = greedy_by_loops(x[image].tolist(), weight[image].tolist(), keep)
        assert as_lists(clusters, image) == expected
        assert clusters.member[image].tolist() == [cluster[0] for cluster in expected]


@given(st.integers(0, 999))
def test_greedy_equals_plain_loops_for_every_number_of_clusters(seed):
    x = torch.randn(1, 8, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    for keep in range(1, 9):
        assert as_lists(ward_greedy(x, keep), 0) == greedy_by_loops(x[0].tolist(), [1.0] * 8, keep)


@pytest.mark.parametrize("equals", [False, True])
@given(data=st.data())
def test_each_greedy_merge_is_the_cheapest_there_is(equals, data):
    x, weight, _ = data.draw(cases(equals, most=8))
    n = x.shape[1]
    for image in range(x.shape[0]):
        rows, w = x[image].tolist(), [v / max(weight[image].tolist()) for v in weight[image].tolist()]
        for keep in range(1, n):
            before, after = (as_lists(ward_greedy(x, k, weight), image) for k in (keep + 1, keep))
            merged = [cluster for cluster in before if cluster not in after]
            assert len(merged) == 2
            assert sorted(merged[0] + merged[1]) in after
            cheapest = min(merge_cost(rows, w, *pair) for pair in combinations(before, 2))
            assert merge_cost(rows, w, *merged) <= cheapest + 1e-9


@given(cases(equals=True))
def test_greedy_merges_equal_tokens_before_any_others(case):
    x, weight, keep = case
    clusters = ward_greedy(x, keep, weight)
    check_partition(clusters, keep)
    for image, rows in enumerate(x.tolist()):
        values = [{tuple(rows[i]) for i in cluster} for cluster in as_lists(clusters, image)]
        if keep >= len({tuple(row) for row in rows}):
            assert all(len(value) == 1 for value in values)


@given(cases(most=14), st.integers(1, 5))
def test_rounds_equal_plain_loops(case, rounds):
    x, weight, keep = case
    clusters = ward_rounds(x, keep, weight, rounds)
    for image in range(x.shape[0]):
        expected = [[i] for i in range(x.shape[1])]
        for merges in merges_by_round(x.shape[1], keep, rounds):
            expected = round_by_loops(x[image].tolist(), weight[image].tolist(), expected, merges)
        assert as_lists(clusters, image) == expected


@given(cases(most=13))
def test_a_single_round_merges_even_places_into_odd_ones(case):
    x, weight, keep = case
    n = x.shape[1]
    assume(1 <= n - keep <= n // 2)
    clusters = ward_rounds(x, keep, weight, rounds=1)
    for image in range(x.shape[0]):
        alone = [[i] for i in range(n)]
        assert as_lists(clusters, image) == round_by_loops(x[image].tolist(), weight[image].tolist(), alone, n - keep)
        assert all(i % 2 == 0 for i in range(n) if i not in clusters.member[image].tolist())


@both
@given(case=cases(most=14), equal=cases(equals=True, most=14))
def test_clusters_are_a_partition_in_order(ward, case, equal):
    for x, weight, keep in (case, equal):
        check_partition(ward(x, keep, weight), keep)
        check_partition(ward(torch.ones_like(x), keep, weight), keep)


@both
@given(case=cases())
def test_keeping_all_changes_nothing_and_keeping_one_merges_all(ward, case):
    x, weight, _ = case
    every = ward(x, x.shape[1], weight)
    place = torch.arange(x.shape[1]).expand(weight.shape)
    assert torch.equal(every.owner, place)
    assert torch.equal(every.member, place)
    assert torch.equal(pool(x, cluster_means(every, None, weight)), x)
    assert not ward(x, 1, weight).owner.any()


@both
@given(case=cases(most=14))
def test_totals_are_conserved(ward, case):
    x, weight, keep = case
    a = cluster_means(ward(x, keep, weight), weight)
    assert torch.allclose(a.sizes.sum(dim=1), weight.sum(dim=1))
    total = (weight.unsqueeze(-1) * x).sum(dim=1)
    assert torch.allclose((a.sizes.unsqueeze(-1) * pool(x, a)).sum(dim=1), total)
    counts = cluster_means(ward(x, keep, weight), None, weight).sizes
    assert (counts.sum(dim=1) == x.shape[1]).all()


@both
@given(case=cases(), factor=st.sampled_from([1e-20, 1 / 8, 3.0, 1e9]))
def test_only_relations_of_weights_matter(ward, case, factor):
    x, weight, keep = case
    assert torch.equal(ward(x, keep, factor * weight).owner, ward(x, keep, weight).owner)
    assert torch.equal(ward(x, keep, torch.full_like(weight, factor)).owner, ward(x, keep).owner)


@given(cases(), st.integers(0, 9))
def test_a_weight_of_zero_counts_as_next_to_nothing(case, which):
    x, weight, keep = case
    assume(x.shape[1] > 1)
    which = which % x.shape[1]
    weight[:, which] = 0
    clusters = ward_greedy(x, keep, weight)
    for image in range(x.shape[0]):
        w = weight[image].tolist()
        w[which] = LEAST_WEIGHT * max(w)
        assert as_lists(clusters, image) == greedy_by_loops(x[image].tolist(), w, keep)


@both
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_weights_may_all_be_zero(ward, dtype):
    x = torch.randn(2, 12, 4, generator=torch.Generator().manual_seed(0)).to(dtype)
    for keep in (1, 5, 11):
        check_partition(ward(x, keep, torch.zeros(2, 12, dtype=dtype)), keep)


@both
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_tokens_are_merged_in_single_precision(ward, dtype):
    x = (200 * torch.randn(2, 16, 64, generator=torch.Generator().manual_seed(2))).to(dtype)  # squares overflow float16
    for keep in (1, 6):
        assert torch.equal(ward(x, keep).owner, ward(x.float(), keep).owner)


@both
def test_autocast_changes_no_cluster(ward):
    x = 3 + torch.randn(1, 64, 48, generator=torch.Generator().manual_seed(0))
    expected = ward(x, 16).owner
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(ward(x, 16).owner, expected)


@both
def test_an_image_is_clustered_alike_alone_and_in_a_batch(ward):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(4, 21, 4, generator=generator, dtype=torch.float64)
    weight = torch.rand(4, 21, generator=generator)
    for keep in (1, 7, 15):
        together = ward(x, keep, weight)
        for i in range(4):
            alone = ward(x[i : i + 1], keep, weight[i : i + 1])
            assert torch.equal(alone.owner[0], together.owner[i])
            assert torch.equal(alone.member[0], together.member[i])


@both
def test_indices_need_no_gradient_and_pooling_has_one(ward):
    x = torch.randn(2, 9, 3, generator=torch.Generator().manual_seed(3), dtype=torch.float64, requires_grad=True)
    clusters = ward(x, 4, x.exp().sum(dim=-1))
    assert not clusters.owner.requires_grad
    pool(x, cluster_means(clusters)).sum().backward()
    count = torch.zeros(2, 4).scatter_add(1, clusters.owner, torch.ones(2, 9))
    share = (1 / count.gather(1, clusters.owner)).unsqueeze(-1).expand(x.shape)
    assert torch.allclose(x.grad, share.double(), atol=1e-6)


@both
@pytest.mark.parametrize("keep", [0, 6])
def test_a_number_of_clusters_out_of_range_is_refused(ward, keep):
    with pytest.raises(ValueError, match=f"of 5 tokens needs 1 <= keep <= 5, got keep={keep}"):
        ward(torch.rand(2, 5, 3), keep)


@given(st.integers(1, 300), st.integers(1, 300), st.integers(1, 12))
def test_rounds_add_up_and_none_merges_more_than_half(n, keep, rounds):
    keep = min(keep, n)
    merges, left = merges_by_round(n, keep, rounds), n
    assert sum(merges) == n - keep
    for number in merges:
        assert 1 <= number <= left // 2
        left -= number
    if -(-(n - keep) // rounds) <= keep:  # half is always enough: as many rounds as asked for, in equal shares
        assert len(merges) == min(rounds, n - keep)
        assert not merges or max(merges) - min(merges) <= 1
