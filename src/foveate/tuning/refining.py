"""Better counts near given ones: small random changes at equal cost, kept where the measured distance falls."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from foveate.methods.base import Method

Counts = tuple[int, ...]


HOPELESS = 1.05
"""A change whose estimate exceeds that of the best by this factor is not measured on all images."""


def refined(
    counts: Counts,
    patches: int,
    method: Method,
    cost: Callable[[Counts], float],
    budget: float,
    distance: Callable[[Counts], float],
    trials: int,
    seed: int,
    report: Callable[[int, float], None] = lambda done, best: None,
    screen: Callable[[Counts], float] | None = None,
) -> tuple[Counts, float]:
    """The best counts found, and their distance from the unreduced model.

    Args:
        counts: where to begin; their cost is at most ``budget``.
        patches: tokens before the first block.
        method: whose steps must be in reach.
        cost: cost of counts.
        budget: largest cost.
        distance: what to lower.
        trials: how many changes to try.
        seed: of the changes.
        report: called after every trial.
        screen: a cheaper estimate of the distance, by which hopeless changes are left out.
    """
    draw = random.Random(seed)
    best, lowest = counts, distance(counts)
    seen, estimate = {counts}, 0.0 if screen is None else screen(counts)
    for trial in range(1, trials + 1):
        new = fitted(changed(ratios(best, patches), draw), patches, method, cost, budget)
        if new is not None and new not in seen:
            seen.add(new)
            estimated = 0.0 if screen is None else screen(new)
            found = distance(new) if estimated <= HOPELESS * estimate else lowest
            if found < lowest:
                best, lowest, estimate = new, found, estimated
        report(trial, lowest)
    return best, lowest


def ratios(counts: Sequence[int], patches: int) -> list[float]:
    """The share of its tokens that each block keeps."""
    before = (patches, *counts[:-1])
    return [after / max(1, first) for first, after in zip(before, counts, strict=True)]


def changed(kept: list[float], draw: random.Random) -> list[float]:
    """Two blocks keep more or fewer; a block that kept all may begin to reduce."""
    shares = list(kept)
    for block in draw.sample(range(len(kept)), k=min(2, len(kept))):
        shares[block] = min(1.0, max(0.1, shares[block] * 2 ** draw.gauss(0, 0.25)))
        if draw.random() < 0.15:
            shares[block] = 1.0
    return shares


def fitted(
    kept: Sequence[float], patches: int, method: Method, cost: Callable[[Counts], float], budget: float
) -> Counts | None:
    """Counts with these shares, all raised to the power at which the cost just meets ``budget``; None if none does."""
    weak, strong = 0.0, 8.0
    best = None
    for _ in range(30):
        power = (weak + strong) / 2
        counts = _counts([share**power for share in kept], patches, method)
        if cost(counts) > budget:
            weak = power
        else:
            strong, best = power, counts
    return best


def _counts(kept: Sequence[float], patches: int, method: Method) -> Counts:
    counts, current = [], patches
    for block, share in enumerate(kept):
        wanted = min(current, max(1, round(current * share)))
        current = wanted if wanted == current else max(wanted, method.in_block(block, len(kept)).fewest(current))
        counts.append(current)
    return tuple(counts)
