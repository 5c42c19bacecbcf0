"""What a method is, a frozen dataclass that holds both options and behavior, and what it can see.

Methods that learn derive from ``LearnedMethod`` (learned.py).
"""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar, Literal, Self

from torch import Tensor, nn

from foveate.core import Assignment, pool
from foveate.methods.validation import checked_option, option_types, schedule_hint

Need = Literal["cls_attn", "cls_value_attn", "attn_received", "attn_from_others", "keys", "normed", "mlp_shift"]
Kind = Literal["select", "merge", "cluster", "pool", "learned"]
NOTHING: frozenset[Need] = frozenset()
KEPT_PER_TWELFTH: dict[Kind, float] = {"select": 0.9, "merge": 0.78, "cluster": 0.78, "pool": 0.78, "learned": 0.78}
"""Share of its tokens that a twelfth of the depth keeps by default, once reduction has begun: docs/schedules.md."""


class Site(Enum):
    """Where in a block tokens are reduced."""

    PRE_BLOCK = "pre_block"
    """Before the block."""
    POST_ATTN = "post_attn"
    """Between attention and MLP; the only site where scores from attention exist."""
    POST_BLOCK = "post_block"
    """After the block."""
    KV = "kv"
    """On keys and values only; queries, and so the tokens of the stream, stay."""


AVAILABLE: dict[Site, frozenset[Need]] = {
    Site.PRE_BLOCK: NOTHING,
    Site.POST_ATTN: frozenset({"cls_attn", "cls_value_attn", "attn_received", "attn_from_others", "keys", "normed"}),
    Site.POST_BLOCK: frozenset({"mlp_shift"}),
    Site.KV: NOTHING,
}
"""What a method may ask for at each site."""


