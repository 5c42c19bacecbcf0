"""From a schedule to a plan: how many tokens every block of a model keeps, for a budget by counting the cost."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from typing import Any

from foveate.costs import ModelShape, Output, Plan, count, step_shape, unreduced
from foveate.methods.base import Method, Site
from foveate.methods.learned import LearnedMethod
from foveate.schedules import Adaptive, Budget, Keep, PlanError, Schedule, check_blocks


@lru_cache(maxsize=256)
def make_plan(
    shape: ModelShape,
    method: Method | None = None,
    schedule: Schedule | None = None,
    exact_last_block: bool = False,
    output: Output = "tokens",
    span: tuple[int, int] | None = None,
) -> Plan:
    """Resolve a schedule for a model and a method.

    Args:
        shape: sizes of the model.
        method: None keeps every token.
        schedule: None for a method that fixes its own counts.
        exact_last_block: compute the last block for prefix tokens only.
        output: what leaves the encoder.
        span: first and last block that may reduce, if tokens are spread to all patches after the last.

    Raises:
        PlanError: if the model or the method cannot follow the schedule.
    """
    if isinstance(schedule, Adaptive):
        if method is None:
            raise PlanError(f"{schedule!r} needs a method, such as ToMe().")
        levels = level_plans(shape, method, schedule, exact_last_block, output, span)
        whole = count(shape, unreduced(shape), None, 0).macs
        return min(levels, key=lambda plan: abs(count(shape, plan, method, 0).macs - schedule.fraction * whole))
    n, depth = shape.num_patches, shape.depth
    if span is not None and span[1] >= depth:
        raise PlanError(f"merge_unmerge={span}, but the model has {depth} blocks (0..{depth - 1}).")
    if method is None:
        if schedule is not None:
            raise PlanError(f"{schedule!r} needs a method, such as ToMe().")
        return Plan((Site.POST_ATTN,) * depth, n, (n,) * depth, exact_last_block, output=output)
    empty = Plan(method.sites(depth), n, (n,) * depth, exact_last_block, (), output, span and span[1])
    counts = _counts(shape, method, schedule, empty, span)
    _check_tokens_left(shape, method, schedule, counts)
    if schedule is not None:
        return dataclasses.replace(empty, counts=counts, soft_blocks=_soft_blocks(schedule, method, depth, n, span))
    soft_blocks = method.soft_blocks(depth) if isinstance(method, LearnedMethod) else ()
    if exact_last_block and depth - 1 in soft_blocks:
        raise PlanError(
            f"{type(method).__name__} also acts in the last block, where exact_last_block leaves no patch tokens. "
            "Leave exact_last_block out."
        )
    return dataclasses.replace(empty, counts=counts, soft_blocks=soft_blocks)


@lru_cache(maxsize=64)
def level_plans(shape: ModelShape, method: Method, schedule: Adaptive, *how: Any) -> tuple[Plan, ...]:
    """The plans among which an ``Adaptive`` schedule chooses, from the cheapest; ``how`` as in ``make_plan``.

    Raises:
        PlanError: if the method cannot tell what a removal costs, or cannot meet two of the budgets.
    """
    if type(method).removal_costs is Method.removal_costs:
        raise PlanError(
            f"{method.name} cannot tell what removing a token costs, so {schedule!r} cannot choose counts by it. "
            "Ward, ToMe, TokenPooling, TopK and ATS can."
        )
    average = make_plan(shape, method, Budget(schedule.fraction, schedule.blocks), *how)
    blocks = tuple(block for block in range(shape.depth) if average.acts_in(block))
    plans = []
    for budget in schedule.budgets if blocks else ():
        with suppress(PlanError):  # beyond what the method can reach
            plans.append(make_plan(shape, method, Budget(budget, blocks), *how))
    if len(plans) < 2:
        raise PlanError(f"{method.name} can meet fewer than two of the budgets of {schedule!r}. Use Budget.")
    choosing = method.removal_macs(step_shape(shape, average, blocks[0]))
    return tuple(dataclasses.replace(plan, choosing_macs=choosing) for plan in plans)


Span = tuple[int, int] | None


def _counts(shape: ModelShape, method: Method, schedule: Schedule | None, empty: Plan, span: Span) -> tuple[int, ...]:
    """Patch tokens (or keys) after each block."""
    if schedule is None:
        if span is not None:
            raise PlanError(f"{type(method).__name__} fixes its own counts, so it takes no merge_unmerge={span}.")
        own = method.own_counts(shape.depth, shape.grid)
        if own is None:
            raise PlanError(
                f"{type(method).__name__} needs a schedule: Keep, KeepRate, RemovePerBlock or Budget, "
                "e.g. KeepRate(0.7, blocks=(3, 6, 9))."
            )
        return own
    if isinstance(schedule, Budget):
        counts = _fit_budget(shape, method, schedule, empty, span)
    else:
        counts = _resolved(schedule, method, shape.depth, shape.num_patches, span)
    if min(counts) < shape.num_patches and method.own_counts(shape.depth, shape.grid) is not None:
        raise PlanError(f"{type(method).__name__} fixes its own counts. Leave out the schedule {schedule!r}.")
    return counts


def _resolved(schedule: Schedule, method: Method, depth: int, n: int, span: Span) -> tuple[int, ...]:
    """Counts of a schedule: blocks that it names count from the first of the model, others are chosen in ``span``."""
    if span is None:
        return schedule.counts(method, depth, n)
    if not _names_blocks(schedule):
        return _inside(schedule.counts(method.within(*span), span[1] - span[0] + 1, n), span, depth, n)
    counts = schedule.counts(method, depth, n)
    _check_span(schedule, counts, span, n)
    return _inside(counts[span[0] : span[1] + 1], span, depth, n)


def _soft_blocks(schedule: Schedule, method: Method, depth: int, n: int, span: Span) -> tuple[int, ...]:
    if span is None or _names_blocks(schedule):
        return schedule.soft_blocks(method, depth, n)
    return tuple(span[0] + block for block in schedule.soft_blocks(method.within(*span), span[1] - span[0] + 1, n))


def _names_blocks(schedule: Schedule) -> bool:
    return isinstance(schedule, Keep) or getattr(schedule, "blocks", None) is not None


def _inside(counts: tuple[int, ...], span: tuple[int, int], depth: int, n: int) -> tuple[int, ...]:
    """Counts of all blocks from those in ``span``; before and after it every patch has its token."""
    return (n,) * span[0] + counts + (n,) * (depth - 1 - span[1])


def _check_span(schedule: Schedule, counts: tuple[int, ...], span: tuple[int, int], n: int) -> None:
    """Raise ``PlanError`` if the schedule reduces in a block outside ``span``."""
    before = (n, *counts)
    for block, count_after in enumerate(counts):
        if count_after < before[block] and not span[0] <= block <= span[1]:
            raise PlanError(f"{schedule!r} reduces in block {block}, outside merge_unmerge={span}.")


def _check_tokens_left(shape: ModelShape, method: Method, schedule: Schedule | None, counts: tuple[int, ...]) -> None:
    """Raise ``PlanError`` for counts that leave no token, or none that the head can read."""
    if min(counts) > 0:
        return
    block = counts.index(0)
    if shape.head_reads_patches and method.site is not Site.KV:
        raise PlanError(
            f"{schedule!r} leaves no patch token after block {block}, but this model's head reads patch tokens. "
            "Keep at least 1."
        )
    if shape.num_prefix == 0:
        raise PlanError(f"{schedule!r} leaves no token after block {block}. Keep at least 1.")


def _fit_budget(shape: ModelShape, method: Method, budget: Budget, empty: Plan, span: Span) -> tuple[int, ...]:
    """Bisect the method's strength, then move single tokens until the MACs are within 1 % of the target."""

    depth, n, fraction = shape.depth, shape.num_patches, budget.fraction
    check_blocks("Budget", budget.blocks or (), depth)

    def macs(counts: tuple[int, ...]) -> int:
        return count(shape, dataclasses.replace(empty, counts=counts), method, 0).macs

    def spread(strength: float) -> tuple[int, ...]:
        if budget.blocks is not None:
            keep = Keep(method.equal_ratio(budget.blocks, strength, depth, n))
            return _resolved(keep, method, depth, n, span)  # raises if a step is out of reach
        first, last = span or (0, depth - 1)
        own, length = method.within(first, last), last - first + 1
        counts = Keep(own.spread(strength, length, n)).counts(own, length, n)
        return _inside(counts, (first, last), depth, n)

    whole = count(shape, unreduced(shape), None, 0).macs
    target = fraction * whole
    weak, strong = 0.0, 1.0 - 1e-6
    candidates = [spread(weak), spread(strong)]
    for _ in range(40):
        middle = (weak + strong) / 2
        candidates.append(spread(middle))
        weak, strong = (middle, strong) if macs(candidates[-1]) > target else (weak, middle)
    best = min(candidates, key=lambda counts: abs(macs(counts) - target))
    most, least = (macs(counts) / whole for counts in candidates[:2])
    if least < fraction < most:
        best = _fine_tune(best, target, macs, method, empty)
    if abs(macs(best) - target) > 0.01 * target:
        raise PlanError(
            f"{budget!r} cannot be met by {type(method).__name__} on this model: its schedules cost "
            f"{least:.3f} to {most:.3f} of the unreduced MACs, the nearest {macs(best) / whole:.3f}."
        )
    return best


