"""Token Merging (Bolya et al., ICLR 2023)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from foveate.core import Assignment, merge_most_similar
from foveate.core.match import halves
from foveate.methods.base import BlockView, Method, Need, Site, StepShape, register


@register("tome", "ToMe", "merge")
@dataclass(frozen=True)
class ToMe(Method):
    """Merge the most similar pairs of tokens, a few in every block.

    Tokens at alternating positions of the whole sequence form two halves; each token of the first proposes to its
    nearest in the second, by the cosine of keys averaged over heads, and the best proposals merge into means
    weighted by size. The stripped prefix tokens count in the alternation, as they do in the original, so the
    halves are the original's. Deviations: registers, which the original does not know, are never merged; and on a
    model without a class token the tokens that stay keep their order, where the original leaves them in order of
    similarity.
    """

    carry: bool = True
    """Add log(size) to attention logits: a merged token weighs as much as its members (proportional attention)."""

    site: ClassVar[Site] = Site.POST_ATTN

    @property
    def uses_size(self) -> bool:
        return True  # means are weighted by size, also where attention is not

    def needs(self, has_cls: bool) -> frozenset[Need]:
        return frozenset({"keys"})

    def assign(self, view: BlockView, keep: int) -> Assignment:
        metric = view.keys.sum(dim=1)  # the cosine of sums is that of means
        # phase: sources sit at even positions of the whole sequence, and `prefix` tokens stand in front of ours
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
