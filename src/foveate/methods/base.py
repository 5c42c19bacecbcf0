"""What a method is: a frozen dataclass that is both its configuration and its behaviour, and what it may see."""

from __future__ import annotations

import dataclasses
import math
import typing
from abc import ABC, abstractmethod
from collections.abc import Collection
from dataclasses import dataclass, fields
from enum import Enum
from functools import cache
from typing import ClassVar, Literal, TypeVar

from torch import Tensor, nn

from foveate.core import Assignment, pool

Need = Literal["cls_attn", "attn_received", "keys"]
Kind = Literal["select", "merge", "cluster", "pool", "learned"]
NOTHING: frozenset[Need] = frozenset()


class Site(Enum):
    """Where in a block tokens are reduced."""

    PRE_BLOCK = "pre_block"
    """Before the block."""
    POST_ATTN = "post_attn"
    """Between attention and MLP; the only site where scores from attention exist."""
    POST_BLOCK = "post_block"
    """After the block."""
    KV = "kv"
    """On keys and values alone: queries, and so the tokens of the stream, stay."""


@dataclass(frozen=True)
class BlockView:
    """What a method sees at its site in one block.

    The scores are filled in only where the method's ``needs`` name them, so that nothing else is computed.
    """

    tokens: Tensor  # (B, P + N, C) the whole sequence
    prefix: int  # P: class, distillation and register tokens in front, never reduced
    size: Tensor | None  # (B, N) patches each token stands for; None while all are one, or if not ``uses_size``
    block: int  # index of the block, from 0
    has_cls: bool
    grid: tuple[int, int] | None = None  # rows and columns of the image's patches, before any reduction
    module: nn.Module | None = None  # this block's module, for methods that learn
    cls_attn: Tensor = dataclasses.field(default=None)  # type: ignore[assignment]  # (B, N)
    attn_received: Tensor = dataclasses.field(default=None)  # type: ignore[assignment]  # (B, N)
    keys: Tensor = dataclasses.field(default=None)  # type: ignore[assignment]  # (B, H, N, D)

    @property
    def patches(self) -> Tensor:
        """The tokens that may be reduced, (B, N, C)."""
        return self.tokens[:, self.prefix :]


@dataclass(frozen=True)
class StepShape:
    """The sizes that decide what one reduction costs."""

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
        """The class token's row of attention logits."""
        return self.heads * self.head_dim * (self.prefix + self.n)


