"""Two methods in one model: one in the first blocks, another in the later ones."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

from torch import Tensor

from foveate.core import Assignment
from foveate.methods.base import BlockView, Kind, Method, Need, Site
from foveate.methods.free_slice import speed_limit_of
from foveate.methods.learned import LearnedMethod
from foveate.methods.options import WRITTEN, parse
from foveate.methods.registry import register
from foveate.methods.tome import ToMe
from foveate.methods.validation import shown
from foveate.methods.ward import Ward


@register
@dataclass(frozen=True)
class Mixture(Method):
    """One method in the blocks before ``switch``, another from there on.

    A dear method goes where it keeps the most; a cheap one saves its time elsewhere. In each block its method does what
    it would do alone: its site, its scores, its rounding, its own cost. ``fv.search`` looks for mixtures by itself.

    Sizes are counted through all blocks if either method reads them, so that the second one finds what each token
    stands for. What a token counts for in attention (log-size bias) is decided by the method that made it: one with
    ``proportional_attention`` adds up what the members count for, one without takes their mean. A token that ``Ward``
    merged therefore still counts for its members when ``EViT`` reduces next, and the token that ``EViT`` fuses counts
    for one of them, as it does in ``EViT`` alone.

    ``Budget`` chooses blocks as for methods of the first one's kind. Both methods must work without training, follow a
    schedule, and leave tokens that stand for patches. A mixture holds no other mixture and takes no ``Adaptive``.
    """

    first: Method = field(default=Ward(), metadata=WRITTEN)
    """Method of the blocks before ``switch``. A shell needs quotes:
    --method 'Mixture:first=Ward(rounds=2),then=ToMe,switch=6'."""
    then: Method = field(default=ToMe(), metadata=WRITTEN)
    """Method of block ``switch`` and all later ones."""
    switch: int = field(default=2, metadata=WRITTEN)  # merging in blocks 0 and 1 changes the output the most
    """First block of the second method, counted from 0."""

    site: ClassVar[Site] = Site.POST_ATTN
    kind: ClassVar[Kind] = "merge"

    def __post_init__(self) -> None:
        for place in ("first", "then"):
            given = getattr(self, place)
            part = parse(given) if isinstance(given, str) else given
            _check_part(place, part)
            object.__setattr__(self, place, part)
        super().__post_init__()
        if self.switch < 1:
            raise ValueError(f"Mixture.switch must be at least 1, got {self.switch}. Use one method alone instead.")
        parts = (self.first, self.then)
        own = {
            "site": self.first.site,
            "kind": self.first.kind,
            "needs_class_token": any(part.needs_class_token for part in parts),
            "training_free": all(part.training_free for part in parts),
            "baseline": any(part.baseline for part in parts),
        }
        for name, value in own.items():
            object.__setattr__(self, name, value)

    def in_block(self, index: int, depth: int) -> Method:
        if self.switch >= depth:
            raise ValueError(
                f"Mixture.switch={self.switch}, but of {depth} blocks (0..{depth - 1}) none is left for the second "
                f"method. {_way_out(depth)}"
            )
        return self.first if index < self.switch else self.then

    def within(self, first: int, last: int) -> Method:
        if first < self.switch <= last:
            return replace(self, switch=self.switch - first)
        return self.then if self.switch <= first else self.first

    def assign(self, view: BlockView, keep: int) -> Assignment:
        return self.in_block(view.block, view.depth).assign(view, keep)

    def combine(self, view: BlockView, assignment: Assignment) -> Tensor:
        return self.in_block(view.block, view.depth).combine(view, assignment)

    def needs(self, has_cls: bool) -> frozenset[Need]:
        return self.first.needs(has_cls) | self.then.needs(has_cls)

    @property
    def proportional_attention(self) -> bool:
        return self.first.proportional_attention or self.then.proportional_attention

    @property
    def size_damping(self) -> float:
        """One for the whole model, the larger of the two: a size counts as much behind the switch as before it."""
        parts = [part for part in (self.first, self.then) if part.proportional_attention]
        return max((part.size_damping for part in parts), default=0.0)

    @property
    def uses_size(self) -> bool:
        return self.first.uses_size or self.then.uses_size

    def fewest(self, n: int) -> int:
        """What either method can reach; ``in_block`` knows which one acts."""
        return max(self.first.fewest(n), self.then.fewest(n))

    def free_slice(self) -> Method:
        return replace(self, first=speed_limit_of(self.first), then=speed_limit_of(self.then))


def can_be_mixed(method: Method) -> bool:
    """Whether a method can be part of a mixture."""
    return not _obstacle(method)


def _check_part(place: str, part: object) -> None:
    if not isinstance(part, Method):
        raise ValueError(f"Mixture.{place} must be a method, such as ToMe() or 'tome'; got {shown(part)}.")
    if obstacle := _obstacle(part):
        raise ValueError(
            f"Mixture.{place} cannot be {part.name}, because {obstacle}. Use a method that merges or selects tokens "
            "without training, such as Ward, ToMe, TokenPooling or TopK."
        )


def _obstacle(method: Method) -> str:
    """Why a method cannot be part of a mixture; empty if it can."""
    if isinstance(method, Mixture):
        return "a mixture has two methods and cannot hold another mixture"
    if method.site is Site.KV:
        return "it reduces keys and values, and keeps all tokens"
    if isinstance(method, LearnedMethod):
        return "it learns modules of its own"
    if type(method).own_counts is not Method.own_counts:
        return "it fixes its own counts"
    if not method.heads_weigh_by_size:
        return "its tokens do not stand for patches, which the other method and the head would take them for"
    return ""


def _way_out(depth: int) -> str:
    return f"Use a switch from 1 to {depth - 1}." if depth > 1 else "Use one of its methods alone."
