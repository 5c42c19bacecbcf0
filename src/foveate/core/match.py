"""Bipartite soft matching: pair each token of one alternating half with its most similar token of the other."""

from __future__ import annotations

import torch
from torch import Tensor

from foveate.core.assignment import Assignment, weighted_means


def bipartite_owner(metric: Tensor, merges: int, phase: int = 0) -> Tensor:
    """(B, N) slot of each token after merging the ``merges`` most similar pairs of ``metric`` (B, N, D).

    Tokens at positions phase, phase + 2, ... are sources, the others destinations; similarity is the cosine.
    Every source proposes its best destination and the best proposals merge. Slots: the sources that stay, in
    order, then the destinations, in order.
    """
    b, n, _ = metric.shape
    sources, targets = halves(n, phase)
    if not 0 <= merges <= min(sources, n // 2):
        raise ValueError(f"Bipartite matching merges at most half of the tokens: {n // 2} of {n}, got {merges}.")
    unit = metric * metric.square().sum(-1, keepdim=True).clamp(min=1e-24).rsqrt()
    best, target = (unit[:, phase::2] @ unit[:, 1 - phase :: 2].transpose(1, 2)).max(dim=-1)
    merged = torch.zeros(b, sources, dtype=torch.bool, device=metric.device)
    merged = merged.scatter(1, best.topk(merges, dim=1).indices, True)
    staying = sources - merges
    owner_of_source = torch.where(merged, staying + target, (~merged).cumsum(1) - 1)
    owner = owner_of_source.new_empty(b, n)
    owner[:, phase::2] = owner_of_source
    owner[:, 1 - phase :: 2] = torch.arange(staying, staying + targets, device=metric.device)
    return owner


def merge_most_similar(metric: Tensor, keep: int, size: Tensor | None = None, phase: int = 0) -> Assignment:
    """Merge tokens pairwise until ``keep`` are left, each the mean of its members weighted by ``size`` (B, N)."""
    owner = bipartite_owner(metric, metric.shape[1] - keep, phase)
    return weighted_means(owner, keep, size)


def halves(n: int, phase: int) -> tuple[int, int]:
    """How many of n tokens are sources and destinations when sources start at position ``phase``."""
    sources = (n - phase + 1) // 2
    return sources, n - sources