@dataclass(frozen=True)
class Method(ABC):
    """One way to choose the tokens that stay. Subclasses set ``site``, say what they need, and ``assign``."""

    site: ClassVar[Site]
    name: ClassVar[str]
    """Name on the command line and in saved files; set by ``register``, as the next two are."""
    label: ClassVar[str]
    """Name for people, in tables and pictures."""
    kind: ClassVar[Kind]
    needs_class_token: ClassVar[bool] = False
    training_free: ClassVar[bool] = True
    """Whether it is meant to work on a pretrained model as it is."""
    trains_by_masks: ClassVar[bool] = False
    """Whether training keeps all tokens and masks attention by ``decide``, instead of removing any."""
    heads_weigh_by_size: ClassVar[bool] = True
    """Whether heads that read patch tokens count each as often as it stands for a patch."""

    def __post_init__(self) -> None:
        """Refuse a misspelt choice here, where it was made; later it would only mean something else."""
        for name, kind in _option_types(type(self)).items():
            _check_option(f"{type(self).__name__}.{name}", kind, getattr(self, name))

    @property
    def carries_size(self) -> bool:
        """Whether later attention adds log(size), so that a merged token keeps its members' weight."""
        return bool(getattr(self, "carry", False))

    @property
    def uses_size(self) -> bool:
        """Whether it reads ``view.size``, or has later attention read it; nobody else's sizes are tracked."""
        return self.carries_size

    def needs(self, has_cls: bool) -> frozenset[Need]:
        """What it reads from attention, on a model with or without a class token."""
        return NOTHING

    @abstractmethod
    def assign(self, view: BlockView, keep: int) -> Assignment:
        """Decide which of the view's patch tokens go to which of ``keep`` slots."""

    def decide(self, view: BlockView, kept: Tensor | None) -> Tensor:
        """While it trains by masks: which patch tokens stay, (B, N) of ones and zeros with gradients.

        ``kept`` is what the stage before decided, None at the first.
        """
        raise NotImplementedError(f"{type(self).__name__} removes tokens in training too.")

    def combine(self, view: BlockView, assignment: Assignment) -> Tensor:
        """The new sequence, (B, P + keep, C): weighted sums over the edges unless a method says otherwise."""
        return pool(view.tokens, assignment, prefix=view.prefix)

    def build(self, step: StepShape, block: int) -> nn.Module | None:
        """The module this block's reduction learns, seen again as ``view.module``; None for most methods.

        Called once for every block that reduces. Its parameters live in the model's state dict under ``foveate.``;
        those it lists in an attribute ``no_weight_decay`` are spared by timm's optimisers, as the model's own are.
        """
        return None

    def resize(self, old: nn.Module, new: nn.Module) -> None:
        """Give ``new``, built for images of another size, what ``old`` has learned."""
        try:
            new.load_state_dict(old.state_dict())
        except RuntimeError as error:
            raise ValueError(
                f"What {type(self).__name__} has learned belongs to one image size and cannot be carried to another. "
                "Build the model for that size, reduce it, and train it there."
            ) from error

    def free_slice(self) -> Method | None:
        """What its speed is measured against, where cutting blindly (``FreeSlice``) would leave out a part of it."""
        return None

    def macs(self, step: StepShape) -> int:
        """Multiply-accumulates of its own matrix products for one image, beyond those of the unreduced block."""
        return 0

    def keep_count(self, rate: float, current: int, first: int, stage: int) -> int:
        """Tokens left when ``rate`` of them are kept: ``current`` now, ``first`` at the start, ``stage`` from 1.

        The method owns this rounding; the default rounds up from the current count.
        """
        return math.ceil(rate * current - 1e-9)  # 0.7 * 10 is 7.000000000000001 or so: still 7

    def own_counts(self, depth: int, grid: tuple[int, int]) -> tuple[int, ...] | None:
        """Counts after each block where the method itself fixes them, so that no schedule is needed.

        ``grid``: rows and columns of the image's patches.
        """
        return None

    def soft_blocks(self, depth: int) -> tuple[int, ...]:
        """Blocks in which it acts although no token goes, where it follows its own counts: training modules do."""
        return ()

    def fewest(self, n: int) -> int:
        """The smallest count one step can reach from n tokens; 0 where everything may go."""
        return 0

    def spread(self, strength: float, depth: int, n: int) -> tuple[int, ...]:
        """Counts after each block for a strength in [0, 1): the family in which ``Budget`` searches.

        0 keeps every token and counts never rise with the strength. The default keeps an equal ratio at three
        evenly spaced blocks, none in the first quarter, where reducing costs most.
        """
        return self.equal_ratio(middle_blocks(depth, 3), strength, depth, n)

    def equal_ratio(self, blocks: Collection[int], strength: float, depth: int, n: int) -> tuple[int, ...]:
        """Counts after each block where each of ``blocks`` removes the same fraction, ``strength``."""
        counts, current, stage = [], n, 0
        for block in range(depth):
            if block in blocks:
                stage += 1
                current = max(1, self.fewest(current), min(current, round(n * (1 - strength) ** stage)))
            counts.append(current)
        return tuple(counts)


@cache
def _option_types(cls: type) -> dict[str, object]:
    hints = typing.get_type_hints(cls)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls)}


def _check_option(where: str, kind: object, value: object) -> None:
    if typing.get_origin(kind) is Literal and value not in typing.get_args(kind):
        raise ValueError(f"{where} is one of {', '.join(map(str, typing.get_args(kind)))}; got {value!r}.")
    if kind is bool and not isinstance(value, bool):
        raise ValueError(f"{where} is true or false; got {value!r}.")
    if kind is int and (isinstance(value, bool) or not isinstance(value, int)):
        raise ValueError(f"{where} is a whole number; got {value!r}.")


def middle_blocks(depth: int, number: int) -> tuple[int, ...]:
    """Evenly spaced blocks from a quarter to three quarters of the depth: of 12, three are 3, 6, 9; four 3, 5, 7, 9."""
    gaps = 4 * (number - 1)
    spared = min(depth - 1, math.ceil(depth / 4))  # a block that begins in the first quarter is none of them
    return tuple(sorted({max(spared, depth * (number - 1 + 2 * i) // gaps) for i in range(number)}))


M = TypeVar("M", bound=type[Method])
_METHODS: dict[str, type[Method]] = {}


def register(name: str, label: str, kind: Kind):  # type: ignore[no-untyped-def]
    """Make a method known by ``name`` to the command line, to saved files and to the contract tests.

    Comparisons call it by its ``label``, and say of which ``kind`` it is.
    """

    def decorate(cls: M) -> M:
        if name in _METHODS:
            raise ValueError(f"Two methods are called {name!r}: {_METHODS[name].__name__} and {cls.__name__}.")
        if cls.site is not Site.POST_ATTN and (cls.needs is not Method.needs):
            raise ValueError(f"{cls.__name__} needs scores from attention, which exist only at {Site.POST_ATTN}.")
        taken = {"name", "label", "kind"} & {option.name for option in fields(cls)}
        if taken:
            raise ValueError(
                f"{cls.__name__} has an option {taken.pop()!r}, which every method has. Call it otherwise."
            )
        cls.name, cls.label, cls.kind = name, label, kind
        _METHODS[name] = cls
        return cls

    return decorate


def all_methods() -> dict[str, type[Method]]:
    """Every registered method by name, in order of registration."""
    return dict(_METHODS)
