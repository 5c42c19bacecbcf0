"""Token Merging (Bolya et al., ICLR 2023)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from foveate.core import Assignment, merge_most_similar
from foveate.core.match import halves
from foveate.methods.base import BlockView, Kind, Method, Need, Site, StepShape
from foveate.methods.registry import register


@register
@dataclass(frozen=True)
class ToMe(Method):
    """Merge the most similar pairs of tokens, a few in every block.

    Tokens at alternating positions of the whole sequence form two halves. Each token of the first half proposes to its
    nearest token in the second, by the cosine of keys averaged over heads. The best proposals merge into means weighted
    by size. Prefix tokens count in the alternation, so the halves are the same as in the original.

    Deviations: register tokens, which the original does not support, are never merged. On a model without a class
    token the tokens that stay keep their order; the original sorts them by similarity.
    """

    proportional_attention: bool = True
    """Add log(size) to attention logits, so that a merged token weighs as much as its members."""

    site: ClassVar[Site] = Site.POST_ATTN
    kind: ClassVar[Kind] = "merge"

    @property
    def uses_size(self) -> bool:
        return True  # means are weighted by size even without proportional attention

    def needs(self, has_cls: bool) -> frozenset[Need]:
        return frozenset({"keys"})

    def assign(self, view: BlockView, keep: int) -> Assignment:
        metric = view.keys.sum(dim=1)  # the cosine of sums equals the cosine of means
        # phase: sources are at even positions of the whole sequence, which starts with `prefix` other tokens
        return merge_most_similar(metric, keep, view.size, phase=view.prefix % 2)

    def macs(self, step: StepShape) -> int:
        sources, targets = halves(step.n, step.prefix % 2)
        return sources * targets * step.head_dim

    def fewest(self, n: int) -> int:
        return n - n // 2

    def spread(self, strength: float, depth: int, n: int) -> tuple[int, ...]:
        """The original's shape: the same number removed in every block, up to half of the first count."""
        counts, current = [], n
        for block in range(depth):
            wanted = round(n - strength * n / 2 * (block + 1))
            current = max(1, self.fewest(current), min(current, wanted))
            counts.append(current)
        return tuple(counts)