def _fine_tune(
    best: tuple[int, ...], target: float, macs: Callable[[tuple[int, ...]], int], method: Method, empty: Plan
) -> tuple[int, ...]:
    """Shift equal counts by one token, greedily, while the cost gets closer to the target. Adds no reducing block."""
    end = len(best) if empty.unmerge_after is None else empty.unmerge_after + 1
    plan = Plan(empty.sites, empty.num_patches, best)
    sites = [block for block in range(end) if plan.acts_in(block)]
    improved = True
    while improved and abs(macs(best) - target) > 0.001 * target:
        improved = False
        for block in sites:
            for change in (-1, 1):
                trial = list(best)
                for later in range(block, end):
                    if best[later] == best[block]:
                        trial[later] = best[later] + change
                trial_counts = tuple(trial)
                if _reachable(trial_counts, end, method, empty.num_patches) and abs(macs(trial_counts) - target) < abs(
                    macs(best) - target
                ):
                    best, improved = trial_counts, True
    return best


def _reachable(counts: tuple[int, ...], end: int, method: Method, n: int) -> bool:
    previous = n
    for block, value in enumerate(counts[:end]):
        least = method.in_block(block, len(counts)).fewest(previous) if value < previous else 1
        if not max(1, least) <= value <= previous:
            return False
        previous = n if method.site is Site.KV else value
    return True
