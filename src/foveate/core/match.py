"""Bipartite soft matching: pair each token of one alternating half with its most similar token of the other."""

from __future__ import annotations

import torch
from torch import Tensor

from foveate.core.assignment import Assignment, joined_means
from foveate.core.graphs import largest_and_rest
from foveate.core.precision import in_full_precision, to_float
from foveate.core.tiles import by_strips


@in_full_precision
def merge_most_similar(metric: Tensor, keep: int, size: Tensor | None = None, phase: int = 0) -> Assignment:
    """Merge the most similar pairs of tokens until ``keep`` are left, each the mean weighted by ``size`` (B, N).

    Tokens at positions phase, phase + 2, ... are sources, the others destinations; similarity is the cosine of
    ``metric`` (B, N, D). Every source proposes its best destination and the best proposals merge. Slots: the sources
    that stay, in order, then the destinations, in order.
    """
    b, n, _ = metric.shape
    merges = n - keep
    sources, targets = halves(n, phase)
    if not 0 <= merges <= n // 2:
        raise ValueError(f"Bipartite matching merges at most half of the tokens: {n // 2} of {n}, got {merges}.")
    if targets == 0:  # a single token
        token, none = metric.new_zeros(b, 1, dtype=torch.long), metric.new_zeros(b, 0, dtype=torch.long)
        return joined_means(token, none, none, n, size)
    metric = to_float(metric)  # detached: the result is indices only
    unit = metric / torch.linalg.vector_norm(metric, dim=-1, keepdim=True).clamp_min_(1e-12)
    source, others = unit[:, phase::2], unit[:, 1 - phase :: 2].transpose(1, 2)
    best, target = by_strips(sources, targets, lambda strip: torch.bmm(source[:, strip], others).max(dim=-1))
    merging, staying = largest_and_rest(best, merges)
    slot = target.gather(1, merging) + (sources - merges)
    destinations = torch.arange(1 - phase, n, 2, device=metric.device).expand(b, targets)
    return joined_means(torch.cat([staying * 2 + phase, destinations], dim=1), merging * 2 + phase, slot, n, size)


def halves(n: int, phase: int) -> tuple[int, int]:
    """How many of n tokens are sources and destinations when sources start at position ``phase``."""
    sources = (n - phase + 1) // 2
    return sources, n - sources
