"""Weighted K-Means and K-Medoids: their laws, and plain loops that follow the docstrings."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from foveate.core import (
    Assignment,
    Clusters,
    cluster_means,
    cluster_medoids,
    first_at_random,
    first_by_score,
    kmeans,
    kmedoids,
    pool,
    pool_size,
    unpool,
)
from foveate.core.cluster import LEAST_WEIGHT, squared_distances

Rows = list[list[float]]
both = pytest.mark.parametrize("cluster", [kmedoids, kmeans])


def far(a: list[float], b: list[float]) -> float:
    return sum((p - q) ** 2 for p, q in zip(a, b, strict=True))


def mean(rows: Rows, weights: list[float]) -> list[float]:
    return [sum(w * row[c] for w, row in zip(weights, rows, strict=True)) / sum(weights) for c in range(len(rows[0]))]


def members(owner: list[int], cluster: int) -> list[int]:
    return [i for i, o in enumerate(owner) if o == cluster]


def nearest(x: Rows, centers: Rows) -> list[int]:
    return [min(range(len(centers)), key=lambda j: far(row, centers[j])) for row in x]


def centers_of(x: Rows, w: list[float], owner: list[int], k: int) -> Rows:
    return [mean([x[i] for i in members(owner, j)], [w[i] for i in members(owner, j)]) for j in range(k)]


def above_least(weight: list[float]) -> list[float]:
    return [max(w / max(weight), LEAST_WEIGHT) for w in weight]


def kmedoids_by_loops(x: Rows, first: list[int], w: list[float], iterations: int) -> tuple[list[int], list[int]]:
    medoid = list(first)
    for _ in range(iterations):
        owner = nearest(x, [x[m] for m in medoid])
        for j in range(len(medoid)):
            inside = members(owner, j)
            medoid[j] = min(inside, key=lambda i: sum(w[o] * far(x[i], x[o]) for o in inside))
    return owner, medoid


def kmeans_by_loops(x: Rows, first: list[int], w: list[float], iterations: int) -> tuple[list[int], list[int]]:
    k, member = len(first), list(first)
    centers = [x[i] for i in first]
    for _ in range(iterations):
        owner = nearest(x, centers)
        if len(set(owner)) < k:
            for j, i in enumerate(member):
                owner[i] = j
        member = [owner.index(j) for j in range(k)]
        centers = centers_of(x, w, owner, k)
    return owner, member


BY_LOOPS = {kmedoids: kmedoids_by_loops, kmeans: kmeans_by_loops}


@st.composite
def cases(draw: st.DrawFn, equals: bool = False, weights: tuple[float, ...] = ()) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens (B, N, 3), distinct first centers (B, K) and weights (B, N), the latter of ``weights`` if given.

    With ``equals``, tokens have few values, so that many are the same.
    """
    batch, n = draw(st.integers(1, 3)), draw(st.integers(1, 10))
    k = draw(st.integers(1, n))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 9999)))
    x = torch.randn(batch, n, 3, generator=generator, dtype=torch.float64)
    if equals:
        x = x.clamp(-0.5, 0.5).round()
    first = torch.rand(batch, n, generator=generator).argsort(dim=1)[:, :k]
    weight = 0.05 + torch.rand(batch, n, generator=generator, dtype=torch.float64)
    if weights:
        weight = torch.tensor(weights)[torch.randint(len(weights), (batch, n), generator=generator)].double()
    return x, first, weight


@st.composite
def partitions(draw: st.DrawFn) -> tuple[Tensor, Clusters, Tensor, Tensor]:
    """Tokens, any partition of them with any member of each cluster, whole sizes and weights."""
    x, first, weight = draw(cases())
    generator = torch.Generator().manual_seed(draw(st.integers(0, 9999)))
    owner = torch.randint(first.shape[1], weight.shape, generator=generator)
    owner.scatter_(1, first, torch.arange(first.shape[1]).expand(first.shape))
    size = torch.randint(1, 5, weight.shape, generator=generator).double()
    return x, Clusters(owner, first), size, weight


def same(a: Clusters, b: Clusters) -> bool:
    return torch.equal(a.owner, b.owner) and torch.equal(a.member, b.member)


def objective(x: Tensor, weight: Tensor, clusters: Clusters, center: str) -> list[float]:
    """sum_i w_i |f_i - center(i)|^2 of each image, with medoids or weighted means as centers."""
    sums = []
    for rows, w, owner, member in zip(*(t.tolist() for t in (x, weight, *clusters)), strict=True):
        k = len(member)
        centers = [rows[m] for m in member] if center == "medoid" else centers_of(rows, w, owner, k)
        sums.append(sum(w[i] * far(row, centers[owner[i]]) for i, row in enumerate(rows)))
    return sums


