"""Token Merging (Bolya et al., ICLR 2023)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from foveate.core import Assignment, counter_uniform, merge_most_similar, merge_most_similar_of
from foveate.core.graphs import largest_and_rest
from foveate.core.match import halves, proposal_costs
from foveate.methods.base import BlockView, Kind, Method, Need, Site, StepShape
from foveate.methods.registry import register


@register
@dataclass(frozen=True)
class ToMe(Method):
    """Merge the most similar pairs of tokens, a few in every block.

    Tokens at alternating positions of the whole sequence form two halves. Each token of the first half proposes to its
    nearest token in the second, by the cosine of keys averaged over heads. The best proposals merge into means weighted
    by size. Prefix tokens count in the alternation, so the halves are the same as in the original.

    ``split`` offers the original's two other ways to divide the tokens. ``kth``: every k-th token is a target, all
    others are sources, so that one step can leave n / k tokens. ``random``: as many sources as tokens are removed,
    drawn at random, are merged whatever their similarity; the draw is fixed by the seed and shared by all images. There
    prefix tokens do not count, tokens that stay keep their order, and ``kth`` merges only as many sources as the
    schedule removes, the most similar first, where the original merges all of them.

    The original removes the same number of tokens in every block: ``RemovePerBlock``. ``Budget`` spreads them as for
    other methods, which changes fewer decisions at equal cost.

    Deviations: register tokens, which the original does not support, are never merged. On a model without a class
    token the tokens that stay keep their order; the original sorts them by similarity. ``size_damping`` is ours, and
    off by default.
    """

    split: Literal["alternating", "kth", "random"] = "alternating"
    """What may merge into what: alternating halves, all others into every k-th token, a random draw into the rest."""
    k: int = 4
    """Every k-th token is a target, with ``split=kth``."""
    seed: int = 0
    """Seed of the draw, with ``split=random``."""
    proportional_attention: bool = True
    """Add log(size) to attention logits, so that a merged token weighs as much as its members."""
    size_damping: float = 0.0
    """How much less log(size) counts the fewer patches are left: times 1 - size_damping log(1 / s), with s the share of
    patches that enter a block, mean over blocks. It brings a classifier of photographs closer to
    the unreduced model, and takes a model that counts away from it; ``fv.search`` chooses it on your images."""

    site: ClassVar[Site] = Site.POST_ATTN
    kind: ClassVar[Kind] = "merge"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.k < 2:
            raise ValueError(f"ToMe.k must be at least 2, got {self.k}.")

    @property
    def uses_size(self) -> bool:
        return True  # means are weighted by size even without proportional attention

    def needs(self, has_cls: bool) -> frozenset[Need]:
        return frozenset({"keys"})

    def assign(self, view: BlockView, keep: int) -> Assignment:
        metric = view.keys.sum(dim=1)  # the cosine of sums equals the cosine of means
        if self.split != "alternating":
            sources, targets = self._groups(metric.shape[1], keep, view.block, metric.device)
            return merge_most_similar_of(metric, sources, targets, keep, view.size)
        # phase: sources are at even positions of the whole sequence, which starts with `prefix` other tokens
        return merge_most_similar(metric, keep, view.size, phase=view.prefix % 2)

    def removal_costs(self, view: BlockView) -> Tensor:
        """1 - cosine of each proposal between alternating halves."""
        return proposal_costs(view.keys.sum(dim=1), view.prefix % 2)

    def removal_macs(self, step: StepShape) -> int:
        return ToMe().macs(step)  # of alternating halves

    def macs(self, step: StepShape) -> int:
        sources, targets = halves(step.n, step.prefix % 2)
        if self.split == "kth":
            sources, targets = step.n - self.fewest(step.n), self.fewest(step.n)
        elif self.split == "random":
            sources, targets = step.n - step.keep, step.keep
        return sources * targets * step.head_dim

    def fewest(self, n: int) -> int:
        if self.split == "alternating":
            return n - n // 2
        return max(min(n, 1), n // self.k if self.split == "kth" else 0)

    def _groups(self, n: int, keep: int, block: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Tokens that may merge, and those they may merge into."""
        if self.split == "random":
            drawn = counter_uniform(n, self.seed, block, device).expand(1, n)
            leaving, staying = largest_and_rest(drawn, n - keep)
            return leaving[0], staying[0]
        first = min(self.k, n) - 1  # of fewer than k tokens the last is the only target
        targets = list(range(first, n // self.k * self.k or n, self.k))
        sources = sorted(set(range(n)) - set(targets))
        return torch.tensor(sources, device=device, dtype=torch.long), torch.tensor(targets, device=device)
