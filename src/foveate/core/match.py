"""Bipartite soft matching: pair each token of one alternating half with its most similar token of the other."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from foveate.core.assignment import Assignment, joined_means
from foveate.core.graphs import best_products, compact, largest, largest_and_rest, lengths
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
    unit = unit_rows(metric)
    source, others = unit[:, phase::2], unit[:, 1 - phase :: 2]
    best, target = by_strips(sources, targets, lambda strip: best_products(source[:, strip], others))
    merging, staying = largest_and_rest(best, merges)
    slot = target.gather(1, merging) + (sources - merges)
    destinations = torch.arange(1 - phase, n, 2, device=metric.device).expand(b, targets)
    return joined_means(torch.cat([staying * 2 + phase, destinations], dim=1), merging * 2 + phase, slot, n, size)


@in_full_precision
def merge_most_similar_of(
    metric: Tensor, sources: Tensor, targets: Tensor, keep: int, size: Tensor | None = None
) -> Assignment:
    """``merge_most_similar`` between the tokens ``sources`` (S,) and ``targets`` (T,), the same for all images.

    Slots: all tokens that stay, in order.
    """
    b, n, _ = metric.shape
    if not 0 <= n - keep <= len(sources):
        raise ValueError(f"Of {n} tokens {len(sources)} are sources and may merge, got {n - keep} merges.")
    if not len(targets):  # a single token
        return merge_into(sources.new_zeros(b, 0), sources.new_zeros(b, 0), n, size)
    unit = unit_rows(metric)
    left, right = unit[:, sources], unit[:, targets]
    best, target = by_strips(len(sources), len(targets), lambda strip: best_products(left[:, strip], right))
    merging = largest(best, n - keep)
    return merge_into(sources[merging], targets[target.gather(1, merging)], n, size)


def merge_into(
    source: Tensor, target: Tensor, n: int, size: Tensor | None = None, weight: Tensor | None = None
) -> Assignment:
    """Merge the tokens ``source`` (B, R) into the tokens ``target`` (B, R), which stay; slots are in token order.

    Means are weighted by ``weight`` (B, n), or by ``size`` (B, n) if that is None.
    """
    staying, slot = compact(n, source)
    joined = slot.gather(1, target)
    means = joined_means(staying, source, joined, n, size)
    if weight is None:
        return means
    return replace(joined_means(staying, source, joined, n, weight), sizes=means.sizes)


def unit_rows(x: Tensor) -> Tensor:
    """Rows of x (B, N, C) scaled to length 1, in float32 at least; without gradients, because they choose tokens."""
    x = to_float(x)
    return x / lengths(x).clamp_min(1e-12)


@in_full_precision
def proposal_costs(metric: Tensor, phase: int = 0) -> Tensor:
    """1 - cosine of every source's best proposal in ``merge_most_similar``, the cheapest first: (B, sources)."""
    unit = unit_rows(metric)
    cosine = torch.bmm(unit[:, phase::2], unit[:, 1 - phase :: 2].transpose(1, 2)).amax(dim=2)
    return (1 - cosine).sort(dim=1).values


def halves(n: int, phase: int) -> tuple[int, int]:
    """How many of n tokens are sources and destinations when sources start at position ``phase``."""
    sources = (n - phase + 1) // 2
    return sources, n - sources