def check_partition(clusters: Clusters, k: int) -> None:
    for owner, member in zip(clusters.owner.tolist(), clusters.member.tolist(), strict=True):
        assert set(owner) == set(range(k)), "K clusters, none empty"
        assert len(set(member)) == k
        assert [owner[m] for m in member] == list(range(k)), "a representative is in its own cluster"


@pytest.mark.parametrize(("cluster", "center"), [(kmedoids, "medoid"), (kmeans, "mean")])
@given(cases(), cases(equals=True), st.booleans())
def test_the_objective_never_rises(cluster, center, spread, equal, take_equal):
    x, first, weight = equal if take_equal else spread
    before = None
    for iterations in range(1, 6):
        now = objective(x, weight, cluster(x, first, weight, iterations), center)
        if before is not None:
            assert all(b <= a + 1e-9 for a, b in zip(before, now, strict=True))
        before = now


@given(cases(), st.integers(1, 3))
def test_every_token_is_with_the_nearest_medoid_before_the_last_move(case, iterations):
    x, first, weight = case
    clusters = kmedoids(x, first, weight, iterations, move_last=False)
    for rows, owner, member in zip(x.tolist(), *(t.tolist() for t in clusters), strict=True):
        assert owner == nearest(rows, [rows[m] for m in member])
    assert torch.equal(kmedoids(x, first, weight, iterations).owner, clusters.owner)


@both
@given(case=cases(), iterations=st.integers(1, 4))
def test_clusters_equal_plain_loops(cluster, case, iterations):
    x, first, weight = case
    clusters = cluster(x, first, weight, iterations)
    for image in range(x.shape[0]):
        args = (x[image].tolist(), first[image].tolist(), weight[image].tolist(), iterations)
        assert (clusters.owner[image].tolist(), clusters.member[image].tolist()) == BY_LOOPS[cluster](*args)


@both
@given(case=cases(weights=(0.0, 0.5, 1.0)), iterations=st.integers(1, 3))
def test_a_weight_of_zero_counts_as_next_to_nothing(cluster, case, iterations):
    x, first, weight = case
    clusters = cluster(x, first, weight, iterations)
    check_partition(clusters, first.shape[1])
    for image in range(x.shape[0]):
        w = weight[image].tolist()
        w = above_least(w) if max(w) > 0 else [1.0] * len(w)
        args = (x[image].tolist(), first[image].tolist(), w, iterations)
        assert (clusters.owner[image].tolist(), clusters.member[image].tolist()) == BY_LOOPS[cluster](*args)


@both
@given(case=cases(equals=True), iterations=st.integers(1, 4))
def test_equal_tokens_leave_no_cluster_empty(cluster, case, iterations):
    x, first, weight = case
    check_partition(cluster(x, first, weight, iterations), first.shape[1])
    check_partition(cluster(torch.ones_like(x), first, weight, iterations), first.shape[1])


@both
@given(case=cases(), equal=st.booleans())
def test_as_many_clusters_as_tokens_return_the_tokens(cluster, case, equal):
    x, _, weight = case
    n = x.shape[1]
    x = torch.ones_like(x) if equal else x
    first = torch.rand(weight.shape, generator=torch.Generator().manual_seed(n)).argsort(dim=1)
    clusters = cluster(x, first, weight, iterations=3)
    assert torch.equal(clusters.member, first)
    assert torch.equal(clusters.owner, first.argsort(dim=1))
    assert torch.equal(pool(x, cluster_means(clusters, None, weight)), x.gather(1, first.unsqueeze(-1).expand(x.shape)))


@given(cases())
def test_a_single_cluster_has_the_best_single_center(case):
    x, first, weight = case
    for image, (rows, w) in enumerate(zip(x.tolist(), weight.tolist(), strict=True)):
        totals = [sum(wo * far(row, other) for wo, other in zip(w, rows, strict=True)) for row in rows]
        medoid = kmedoids(x, first[:, :1], weight).member[image].tolist()
        assert medoid == [totals.index(min(totals))]
    clusters = kmeans(x, first[:, :1], weight)
    assert not clusters.owner.any()
    share = (weight / weight.sum(dim=1, keepdim=True)).unsqueeze(-1)
    assert torch.allclose(pool(x, cluster_means(clusters, None, weight)), (share * x).sum(dim=1, keepdim=True))


@both
@given(case=cases(), factor=st.sampled_from([1e-20, 1 / 8, 3.0, 1e9]))
def test_only_relations_of_weights_matter(cluster, case, factor):
    x, first, weight = case
    assert same(cluster(x, first, factor * weight, 3), cluster(x, first, weight, 3))
    equal = torch.full_like(weight, factor)
    assert same(cluster(x, first, equal, 3), cluster(x, first, None, 3))


