"""Ward's agglomeration: merge the pair of clusters whose merge raises the weighted sum of squares least.

The sum of squares is sum_i w_i |x_i - c(i)|^2 with c the weighted mean of the token's cluster. Merging clusters a and
b raises it by w_a w_b / (w_a + w_b) |c_a - c_b|^2, which is the cost of a merge here.
"""

from __future__ import annotations

import torch
from torch import Tensor

from foveate.core.agglomeration import Pair, check_table, merge_greedily
from foveate.core.assignment import joined_means, pool
from foveate.core.cluster import Clusters, squared_distances, squared_norm, weights_or_ones
from foveate.core.graphs import compact, smallest
from foveate.core.precision import centered, in_full_precision, to_float
from foveate.core.tiles import by_strips


@in_full_precision
def ward_greedy(x: Tensor, keep: int, weight: Tensor | None = None) -> Clusters:
    """Merge the cheapest pair of tokens x (B, N, C) repeatedly until ``keep`` clusters are left.

    Exact: each merge is the cheapest of all; ties go to the lower indices. The costs after merging a and b follow from
    those before (Lance and Williams): cost(ab, z) =
    ((w_a + w_z) cost(a, z) + (w_b + w_z) cost(b, z) - w_z cost(a, b)) / (w_a + w_b + w_z). It takes N - K
    sequential steps, so it is slow; it is the reference for quality.
    """
    _check_keep(x, keep)
    check_table(x.shape[1], "Use rounds.")
    w = weights_or_ones(weight, x)
    cost = squared_distances(x) / (1 / w.unsqueeze(2) + 1 / w.unsqueeze(1))
    return merge_greedily(cost, keep, w, _merged_cost)


@in_full_precision
def ward_rounds(x: Tensor, keep: int, weight: Tensor | None = None, rounds: int = 3) -> Clusters:
    """Merge tokens x (B, N, C) in about ``rounds`` rounds of many merges each, until ``keep`` clusters are left.

    In a round the clusters at even positions are sources and those at odd positions are targets. Each source proposes
    to the target that is cheapest to merge with, and the cheapest proposals are accepted, an equal share of all merges
    in every round. A round merges at most half of the clusters, so strong reductions take more rounds. A merged cluster
    takes the position of its target.
    """
    _check_keep(x, keep)
    x, w = centered(x), weights_or_ones(weight, x)
    owner = member = torch.arange(x.shape[1], device=x.device).expand(x.shape[:2])
    plan = merges_by_round(x.shape[1], keep, rounds)
    for number, merges in enumerate(plan, start=1):
        source, target = _cheapest_proposals(x, w, merges)
        staying, slot = compact(x.shape[1], source)
        joined = slot.gather(1, target)
        moved = slot.scatter(1, source, joined)
        # before the first round every token is in its place
        owner, member = (moved, staying) if number == 1 else (moved.gather(1, owner), member.gather(1, staying))
        if number < len(plan):
            means = joined_means(staying, source, joined, x.shape[1], w)
            assert means.sizes is not None
            x, w = pool(x, means), means.sizes
    return Clusters(owner, member)


def merges_by_round(n: int, keep: int, rounds: int) -> tuple[int, ...]:
    """How many clusters merge in each round on the way from n to ``keep``."""
    merges: list[int] = []
    while n > keep:
        wanted = -(-(n - keep) // max(1, rounds - len(merges)))
        merges.append(min(wanted, n // 2))
        n -= merges[-1]
    return tuple(merges)


def _merged_cost(to_first: Tensor, to_second: Tensor, between: Tensor, w: Tensor, pair: Pair) -> Tensor:
    """Cost of merging a pair with every other cluster, (B, N)."""
    return ((pair.first + w) * to_first + (pair.second + w) * to_second - w * between) / (pair.first + pair.second + w)


def _proposals(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """The cheapest merge of each even into an odd position: its cost and target, each (B, sources)."""
    square, inverse = squared_norm(x), w.reciprocal()
    even, odd = x[:, ::2], x[:, 1::2].transpose(1, 2)
    even_square, even_inverse = square[:, ::2, None], inverse[:, ::2, None]

    def cheapest(strip: slice) -> tuple[Tensor, Tensor]:
        distance = torch.baddbmm(square[:, None, 1::2], even[:, strip], odd, alpha=-2)
        distance = distance.add_(even_square[:, strip]).clamp_min_(0)
        return distance.div_(even_inverse[:, strip] + inverse[:, None, 1::2]).min(dim=2)

    cost, target = by_strips(even.shape[1], odd.shape[2], cheapest)
    return cost, target


@in_full_precision
def ward_costs(x: Tensor, weight: Tensor) -> Tensor:
    """The cost of every source's best merge in a first round over tokens x (B, N, C), cheapest first: (B, N / 2)."""
    return _proposals(centered(x), to_float(weight))[0].sort(dim=1).values


def _cheapest_proposals(x: Tensor, w: Tensor, merges: int) -> tuple[Tensor, Tensor]:
    """The ``merges`` cheapest merges of an even into an odd position: sources and targets, each (B, merges)."""
    cost, target = _proposals(x, w)
    source = smallest(cost, merges)
    return source * 2, target.gather(1, source) * 2 + 1


def _check_keep(x: Tensor, keep: int) -> None:
    if not 1 <= keep <= x.shape[1]:
        raise ValueError(
            f"Ward's agglomeration of {x.shape[1]} tokens needs 1 <= keep <= {x.shape[1]}, got keep={keep}."
        )
