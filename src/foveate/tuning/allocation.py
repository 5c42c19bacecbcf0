"""Where tokens should go: counts after each block that trade divergence against cost best, by dynamic programming.

The model of divergence is additive. ``table[b][l]`` is what the output diverges if block b alone reduces all patches to
level l. A reduction in several steps is charged, at each block, the difference between the level it reaches and the
level it comes from: ``table[b][l] - table[b][k]``. A reduction in one step then costs exactly what was measured, and
the same reduction later, where the table is smaller, costs less. Cost is additive over blocks, too, so that for a price
of one unit of cost the best counts of all are found in depth x levels^2 steps. Prices from low to high give the front.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

BlockCost = Callable[[int, int, int], float]
"""Cost of a block by (its index, patch tokens before its reduction, patch tokens after)."""
Reachable = Callable[[int, int, int], bool]
"""Whether one step can lead in a block from a number of tokens to another: (index, before, after)."""


def any_step(block: int, before: int, after: int) -> bool:
    """For methods that can remove any number of tokens at once."""
    return True


class Allocation(NamedTuple):
    """Counts after every block, and what the models of divergence and cost say of them."""

    counts: tuple[int, ...]
    divergence: float
    cost: float


def allocate(
    levels: Sequence[int],
    table: Sequence[Sequence[float]],
    cost: BlockCost,
    price: float,
    reachable: Reachable = any_step,
) -> Allocation:
    """The counts with the smallest ``divergence + price * cost``.

    Args:
        levels: numbers of patch tokens, falling; the first is all of them.
        table: divergence by block and level; 0 at the first level, never falling along a row.
        cost: cost of each block.
        price: divergence that one unit of cost is worth.
        reachable: steps that the method can take.
    """
    unknown: tuple[float, tuple[int, ...]] = (math.inf, ())
    best: list[tuple[float, tuple[int, ...]]] = [
        (0.0, ()),
        *[unknown] * (len(levels) - 1),
    ]  # by level: value, and the levels so far
    for block, row in enumerate(table):
        new = [unknown] * len(levels)
        for before, (value, path) in enumerate(best):
            if value == math.inf:
                continue
            for after in range(before, len(levels)):
                if after > before and not reachable(block, levels[before], levels[after]):
                    continue
                total = value + row[after] - row[before] + price * cost(block, levels[before], levels[after])
                if total < new[after][0]:
                    new[after] = (total, (*path, after))
        best = new
    _, path = min(best)
    return _described(path, levels, table, cost)


def _described(
    path: Sequence[int], levels: Sequence[int], table: Sequence[Sequence[float]], cost: BlockCost
) -> Allocation:
    before = (0, *path[:-1])
    divergence = sum(
        table[b][after] - table[b][first] for b, (first, after) in enumerate(zip(before, path, strict=True))
    )
    total = sum(
        cost(b, levels[first], levels[after]) for b, (first, after) in enumerate(zip(before, path, strict=True))
    )
    return Allocation(tuple(levels[level] for level in path), divergence, total)


def front(
    levels: Sequence[int],
    table: Sequence[Sequence[float]],
    cost: BlockCost,
    reachable: Reachable = any_step,
    prices: int = 60,
) -> list[Allocation]:
    """Allocations from the most expensive to the cheapest, for prices over ten decades."""
    whole = sum(cost(block, levels[0], levels[0]) for block in range(len(table)))
    largest = max(max(row) for row in table) or 1.0
    scale = largest / max(whole, 1e-30)
    found = {}
    for number in range(prices):
        price = scale * 10 ** (-6 + 9 * number / (prices - 1))
        allocation = allocate(levels, table, cost, price, reachable)
        found[allocation.counts] = allocation
    return sorted(found.values(), key=lambda one: -one.cost)


def cheapest_within(
    levels: Sequence[int],
    table: Sequence[Sequence[float]],
    cost: BlockCost,
    budget: float,
    reachable: Reachable = any_step,
) -> Allocation | None:
    """The allocation of least divergence whose cost is at most ``budget``, by bisection; None if none is."""
    low, high = 1e-12, 1e12
    found = allocate(levels, table, cost, high, reachable)
    if found.cost > budget:
        return None
    for _ in range(80):
        middle = math.sqrt(low * high)
        trial = allocate(levels, table, cost, middle, reachable)
        if trial.cost <= budget:
            high, found = middle, trial
        else:
            low = middle
        if high / low < 1.0001:
            break
    return found