@both
def test_an_image_is_clustered_alike_alone_and_in_a_batch(cluster):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(5, 24, 4, generator=generator, dtype=torch.float64)
    x[3] = 1  # settles at once, and needs repair
    weight = torch.rand(5, 24, generator=generator)
    first = first_by_score(weight, 7)
    for early_stop in (False, True):
        together = cluster(x, first, weight, 6, early_stop)
        for i in range(5):
            part = slice(i, i + 1)
            alone = cluster(x[part], first[part], weight[part], 6, early_stop)
            assert same(alone, Clusters(together.owner[part], together.member[part]))


@both
@given(case=cases(), equal=cases(equals=True), iterations=st.integers(1, 8))
def test_stopping_early_changes_no_result(cluster, case, equal, iterations):
    for x, first, weight in (case, equal):
        assert same(cluster(x, first, weight, iterations, early_stop=True), cluster(x, first, weight, iterations))


@both
def test_stopping_early_saves_iterations(cluster, monkeypatch):
    generator = torch.Generator().manual_seed(0)
    x, count = torch.randn(2, 12, 3, generator=generator, dtype=torch.float64), []
    original = torch.equal
    monkeypatch.setattr(torch, "equal", lambda a, b: count.append(1) or original(a, b))
    cluster(x, torch.arange(4).expand(2, 4), None, 500, early_stop=True)
    assert 1 <= len(count) < 30


@both
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_tokens_are_clustered_in_single_precision(cluster, dtype):
    generator = torch.Generator().manual_seed(2)
    x = (200 * torch.randn(2, 16, 64, generator=generator)).to(dtype)  # whose squares overflow float16
    weight = torch.rand(2, 16, generator=generator).to(dtype)
    weight[:, 3] = 0
    first = first_by_score(weight, 5)
    check_partition(cluster(x, first, weight, 3), 5)
    assert same(cluster(x, first, None, 3), cluster(x.float(), first, None, 3))


@both
def test_autocast_changes_no_cluster(cluster):
    x = 3 + torch.randn(1, 64, 48, generator=torch.Generator().manual_seed(0))
    expected = cluster(x, torch.arange(16).unsqueeze(0))
    with torch.autocast("cpu", torch.bfloat16):
        assert same(cluster(x, torch.arange(16).unsqueeze(0)), expected)


@both
def test_indices_need_no_gradient_and_pooling_has_one(cluster):
    x = torch.randn(2, 9, 3, generator=torch.Generator().manual_seed(3), dtype=torch.float64, requires_grad=True)
    weight = (x.detach()[..., 0].exp()).requires_grad_()
    clusters = cluster(x, first_by_score(weight, 4), weight, 2)
    assert not clusters.owner.requires_grad
    assert not clusters.member.requires_grad
    pool(x, cluster_means(clusters)).sum().backward()
    count = torch.zeros(2, 4).scatter_add(1, clusters.owner, torch.ones(2, 9))
    share = (1 / count.gather(1, clusters.owner)).unsqueeze(-1).expand(x.shape)
    assert torch.allclose(x.grad, share.double(), atol=1e-6)
    assert weight.grad is None


def test_a_cluster_that_plain_lloyd_would_leave_empty_keeps_its_first_member():
    x = [[8.0, 12.0], [8.0, 0.0], [2.0, 3.0], [5.0, 1.0], [9.0, 11.0], [11.0, 11.0]]
    first, ones = [3, 2, 1], [1.0] * 6
    centers, sizes = [x[i] for i in first], []
    for _ in range(2):
        owner = nearest(x, centers)
        sizes.append([len(members(owner, j)) for j in range(3)])
        if 0 not in sizes[-1]:
            centers = centers_of(x, ones, owner, 3)
    assert 0 not in sizes[0]
    assert 0 in sizes[1], "the case must be one that plain Lloyd fails"
    for iterations in (2, 3, 9):
        clusters = kmeans(torch.tensor([x]).double(), torch.tensor([first]), None, iterations)
        check_partition(clusters, 3)
        got = (clusters.owner[0].tolist(), clusters.member[0].tolist())
        assert got == kmeans_by_loops(x, first, ones, iterations)


@both
def test_what_cannot_be_clustered_is_refused(cluster):
    x = torch.rand(2, 5, 3)
    for k in (0, 6):
        with pytest.raises(ValueError, match=f"Clustering 5 tokens needs 1 to 5 first centers, got {k}"):
            cluster(x, torch.zeros(2, k, dtype=torch.long))
    with pytest.raises(ValueError, match="at least 1 iteration, got 0"):
        cluster(x, torch.zeros(2, 1, dtype=torch.long), iterations=0)


