"""Multiply-accumulates (MACs), counted from shapes: the cost of a model under a plan, the method's own included.

One MAC is one multiplication and addition in a matrix product, a linear layer or a convolution, per image.
Element-wise operations, normalization and softmax are not counted, as in torch's ``FlopCounterMode``; tests check that
both agree.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from foveate.methods.base import Method, Site, StepShape
from foveate.methods.learned import LearnedMethod
from foveate.schedules import Adaptive, Budget, Keep, PlanError, Schedule, check_blocks

Output = Literal["tokens", "grid", "grid-residual", "grid-attention"]
"""What leaves a reduced encoder; see ``Reduction.output``."""


@dataclass(frozen=True)
class BlockShape:
    """Sizes of one block. ``*_macs`` are MACs of linear layers per token."""

    dim: int
    heads: int
    head_dim: int
    query_macs: int  # q, and the gate if there is one
    key_value_macs: int
    proj_macs: int
    mlp_macs: int


@dataclass(frozen=True)
class ModelShape:
    """Everything that a model's cost depends on, as read by its family."""

    blocks: tuple[BlockShape, ...]
    grid: tuple[int, int]  # rows and columns of patches
    num_prefix: int
    has_cls: bool
    stem_macs_per_patch: int
    head_macs: int  # independent of the number of patch tokens
    head_macs_per_patch: int  # for each patch token that the head reads
    head_reads_patches: bool

    @property
    def depth(self) -> int:
        return len(self.blocks)

    @property
    def num_patches(self) -> int:
        return self.grid[0] * self.grid[1]


@dataclass(frozen=True)
class Plan:
    """A resolved schedule: patch tokens after each block or, at the kv site, keys in each block."""

    sites: tuple[Site, ...]  # where each block reduces
    num_patches: int
    counts: tuple[int, ...]
    exact_last_block: bool = False
    soft_blocks: tuple[int, ...] = ()
    """Blocks in which the method acts on tokens that all stay: training modules, or EViT that fuses a single one."""
    output: Output = "tokens"
    unmerge_after: int | None = None
    """The block after which every patch has its own token again; None if there is none."""
    choosing_macs: int = 0
    """Multiply-accumulates of choosing an image's plan among several."""

    def before(self, block: int) -> int:
        """Patch tokens (or keys) available to the reduction in ``block``."""
        return self.num_patches if block == 0 or self.sites[block] is Site.KV else self.tokens_after(block - 1)

    def is_last(self, block: int) -> bool:
        return block == len(self.counts) - 1

    def acts_in(self, block: int) -> bool:
        """Whether anything is reduced in ``block``."""
        if self.is_last(block) and self.output == "grid-attention":
            return False  # its keys are the tokens that are left, its queries all patches
        if self.exact_last_block and self.is_last(block) and self.sites[block] in (Site.POST_ATTN, Site.POST_BLOCK):
            return False  # no patch token leaves this block, so reducing after attention would be useless
        return self.counts[block] < self.before(block) or block in self.soft_blocks

    def tokens_after(self, block: int) -> int:
        """Patch tokens that leave ``block``."""
        if self.exact_last_block and self.is_last(block):
            return 0
        restored = block == self.unmerge_after or (self.is_last(block) and self.output == "grid-attention")
        return self.num_patches if self.sites[block] is Site.KV or restored else self.counts[block]

    @property
    def read_by_head(self) -> int:
        """Patch tokens that leave the encoder."""
        return self.tokens_after(len(self.counts) - 1) if self.output == "tokens" else self.num_patches


@dataclass(frozen=True)
class Cost:
    """The cost of one image."""

    params: int
    macs: int
    """All multiply-accumulates, the method's own included."""
    reduction_macs: int
    """Multiply-accumulates of the method itself."""
    tokens: tuple[int, ...]
    """Tokens after every block, prefix tokens included."""

    def __str__(self) -> str:
        own = f"{self.reduction_macs / 1e6:.1f} M for reduction"
        return f"{self.macs / 1e9:.3f} GMACs ({own}), {self.params / 1e6:.2f} M parameters"


def count(shape: ModelShape, plan: Plan, method: Method | None, params: int) -> Cost:
    """Count the cost of a model of this shape under a plan.

    Args:
        shape: sizes of the model.
        plan: tokens after each block.
        method: the method that follows the plan; None for an unreduced model.
        params: number of parameters, which the result repeats.
    """
    total = shape.num_patches * shape.stem_macs_per_patch
    own = 0
    for index, block in enumerate(shape.blocks):
        work, extra = block_macs(shape, block, plan, method, index)
        total, own = total + work + extra, own + extra
    total, own = total + plan.choosing_macs, own + plan.choosing_macs
    total += shape.head_macs + shape.head_macs_per_patch * plan.read_by_head
    tokens = tuple(shape.num_prefix + plan.tokens_after(i) for i in range(shape.depth))
    return Cost(params, total, own, tokens)


def block_macs(shape: ModelShape, block: BlockShape, plan: Plan, method: Method | None, index: int) -> tuple[int, int]:
    """(the block's MACs, the method's MACs) for one image."""
    prefix, site, acts = shape.num_prefix, plan.sites[index], plan.acts_in(index)
    incoming = plan.num_patches if index == 0 else plan.tokens_after(index - 1)
    kept = plan.counts[index] if acts else incoming
    queries = prefix + (kept if acts and site is Site.PRE_BLOCK else incoming)
    keys = prefix + kept if acts and site is Site.KV else queries
    through_mlp = prefix + kept if acts and site is Site.POST_ATTN else queries
    if plan.exact_last_block and index == shape.depth - 1:
        queries = through_mlp = prefix
    if plan.output == "grid-attention" and plan.is_last(index):
        queries = through_mlp = prefix + plan.num_patches
    work = queries * (block.query_macs + block.proj_macs) + keys * block.key_value_macs
    work += 2 * queries * keys * block.heads * block.head_dim + through_mlp * block.mlp_macs
    if not acts or method is None:
        return work, 0
    return work, method.in_block(index, shape.depth).macs(step_shape(shape, plan, index))


def step_shape(shape: ModelShape, plan: Plan, index: int) -> StepShape:
    """The sizes of the reduction in one block."""
    block = shape.blocks[index]
    return StepShape(
        plan.before(index),
        plan.counts[index],
        shape.num_prefix,
        block.dim,
        block.heads,
        block.head_dim,
        shape.has_cls,
        shape.grid,
    )


def unreduced(shape: ModelShape) -> Plan:
    """The plan that keeps every token."""
    return make_plan(shape)


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


def at_grid(shape: ModelShape, grid: tuple[int, int]) -> ModelShape:
    """The shape of the same model on an image with another patch grid."""
    return dataclasses.replace(shape, grid=grid)