class NotComputed(type):
    """Stands for a score that a method did not ask for; whoever uses it learns how to.

    A class and not an object, because torch.compile keeps classes apart from a graph's values.
    """

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):  # Python looks for these by itself, e.g. to copy
            raise AttributeError(name)
        raise cls.error()

    @classmethod
    def __torch_function__(mcs, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise next(value for value in (*args, *(kwargs or {}).values()) if isinstance(value, mcs)).error()

    def error(cls) -> ValueError:
        return ValueError(
            f"The method reads view.{cls.__name__}, which was not computed. Override needs(self, has_cls) and return "
            f"frozenset({{{cls.__name__!r}}})."
        )


@dataclass(frozen=True)
class BlockView:
    """What a method sees at its site in one block.

    Only the scores that the method's ``needs`` lists are computed.
    """

    tokens: Tensor  # (B, P + N, C) the whole sequence
    prefix: int  # P: class, distillation and register tokens in front, never reduced
    size: Tensor | None  # (B, N) patches each token stands for; None if all are 1 or the method does not use sizes
    block: int  # index of the block, from 0
    has_cls: bool
    grid: tuple[int, int] | None = None  # rows and columns of the image's patches, before any reduction
    module: nn.Module | None = None  # this block's module, for learned methods
    depth: int = 1  # number of blocks of the model
    cls_attn: Tensor = dataclasses.field(default=NotComputed("cls_attn", (), {}))  # type: ignore[assignment]  # (B, N)
    attn_received: Tensor = dataclasses.field(default=NotComputed("attn_received", (), {}))  # type: ignore[assignment]  # (B, N)
    attn_from_others: Tensor = dataclasses.field(default=NotComputed("attn_from_others", (), {}))  # type: ignore[assignment]  # (B, N)
    keys: Tensor = dataclasses.field(default=NotComputed("keys", (), {}))  # type: ignore[assignment]  # (B, H, N, D)
    cls_value_attn: Tensor = dataclasses.field(default=NotComputed("cls_value_attn", (), {}))  # type: ignore[assignment]  # (B, N)
    normed: Tensor = dataclasses.field(default=NotComputed("normed", (), {}))  # type: ignore[assignment]  # (B, N, C)
    mlp_shift: Tensor = dataclasses.field(default=NotComputed("mlp_shift", (), {}))  # type: ignore[assignment]  # (B, N)

    @property
    def patches(self) -> Tensor:
        """The tokens that may be reduced, (B, N, C)."""
        return self.tokens[:, self.prefix :]


@dataclass(frozen=True)
class StepShape:
    """The sizes that determine the cost of one reduction."""

    n: int  # patch tokens before
    keep: int  # and after
    prefix: int
    dim: int
    heads: int
    head_dim: int
    has_cls: bool
    grid: tuple[int, int] | None = None  # rows and columns of the image's patches, before any reduction

    @property
    def cls_row_macs(self) -> int:
        """MACs of the class token's row of attention logits."""
        return self.heads * self.head_dim * (self.prefix + self.n)


@dataclass(frozen=True)
class Method(ABC):
    """One way to choose the tokens that stay. A subclass sets ``site`` and ``kind`` and implements ``assign``."""

    site: ClassVar[Site]
    kind: ClassVar[Kind]
    """What it does with tokens. Listings and charts group methods by kind."""
    name: ClassVar[str]
    """The name of the class, also used on the command line and in saved files."""
    needs_class_token: ClassVar[bool] = False
    training_free: ClassVar[bool] = True
    """Whether it works on a pretrained model without training."""
    baseline: ClassVar[bool] = False
    """Whether it is only a reference for other methods; reports mark it and never recommend it."""
    heads_weigh_by_size: ClassVar[bool] = True
    """Whether heads that average patch tokens weigh each by the number of patches it stands for."""

    @abstractmethod
    def assign(self, view: BlockView, keep: int) -> Assignment:
        """Assign the view's patch tokens to ``keep`` slots."""

    def combine(self, view: BlockView, assignment: Assignment) -> Tensor:
        """The new sequence (B, P + keep, C). By default, weighted sums over the edges."""
        return pool(view.tokens, assignment, prefix=view.prefix)

    def reduce(self, view: BlockView, keep: int) -> tuple[Assignment, Tensor]:
        """``assign``, then ``combine``. Methods override it to do both at once where that is faster."""
        assignment = self.assign(view, keep)
        return assignment, self.combine(view, assignment)

    def in_block(self, index: int, depth: int) -> Method:
        """The method of block ``index``: itself, unless its blocks differ (``Mixture``).

        Whoever knows the block asks this method for its site, needs, cost and smallest count.
        """
        return self

    def within(self, first: int, last: int) -> Method:
        """The same method for a model that has only the blocks from ``first`` to ``last``."""
        return self

    def sites(self, depth: int) -> tuple[Site, ...]:
        """Where each block reduces."""
        return tuple(self.in_block(index, depth).site for index in range(depth))

    def needs(self, has_cls: bool) -> frozenset[Need]:
        """What it reads from attention on a model with (``has_cls``) or without a class token."""
        return NOTHING

    @property
    def proportional_attention(self) -> bool:
        """Whether later attention adds log(size), so that a merged token weighs as much as its members.

        Methods that offer a choice declare an option of this name.
        """
        return False

    @property
    def size_damping(self) -> float:
        """How much less log(size) counts in a stronger reduction: 0 for all of it (``size_strength``).

        Methods that offer a choice declare an option of this name.
        """
        return 0.0

    @property
    def uses_size(self) -> bool:
        """Whether the method or later attention reads sizes; otherwise they are not tracked."""
        return self.proportional_attention

    def macs(self, step: StepShape) -> int:
        """Multiply-accumulates of the method's own matrix products for one image."""
        return 0

    def removal_costs(self, view: BlockView) -> Tensor | None:
        """What removing one token after another costs, cheapest first: (B, M), rising; None if the method cannot tell.

        ``Adaptive`` gives images fewer tokens whose removals are cheap. Costs must be comparable between images.
        """
        return None

    def removal_macs(self, step: StepShape) -> int:
        """Multiply-accumulates of ``removal_costs`` for one image."""
        return 0

    def keep_count(self, rate: float, current: int, first: int, stage: int) -> int:
        """Number of tokens to keep at a keep rate. By default, ``rate * current``, rounded up.

        Args:
            rate: fraction kept.
            current: tokens before this stage.
            first: tokens before the first stage.
            stage: number of this stage, from 1.
        """
        return math.ceil(rate * current - 1e-9)  # 0.7 * 10 may be 7.000000000000001, which must still give 7

    def acts_on_all(self, rate: float, current: int, first: int, stage: int) -> bool:
        """Whether it acts at a keep rate that leaves as many slots as there are tokens; arguments: ``keep_count``."""
        return False

    def fewest(self, n: int) -> int:
        """The smallest count that one step can reach from n tokens; 0 if all tokens may be removed."""
        return 0

    def own_counts(self, depth: int, grid: tuple[int, int]) -> tuple[int, ...] | None:
        """Counts after each block if the method fixes them itself; None if it follows a schedule.

        Args:
            depth: number of blocks.
            grid: rows and columns of the image's patches.
        """
        return None

    def free_slice(self) -> Method | None:
        """The upper limit of its speed, if one blind cut (``FreeSlice``) is not the same work; else None."""
        return None

    def spread(self, strength: float, depth: int, n: int) -> tuple[int, ...]:
        """Counts after each block for a strength in [0, 1). ``Budget`` searches over the strength.

        Strength 0 keeps every token, and counts never rise with the strength. By default (docs/schedules.md) every
        block keeps the same share of its tokens, from some block on to three quarters of the depth. The strength moves
        that block to the front; once it is the first that may reduce, all blocks keep less. Where tokens are selected,
        only those of the first half do, and those behind it end, the last one first. Merging may begin in block 0,
        other kinds spare the first twelfth.
        """
        last = min(depth - 1, 3 * depth // 4)
        first = 0 if self.kind == "merge" else min(last, math.ceil(depth / 12))
        steps, share = last - first + 1, KEPT_PER_TWELFTH[self.kind] ** (12 / depth)
        stronger = max(1, depth // 2 - first + 1) if self.kind == "select" else steps
        worth = strength * steps * max(1.0, -math.log(n) / math.log(share))  # in blocks that keep `share`
        beyond = max(0.0, worth - steps)
        behind = (steps - stronger) * max(0.0, 1 - beyond / steps)  # blocks that still reduce behind the first half
        counts, current = [], n
        for block in range(depth):
            done = min(max(0, block - first + 1), steps)
            early = min(done, stronger)
            power = max(0.0, early + min(done - early, behind) - max(0.0, steps - worth)) + beyond * early / stronger
            wanted = current if done == 0 else max(1, min(current, round(n * share**power)))
            current = current if wanted == current else max(wanted, self.in_block(block, depth).fewest(current))
            counts.append(current)
        return tuple(counts)

    def equal_ratio(self, blocks: Collection[int], strength: float, depth: int, n: int) -> tuple[int, ...]:
        """Counts after each block if each of ``blocks`` removes the same fraction, ``strength``."""
        counts, current, stage = [], n, 0
        for block in range(depth):
            if block in blocks:
                stage += 1
                least = max(1, self.in_block(block, depth).fewest(current))
                current = max(least, min(current, round(n * (1 - strength) ** stage)))
            counts.append(current)
        return tuple(counts)

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.name = cls.__name__

    def __new__(cls, *args: object, **options: object) -> Self:
        """Reject arguments of other implementations, such as ``ToMe(r=13)``, with the form to use here."""
        for option, value in options.items():
            if hint := schedule_hint(cls, option, value):
                raise TypeError(hint)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        """Check the type of every option and normalize its value."""
        for name, kind in option_types(type(self)).items():
            value = checked_option(f"{self.name}.{name}", kind, getattr(self, name))
            object.__setattr__(self, name, value)
        if self.size_damping < 0:
            raise ValueError(f"{self.name}.size_damping must be at least 0, got {self.size_damping}.")


def middle_blocks(depth: int, number: int) -> tuple[int, ...]:
    """Evenly spaced blocks from a quarter to three quarters of the depth: of 12 blocks, 3, 6, 9 or 3, 5, 7, 9."""
    gaps = 4 * (number - 1)
    spared = min(depth - 1, math.ceil(depth / 4))  # leave out blocks that start in the first quarter
    return tuple(sorted({max(spared, depth * (number - 1 + 2 * i) // gaps) for i in range(number)}))