@given(cases())
def test_first_centers_by_score_are_the_largest_by_position(case):
    _, first, score = case
    k = first.shape[1]
    expected = [sorted(sorted(range(len(row)), key=row.__getitem__, reverse=True)[:k]) for row in score.tolist()]
    assert first_by_score(score, k).tolist() == expected


def test_first_centers_at_random_are_fixed_by_the_seed_and_shared_by_the_batch():
    first = first_at_random(3, 50, 10, seed=1, stream=2)
    assert first.shape == (3, 10)
    assert (first == first[:1]).all()
    assert len(set(first[0].tolist())) == 10
    assert sorted(first[0].tolist()) == first[0].tolist()
    assert torch.equal(first_at_random(1, 50, 10, seed=1, stream=2), first[:1])
    draws = {tuple(first_at_random(1, 50, 10, seed, stream)[0].tolist()) for seed in range(4) for stream in range(4)}
    assert len(draws) == 16


@given(cases())
def test_squared_distances_equal_plain_loops(case):
    x, _, _ = case
    expected = torch.tensor([[[far(a, b) for b in rows] for a in rows] for rows in x.tolist()], dtype=torch.float64)
    got = squared_distances(x)
    assert torch.allclose(got, expected, atol=1e-12)
    assert (got >= 0).all()
    assert not got.diagonal(dim1=1, dim2=2).any()


def check_sizes(a: Assignment, clusters: Clusters, size: Tensor) -> None:
    expected = torch.zeros(clusters.member.shape, dtype=size.dtype).scatter_add(1, clusters.owner, size)
    assert torch.equal(a.sizes.to(size.dtype), expected)
    assert torch.equal(pool_size(size, a), expected)


@given(partitions(), st.booleans(), st.booleans())
def test_means_equal_plain_loops(case, sized, weighted):
    x, clusters, size, weight = case
    a = cluster_means(clusters, size if sized else None, weight if weighted else None)
    share = weight if weighted else size if sized else torch.ones_like(size)
    expected = [
        centers_of(x[i].tolist(), share[i].tolist(), clusters.owner[i].tolist(), a.num_out) for i in range(x.shape[0])
    ]
    assert torch.allclose(pool(x, a), torch.tensor(expected, dtype=torch.float64), atol=1e-6)
    check_sizes(a, clusters, size if sized else torch.ones_like(size))


@given(partitions())
def test_means_by_size_conserve_the_total(case):
    x, clusters, size, _ = case
    a = cluster_means(clusters, size)
    total = (size.unsqueeze(-1) * x).sum(dim=1)
    assert torch.allclose((a.sizes.unsqueeze(-1) * pool(x, a)).sum(dim=1), total)
    assert torch.equal(a.sizes.sum(dim=1), size.sum(dim=1))


@given(partitions(), st.booleans())
def test_medoids_are_shown_as_they_are_and_stand_for_their_members(case, sized):
    x, clusters, size, _ = case
    a = cluster_medoids(clusters, size if sized else None)
    y = pool(x, a)
    for image, (owner, member) in enumerate(zip(*(t.tolist() for t in clusters), strict=True)):
        assert torch.equal(y[image], x[image, member])
        assert torch.equal(unpool(y, a)[image], x[image, [member[o] for o in owner]]), "each token shows its medoid"
    check_sizes(a, clusters, size if sized else torch.ones_like(size))


@given(partitions(), st.booleans())
def test_every_member_can_be_traced_to_its_cluster(case, medoids):
    _, clusters, size, weight = case
    a = cluster_medoids(clusters, size) if medoids else cluster_means(clusters, size, weight)
    slots = torch.arange(float(a.num_out)).view(1, -1, 1).expand(weight.shape[0], -1, 1)
    assert torch.equal(unpool(slots, a).squeeze(-1).long(), clusters.owner)


@pytest.mark.parametrize("weight", [[0.0, 0.0, 1.0], [1e-9, 1.0, 1.0], [1.0, 0.0, 1.0]])
def test_members_of_next_to_no_weight_have_a_mean_and_a_trace(weight):
    x = torch.tensor([[[0.0], [0.1], [5.0]]])
    a = cluster_means(Clusters(torch.tensor([[0, 0, 1]]), torch.tensor([[0, 2]])), None, torch.tensor([weight]))
    assert pool(x, a).isfinite().all()
    assert unpool(torch.tensor([[[7.0], [8.0]]]), a).flatten().tolist() == [7.0, 7.0, 8.0]
