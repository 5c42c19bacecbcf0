"""Schedules: how many patch tokens are left after each block.

``schedule.counts(method, depth, n)`` resolves a schedule to one count per block. The method supplies its rounding and
the smallest count it can reach, so that a schedule fits every method.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from foveate.methods.base import Method, Site, middle_blocks
from foveate.methods.validation import shown


class PlanError(ValueError):
    """A schedule that this model, or this method, cannot follow."""


class Schedule(ABC):
    """A rule for token counts. ``kind`` is its name on the command line and in saved files."""

    kind: ClassVar[str]

    @abstractmethod
    def counts(self, method: Method, depth: int, n: int) -> tuple[int, ...]:
        """Patch tokens after each of ``depth`` blocks, starting from ``n``; at the kv site, keys in each block."""

    def soft_blocks(self, method: Method, depth: int, n: int) -> tuple[int, ...]:
        """Blocks in which the method acts although no token goes."""
        return ()


@dataclass(frozen=True, init=False)
class Keep(Schedule):
    """Keep these numbers of patch tokens: a list with one count per block, or ``{block: count}``.

    Counts include a fused token. Blocks that are not named keep all their tokens; ``Keep({})`` changes nothing.
    """

    pairs: tuple[tuple[int, int], ...]
    """(block, count) pairs, sorted by block."""
    listed: bool
    """Whether it was given as a list, which must have one count per block."""
    kind: ClassVar[str] = "keep"

    def __init__(self, plan: Sequence[int] | Mapping[int, int]) -> None:
        named = isinstance(plan, Mapping)
        if not named and (isinstance(plan, str) or not isinstance(plan, Sequence)):
            raise PlanError(f"Keep takes a list with one count per block, or {{block: count}}; got {shown(plan)}.")
        pairs = tuple(plan.items()) if isinstance(plan, Mapping) else tuple(enumerate(plan))
        for number in (x for pair in pairs for x in pair):
            if isinstance(number, bool) or not isinstance(number, int) or number < 0:
                raise PlanError(f"Keep takes whole numbers of at least 0; got {shown(number)} in {shown(plan)}.")
        object.__setattr__(self, "pairs", tuple(sorted(pairs)))
        object.__setattr__(self, "listed", not named)

    def __repr__(self) -> str:
        return f"Keep({[count for _, count in self.pairs] if self.listed else dict(self.pairs)})"

    def counts(self, method: Method, depth: int, n: int) -> tuple[int, ...]:
        wanted = dict(self.pairs)
        if self.listed and len(wanted) != depth:
            raise PlanError(
                f"Keep lists {len(wanted)} counts but the model has {depth} blocks. "
                "Give one count per block, or name blocks: Keep({3: 100})."
            )
        check_blocks("Keep", tuple(wanted), depth)
        counts, current = [], n
        for block in range(depth):
            current = n if method.site is Site.KV else current  # every block starts from all keys again
            if block in wanted:
                _check_step(self, method.in_block(block, depth), block, current, wanted[block])
                current = wanted[block]
            counts.append(current)
        return tuple(counts)


@dataclass(frozen=True)
class KeepRate(Schedule):
    """Keep the fraction ``rate`` of the tokens at each of ``blocks``; the method decides how to round.

    By default, blocks are at a quarter, a half and three quarters of the depth: 3, 6, 9 of 12.
    """

    rate: float
    blocks: tuple[int, ...] | None = None
    kind: ClassVar[str] = "keep-rate"

    def __post_init__(self) -> None:
        if isinstance(self.rate, bool) or not isinstance(self.rate, (int, float)) or not 0 < self.rate <= 1:
            hint = f" For {self.rate:g} % write {self.rate / 100:g}." if _is_percent(self.rate) else ""
            raise PlanError(f"KeepRate.rate is the fraction kept, in (0, 1]; got {shown(self.rate)}.{hint}")
        object.__setattr__(self, "blocks", _as_blocks("KeepRate", self.blocks))

    def counts(self, method: Method, depth: int, n: int) -> tuple[int, ...]:
        sites = middle_blocks(depth, 3) if self.blocks is None else self.blocks
        check_blocks("KeepRate", sites, depth)
        counts, current = [], n
        for block in range(depth):
            current = n if method.site is Site.KV else current
            if block in sites and self.rate < 1:
                own = method.in_block(block, depth)
                wanted = own.keep_count(self.rate, current, n, sites.index(block) + 1)
                _check_step(self, own, block, current, wanted)
                current = wanted
            counts.append(current)
        return tuple(counts)

    def soft_blocks(self, method: Method, depth: int, n: int) -> tuple[int, ...]:
        sites = middle_blocks(depth, 3) if self.blocks is None else self.blocks
        counts = (n, *self.counts(method, depth, n))
        stages = ((stage, block, counts[block]) for stage, block in enumerate(sites, start=1))
        acts = [
            block
            for stage, block, left in stages
            if counts[block + 1] == left and method.in_block(block, depth).acts_on_all(self.rate, left, n, stage)
        ]
        return tuple(acts) if self.rate < 1 else ()


@dataclass(frozen=True)
class RemovePerBlock(Schedule):
    """Remove up to ``r`` tokens in every block: fewer if the method cannot remove as many, and never the last token.

    ``inflection`` tilts it, as ToMe's ``(r, inflection)``: the number removed changes linearly from int(r (1 - i)) in
    the first block to about r (1 + i) in the last. -1 removes 2 r in the first block and none in the last, ToMe's
    "decreasing schedule"; 0 is constant.
    """

    r: int
    inflection: float = 0.0
    kind: ClassVar[str] = "remove"

    def __post_init__(self) -> None:
        if isinstance(self.r, bool) or not isinstance(self.r, int) or self.r < 0:
            raise PlanError(f"RemovePerBlock.r must be a whole number of at least 0, got {shown(self.r)}.")
        tilt = self.inflection
        if isinstance(tilt, bool) or not isinstance(tilt, (int, float)) or not -1 <= tilt <= 1:
            raise PlanError(f"RemovePerBlock.inflection must be a number from -1 to 1, got {shown(tilt)}.")

    def __repr__(self) -> str:
        return f"RemovePerBlock(r={self.r}{f', inflection={self.inflection}' if self.inflection else ''})"

    def removals(self, depth: int) -> tuple[int, ...]:
        """Tokens to remove in each block."""
        first = int(self.r * (1 - self.inflection))
        step = 2 * (self.r - first) / max(1, depth - 1)
        return tuple(int(first + step * block) for block in range(depth))

    def counts(self, method: Method, depth: int, n: int) -> tuple[int, ...]:
        counts, current = [], n
        for block, removed in enumerate(self.removals(depth)):
            current = n if method.site is Site.KV else current
            current = max(current - removed, method.in_block(block, depth).fewest(current), min(current, 1))
            counts.append(current)
        return tuple(counts)


@dataclass(frozen=True)
class Budget(Schedule):
    """Spend ``fraction`` of the unreduced model's MACs, within 1 %, the method's own cost included.

    Each of ``blocks`` removes the same share of its tokens. By default the method chooses the blocks
    (``Method.spread``). The share depends on the cost of the model, so ``foveate.costs.make_plan`` resolves this
    schedule.
    """

    fraction: float
    blocks: tuple[int, ...] | None = None
    kind: ClassVar[str] = "budget"

    def __post_init__(self) -> None:
        value = self.fraction
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= 1:
            hint = f" For {value:g} % write {value / 100:g}." if _is_percent(value) else ""
            raise PlanError(f"Budget.fraction is a share of the MACs, in (0, 1]; got {shown(value)}.{hint}")
        object.__setattr__(self, "blocks", _as_blocks("Budget", self.blocks))

    def __repr__(self) -> str:
        return f"Budget({self.fraction})" if self.blocks is None else f"Budget({self.fraction}, blocks={self.blocks})"

    def counts(self, method: Method, depth: int, n: int) -> tuple[int, ...]:
        raise PlanError(f"{self!r} depends on the model's cost. Resolve it with foveate.costs.make_plan.")


@dataclass(frozen=True)
class Adaptive(Schedule):
    """Give every image as many tokens as it needs, with ``fraction`` of the MACs on average.

    There are ``levels`` plans, ``Budget``s from fraction (1 - span) to fraction (1 + span), all at the same blocks. At
    the first of these, the method tells what removing one token after another would cost (``Method.removal_costs``:
    what merging a pair loses, or the share of attention that is dropped). The more of these removals cost less than
    ``threshold``, the fewer tokens the image gets: all for the cheapest plan, none for the dearest.
    ``fv.fit_adaptive_(model, images)`` finds the threshold at which images meet the fraction on average. Levels that a
    method cannot reach are left out.
    """

    fraction: float
    blocks: tuple[int, ...] | None = None
    threshold: float | None = None
    """Cost below which a removal counts as cheap; None until it is fitted."""
    span: float = 0.3
    """How far the budgets of images may be from the average, relative to it."""
    levels: int = 7
    """Number of plans; images of one plan run together."""
    kind: ClassVar[str] = "adaptive"

    def __post_init__(self) -> None:
        Budget(self.fraction, self.blocks)  # the same checks
        object.__setattr__(self, "blocks", _as_blocks("Adaptive", self.blocks))
        for name, least, most in (("span", 0, 1), ("levels", 2, 100)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not least < value + 1e-9 <= most:
                raise PlanError(f"Adaptive.{name} must be from {least} to {most}, got {shown(value)}.")
        if not isinstance(self.levels, int):
            raise PlanError(f"Adaptive.levels must be a whole number, got {shown(self.levels)}.")
        value = self.threshold
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float) or value != value):
            raise PlanError(f"Adaptive.threshold must be a number, or None until fitted; got {shown(value)}.")

    def __repr__(self) -> str:
        names = [field.name for field in dataclasses.fields(self)][1:]
        changed = [n for n in names if getattr(self, n) != getattr(type(self), n)]
        return f"Adaptive({', '.join([str(self.fraction), *(f'{n}={getattr(self, n)!r}' for n in changed)])})"

    @property
    def budgets(self) -> tuple[float, ...]:
        """The budget of each level, rising."""
        low, high = self.fraction * (1 - self.span), min(1.0, self.fraction * (1 + self.span))
        return tuple(low + (high - low) * level / (self.levels - 1) for level in range(self.levels))

    def counts(self, method: Method, depth: int, n: int) -> tuple[int, ...]:
        raise PlanError(f"{self!r} depends on the model's cost and the image. Resolve it with foveate.costs.make_plan.")

    def choose(self, costs: Tensor, firsts: Sequence[int]) -> Tensor:
        """The level (B,) of each image.

        Args:
            costs: (B, M) of removing one token after another, rising.
            firsts: each level's count after the first reduction, rising.
        """
        assert self.threshold is not None
        cheap = (costs < self.threshold).float().mean(dim=1, keepdim=True)
        wanted = firsts[-1] - (firsts[-1] - firsts[0]) * cheap
        return (torch.tensor(firsts, device=costs.device) - wanted).abs().min(dim=1).indices

    def fitted(self, costs: Tensor, firsts: Sequence[int], macs: Sequence[int], target: float) -> Adaptive:
        """The same schedule with the threshold at which images with these ``costs`` cost ``target`` on average."""
        values = costs[costs.isfinite()].unique()  # sorted; counts change only at these
        if not len(values):
            raise ValueError("No image has a finite cost of removing tokens, so no threshold can be fitted.")
        spent = torch.tensor(macs, dtype=torch.float64)

        def trial(place: int) -> tuple[float, Adaptive]:
            found = dataclasses.replace(self, threshold=_between(values, place))
            return float(spent[found.choose(costs, firsts).cpu()].mean()), found

        low, high = 0, len(values)  # a higher threshold removes more
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if trial(middle)[0] <= target else (middle + 1, high)
        return min((trial(place) for place in {max(0, low - 1), low}), key=lambda pair: abs(pair[0] - target))[1]


def _between(values: Tensor, place: int) -> float:
    """A threshold above the first ``place`` values: halfway to the next, so that rounding decides about no token."""
    if place == 0:
        return float(values[0]) - 1
    if place == len(values):
        return float(values[-1]) + 1
    return float(values[place - 1] + values[place]) / 2


SCHEDULES: dict[str, type[Schedule]] = {s.kind: s for s in (Keep, KeepRate, RemovePerBlock, Budget, Adaptive)}


def schedule_to_dict(schedule: Schedule) -> dict[str, object]:
    """Convert a schedule to plain data, ready for JSON; ``schedule_from_dict`` is the inverse."""
    if isinstance(schedule, Keep):
        return {"kind": schedule.kind, "pairs": [list(pair) for pair in schedule.pairs], "listed": schedule.listed}
    if SCHEDULES.get(getattr(schedule, "kind", "")) is not type(schedule):
        raise PlanError(f"{schedule!r} is not one of {', '.join(SCHEDULES)} and cannot be stored.")
    return {"kind": schedule.kind, **dataclasses.asdict(schedule)}  # type: ignore[call-overload]


def schedule_from_dict(data: Mapping[str, Any]) -> Schedule:
    """Read the output of ``schedule_to_dict``.

    Raises:
        PlanError: if the kind is unknown, keys are unknown or missing, or a value is not valid.
    """
    if not isinstance(data, Mapping):
        raise PlanError(f"A stored schedule must be a mapping, got {data!r:.80}.")
    options = {str(key): value for key, value in data.items() if key != "kind"}
    kind = SCHEDULES.get(str(data.get("kind")))
    if kind is None:
        raise PlanError(f"There is no schedule {data.get('kind')!r}. Known: {', '.join(SCHEDULES)}.")
    try:
        if kind is Keep:
            pairs = [(block, count) for block, count in options.pop("pairs")]
            plan = [count for _, count in pairs] if options.pop("listed") else dict(pairs)
            return Keep(plan, **options)
        return kind(**options)
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, PlanError):
            raise
        raise PlanError(f"The stored schedule {dict(data)!r:.120} has wrong or missing keys: {error}.") from error


def _as_blocks(name: str, blocks: Sequence[int] | int | None) -> tuple[int, ...] | None:
    if blocks is None:
        return None
    if not isinstance(blocks, int | Sequence) or isinstance(blocks, str | bytes):
        raise PlanError(f"{name}.blocks must be a list of blocks such as (3, 6, 9), got {shown(blocks)}.")
    blocks = (blocks,) if isinstance(blocks, int) else tuple(blocks)
    if wrong := [block for block in blocks if isinstance(block, bool) or not isinstance(block, int)]:
        raise PlanError(f"{name}.blocks must be whole numbers, counted from 0; got {shown(wrong[0])}.")
    if list(blocks) != sorted(set(blocks)):
        raise PlanError(f"{name}.blocks must rise without repeats, got {blocks}.")
    return blocks


def _is_percent(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 1 < value <= 100


def check_blocks(name: str, blocks: Sequence[int], depth: int) -> None:
    """Raise ``PlanError`` for blocks that a model of ``depth`` blocks does not have."""
    wrong = [b for b in blocks if isinstance(b, bool) or not isinstance(b, int) or not 0 <= b < depth]
    if wrong:
        raise PlanError(f"{name}.blocks={tuple(blocks)} but the model has {depth} blocks (0..{depth - 1}).")


def _check_step(schedule: Schedule, method: Method, block: int, current: int, wanted: int) -> None:
    """Raise ``PlanError`` for a step that raises the count or removes more than the method can."""
    name = type(method).__name__
    if wanted > current:
        raise PlanError(
            f"{schedule!r} asks for {wanted} tokens after block {block}, but only {current} are left there. "
            "Counts may only fall from block to block."
        )
    if wanted < current and wanted < (least := method.fewest(current)):
        raise PlanError(
            f"{schedule!r} asks {name} to go from {current} tokens to {wanted} in block {block}; "
            f"{name} can reach {least} at the lowest in one step. Spread the reduction over more blocks."
        )
