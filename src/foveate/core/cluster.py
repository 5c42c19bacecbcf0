"""Weighted K-Means and K-Medoids over the tokens of every image of a batch at once.

Both minimize sum_i w_i |f_i - center(i)|^2 over K centers. They start from given centers and alternate between
assigning tokens to centers and moving centers. Neither step can raise the objective. No cluster is ever empty. Images
are independent: an image that has converged no longer changes, however many iterations others need.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from foveate.core.assignment import Assignment, Joining, joined_means, joined_sizes, pool, take, weighted_means
from foveate.core.graphs import fill_diagonal, in_graph, largest_by_position, min_into_slots, places, squared_lengths
from foveate.core.noise import counter_uniform
from foveate.core.precision import centered, in_full_precision, to_float
from foveate.core.tiles import MOST_TOKENS, by_strips

LEAST_WEIGHT = 1e-6
"""Smallest weight, relative to an image's largest; weighted means and Ward's costs divide by sums of weights."""


class Clusters(NamedTuple):
    """A partition of N tokens into K clusters, each represented by one member: its medoid if it has one."""

    owner: Tensor  # (B, N) cluster of each token
    member: Tensor  # (B, K) representative of each cluster


def first_by_score(score: Tensor, k: int) -> Tensor:
    """The k tokens of largest ``score`` (B, N) as first centers, by position: (B, K)."""
    return largest_by_position(score, k)


def first_at_random(batch: int, n: int, k: int, seed: int, stream: int, device: torch.device | None = None) -> Tensor:
    """k of n tokens drawn without replacement as first centers; one draw for all images."""
    return first_by_score(counter_uniform(n, seed, stream, device).expand(batch, n), k)


@in_full_precision
def kmedoids(
    x: Tensor,
    first: Tensor,
    weight: Tensor | None = None,
    iterations: int = 1,
    early_stop: bool = False,
    move_last: bool = True,
) -> Clusters:
    """Weighted K-Medoids of tokens x (B, N, C) from the medoids ``first`` (B, K), with ``weight`` (B, N).

    Each iteration: a(i) = argmin_j |f_i - f_n(j)| (eq. 16), where a medoid stays with itself; then n(j) = argmin over i
    in cluster j of sum over i' in it of w_i' |f_i - f_i'|^2 (eq. 17, with the weights of objective 13), which is the
    member nearest to the cluster's weighted mean; ties go to the lower index. Several iterations read one table of all
    distances; a single one needs only the distances of the other tokens to the medoids.

    Args:
        x: tokens to cluster.
        first: indices of the first medoids.
        weight: weight of each token; None for equal weights.
        iterations: rounds of assigning tokens and moving medoids.
        early_stop: stop once no image changes. The result is the same.
        move_last: whether medoids move after the last assignment; False if only the clusters are needed.
    """
    _check_first(x, first, iterations)
    x = centered(x)
    table = _table_of(x) if iterations > 1 and x.shape[1] <= MOST_TOKENS else None
    medoid = first
    for turn in range(1, iterations + 1):
        clusters = Clusters(_nearest_medoid(x, medoid, table), medoid)
        if turn == iterations and not move_last:
            break
        before, medoid = medoid, _best_medoids(x, clusters, weight)
        if early_stop and _settled(before, medoid):
            break
    return Clusters(clusters.owner, medoid)


@in_full_precision
def kmeans(
    x: Tensor, first: Tensor, weight: Tensor | None = None, iterations: int = 4, early_stop: bool = False
) -> Clusters:
    """Weighted K-Means of tokens x (B, N, C) from the tokens ``first`` (B, K) as centers, with ``weight`` (B, N).

    Each iteration: a(i) = argmin_j |f_i - c_j| (eq. 14), then c_j = sum_i [a(i)=j] w_i f_i / sum_i [a(i)=j] w_i
    (eq. 15). If a cluster of an image would become empty, which the paper does not cover, the first member of each of
    its clusters stays where it was; that cannot raise the objective either. The last centers are the weighted means of
    the returned clusters.
    """
    _check_first(x, first, iterations)
    x = centered(x)
    weight = weights_or_ones(weight, x)
    k = first.shape[1]
    centers, member, owner = take(x, first), first, None
    for _ in range(iterations):
        nearest = _nearest_center(x, centers)
        moved = _without_empty(nearest, member)
        settled = early_stop and owner is not None and _settled(moved, owner)
        owner = moved
        if settled:
            break
        member = _first_member(owner, k)
        centers = pool(x, weighted_means(owner, k, weight))
    assert owner is not None
    return Clusters(owner, member)


@in_full_precision
def squared_distances(x: Tensor) -> Tensor:
    """|x_i - x_j|^2 for all pairs of tokens (B, N, C): (B, N, N), in float32 at least, zero on the diagonal."""
    return _table_of(centered(x))


def _table_of(x: Tensor) -> Tensor:
    """``squared_distances`` of tokens that are ``centered``."""
    square = squared_norm(x)
    distance = torch.baddbmm(square.unsqueeze(1), x, x.transpose(1, 2), alpha=-2).add_(square.unsqueeze(2))
    return fill_diagonal(distance, 0).clamp_min_(0)


def squared_norm(x: Tensor) -> Tensor:
    """|x_i|^2, (B, N)."""
    return squared_lengths(x, keepdim=False)


def cluster_means(clusters: Clusters, size: Tensor | None = None, weight: Tensor | None = None) -> Assignment:
    """Every slot is the mean of a cluster, weighted by ``weight`` (B, N), or by ``size`` if that is None."""
    others, slot = _other_members(clusters)
    n = clusters.owner.shape[1]
    if weight is None:
        return joined_means(clusters.member, others, slot, n, size)
    mean = joined_means(clusters.member, others, slot, n, relative_weights(weight))
    sizes = joined_sizes(clusters.member, others, slot, size)
    return Assignment(mean.src, None, None, n, mean.num_out, mean.joining, sizes)


def cluster_medoids(clusters: Clusters, size: Tensor | None = None) -> Assignment:
    """Every slot is the unchanged representative of a cluster and stands for all its members."""
    others, slot = _other_members(clusters)
    n = clusters.owner.shape[1]
    sizes = joined_sizes(clusters.member, others, slot, size)
    no_share = torch.zeros(slot.shape, device=slot.device)  # members count in sizes, but not in the pooled token
    joining = Joining(others, slot, no_share)
    return Assignment(clusters.member, None, None, n, clusters.member.shape[1], joining, sizes)


def _nearest_medoid(x: Tensor, medoid: Tensor, table: Tensor | None) -> Tensor:
    """Eq. 16: (B, N). A medoid stays in its own cluster even if it equals another, so no cluster is empty."""
    own = torch.arange(medoid.shape[1], device=medoid.device).expand(medoid.shape)
    if table is not None:
        return take(table, medoid).min(dim=1).indices.scatter(1, medoid, own)
    others = _all_but(medoid, x.shape[1])
    nearest = _nearest_center(take(x, others), take(x, medoid))
    return medoid.new_zeros(x.shape[:2]).scatter(1, others, nearest).scatter(1, medoid, own)


def _best_medoids(x: Tensor, clusters: Clusters, weight: Tensor | None) -> Tensor:
    """Eq. 17: the member of each cluster that is nearest to its weighted mean."""
    owner, medoid = clusters
    others = _all_but(medoid, x.shape[1])
    slot = owner.gather(1, others)
    means = joined_means(medoid, others, slot, x.shape[1], weights_or_ones(weight, x))
    mean, rival = take(pool(x, means), slot), medoid.gather(1, slot)
    cost = torch.zeros(owner.shape, dtype=x.dtype, device=x.device)
    for token in (rival, others):
        cost = cost.scatter(1, token, squared_norm(take(x, token) - mean))
    return _cheapest_member(cost, owner, medoid.shape[1])


def _settled(now: Tensor, before: Tensor) -> bool:
    """Whether nothing changed; False where values are not known: in a compiled graph, or for shapes alone."""
    return not in_graph() and not now.is_meta and torch.equal(now, before)


def _cheapest_member(cost: Tensor, owner: Tensor, k: int) -> Tensor:
    """The member of least ``cost`` (B, N) in each cluster, (B, K); the first one if costs are equal up to rounding."""
    lowest = min_into_slots(cost, owner, k, torch.inf)
    # both tokens of a pair are equally far from their mean, up to rounding
    near = 1 + 100 * torch.finfo(cost.dtype).eps
    return _first_member(owner, k, cost <= near * lowest.gather(1, owner))


def _first_member(owner: Tensor, k: int, among: Tensor | None = None) -> Tensor:
    """The lowest index in each cluster, (B, K), among the tokens marked in ``among`` (B, N) if given."""
    b, n = owner.shape
    index = torch.arange(n, device=owner.device).expand(b, n)
    if among is not None:
        index = torch.where(among, index, n - 1)
    return min_into_slots(index, owner, k, n - 1)


def _nearest_center(x: Tensor, centers: Tensor) -> Tensor:
    """Eq. 14, without |x|^2, which is the same for all centers."""
    square, tokens = squared_norm(centers).unsqueeze(2), x.transpose(1, 2)

    def nearest(strip: slice) -> tuple[Tensor, Tensor]:
        return torch.baddbmm(square, centers, tokens[:, :, strip], alpha=-2).min(dim=1)  # three times as fast as argmin

    return by_strips(x.shape[1], centers.shape[1], nearest)[1]


def _without_empty(owner: Tensor, member: Tensor) -> Tensor:
    """``owner``, or, in images where a cluster is empty, ``owner`` with every ``member`` back in its cluster."""
    empty = torch.ones(member.shape, dtype=torch.bool, device=owner.device).scatter(1, owner, 0)
    own = torch.arange(member.shape[1], device=owner.device).expand(member.shape)
    return torch.where(empty.any(dim=1, keepdim=True), owner.scatter(1, member, own), owner)


def _other_members(clusters: Clusters) -> tuple[Tensor, Tensor]:
    """Tokens that do not represent their cluster, in order, and their clusters: both (B, N - K)."""
    others = _all_but(clusters.member, clusters.owner.shape[1])
    return others, clusters.owner.gather(1, others)


def _all_but(index: Tensor, n: int) -> Tensor:
    """The numbers below n that ``index`` (B, K) does not hold, in order: (B, n - K)."""
    free = torch.ones(index.shape[0], n, dtype=torch.bool, device=index.device).scatter(1, index, 0)
    return places(free, n - index.shape[1])


def relative_weights(weight: Tensor) -> Tensor:
    """Weights (B, N) relative to the image's largest, at least ``LEAST_WEIGHT``."""
    weight = to_float(weight)
    largest = weight.amax(dim=1, keepdim=True).clamp_min(torch.finfo(weight.dtype).tiny)
    return (weight / largest).clamp_min(LEAST_WEIGHT)


def weights_or_ones(weight: Tensor | None, x: Tensor) -> Tensor:
    """``relative_weights``, or ones for tokens x (B, N, C) if ``weight`` is None."""
    return torch.ones(x.shape[:2], device=x.device) if weight is None else relative_weights(weight)


def _check_first(x: Tensor, first: Tensor, iterations: int) -> None:
    n, k = x.shape[1], first.shape[1]
    if not 1 <= k <= n:
        raise ValueError(f"Clustering {n} tokens needs 1 to {n} first centers, got {k}.")
    if iterations < 1:
        raise ValueError(f"Clustering needs at least 1 iteration, got {iterations}.")
