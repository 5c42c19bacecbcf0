"""Agglomeration: merge the cheapest pair of clusters, one pair after another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from foveate.core.cluster import Clusters
from foveate.core.graphs import fill_diagonal, positions
from foveate.core.match import unit_rows
from foveate.core.precision import in_full_precision
from foveate.core.tiles import MOST_TOKENS

Linkage = Literal["average", "complete", "single"]


class Pair(NamedTuple):
    """Weights of the two clusters that merge, each (B, 1)."""

    first: Tensor
    second: Tensor


Merged = Callable[[Tensor, Tensor, Tensor, Tensor, Pair], Tensor]
"""The costs (B, N) of merging a pair with every other cluster, from: the costs of its first and of its second cluster
(B, N), the cost of the pair itself (B, 1), all weights (B, N), and the weights of the pair."""


@in_full_precision
def linkage_clusters(metric: Tensor, keep: int, linkage: Linkage = "average") -> Clusters:
    """Agglomerate tokens by the cosine distance of ``metric`` (B, N, D) until ``keep`` clusters are left.

    The distance of two clusters is the mean, the largest (complete) or the smallest (single) of their members'.
    """
    check_table(metric.shape[1], "Use ToMe or Ward there.")
    unit = unit_rows(metric)
    distance = 1 - torch.bmm(unit, unit.transpose(1, 2))
    return merge_greedily(distance, keep, torch.ones(metric.shape[:2], device=metric.device), LINKAGES[linkage])


def merge_greedily(cost: Tensor, keep: int, weight: Tensor, merged: Merged) -> Clusters:
    """Merge the cheapest pair repeatedly until ``keep`` clusters are left; ties go to the lower indices.

    Args:
        cost: (B, N, N) cost of merging each pair of tokens; the diagonal is not read.
        keep: number of clusters.
        weight: (B, N) of each token; that of a cluster is the sum.
        merged: the costs of a merged pair (Lance and Williams); see ``Merged``.
    """
    b, n = weight.shape
    cost, w = fill_diagonal(cost, torch.inf), weight
    index = torch.arange(n, device=w.device).expand(b, n)
    owner, alive = index, torch.ones(b, n, dtype=torch.bool, device=w.device)
    for _ in range(n - keep):
        pair = cost.flatten(1).argmin(dim=1, keepdim=True)  # (B, 1)
        first, second = torch.minimum(pair // n, pair % n), torch.maximum(pair // n, pair % n)
        alive = alive.scatter(1, second, 0)
        is_first, is_second = index == first, index == second
        new = _cost_of_merged(cost, w, first, second, merged).masked_fill(~alive | is_first, torch.inf)
        cost = torch.where(is_first.unsqueeze(2), new.unsqueeze(1), cost)
        cost = torch.where(is_first.unsqueeze(1), new.unsqueeze(2), cost)
        cost = cost.masked_fill(is_second.unsqueeze(2) | is_second.unsqueeze(1), torch.inf)
        w = w.scatter_add(1, first, w.gather(1, second))
        owner = torch.where(owner == second, first, owner)
    return Clusters((alive.cumsum(1) - 1).gather(1, owner), positions(alive, keep))


def check_table(n: int, way_out: str) -> None:
    """Raise a ValueError if a table of all pairs of n tokens would be too large."""
    if n > MOST_TOKENS:
        raise ValueError(
            f"Greedy agglomeration keeps a table of all pairs of {n} tokens; {MOST_TOKENS} are the most. {way_out}"
        )


def _cost_of_merged(cost: Tensor, w: Tensor, first: Tensor, second: Tensor, merged: Merged) -> Tensor:
    n = w.shape[1]
    to_first, to_second = (cost.gather(1, i.unsqueeze(2).expand(-1, 1, n)).squeeze(1) for i in (first, second))
    between = to_first.gather(1, second)
    return merged(to_first, to_second, between, w, Pair(w.gather(1, first), w.gather(1, second)))


def _average(to_first: Tensor, to_second: Tensor, between: Tensor, w: Tensor, pair: Pair) -> Tensor:
    return (pair.first * to_first + pair.second * to_second) / (pair.first + pair.second)


def _complete(to_first: Tensor, to_second: Tensor, between: Tensor, w: Tensor, pair: Pair) -> Tensor:
    return torch.maximum(to_first, to_second)


def _single(to_first: Tensor, to_second: Tensor, between: Tensor, w: Tensor, pair: Pair) -> Tensor:
    return torch.minimum(to_first, to_second)


LINKAGES: dict[Linkage, Merged] = {"average": _average, "complete": _complete, "single": _single}
