"""PiToMe: spectrum-preserving token merging (Tran et al., NeurIPS 2024)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch.nn.functional import elu

from foveate.core import Assignment, merge_into, take, unit_rows
from foveate.core.graphs import positions, ranks
from foveate.core.precision import in_full_precision
from foveate.core.tiles import MOST_TOKENS
from foveate.methods.base import BlockView, Kind, Method, Need, Site, StepShape
from foveate.methods.registry import register


@register
@dataclass(frozen=True)
class PiToMe(Method):
    """Merge tokens that have many tokens like them, and protect isolated ones.

    The energy of token i is the mean over all tokens j of f(cos(k_i, k_j)), with keys k averaged over heads and
    f(x) = x - m where x >= m, else exp(x - m) - 1. The margin m = ``margin`` (1 - l / L) falls with the block l of L.
    To remove r tokens, the 2 r of highest energy are taken in that order. Those at even places each merge into the most
    similar one at an odd place. All others are protected. Merged tokens are means weighted by size.

    Where the paper and its code differ, this follows the code: the paper has f(x) = x above the margin. The code also
    has a variant for the first blocks in which all tokens are candidates, which is left out. Tokens that stay keep
    their order.
    """

    margin: float = 0.9
    """Cosine above which tokens count as alike in the first block; the margin falls to 0 towards the last."""
    proportional_attention: bool = True
    """Add log(size) to attention logits, so that a merged token weighs as much as its members."""

    site: ClassVar[Site] = Site.POST_ATTN
    kind: ClassVar[Kind] = "merge"

    @property
    def uses_size(self) -> bool:
        return True

    def needs(self, has_cls: bool) -> frozenset[Need]:
        return frozenset({"keys"})

    def assign(self, view: BlockView, keep: int) -> Assignment:
        metric = view.keys.sum(dim=1)  # the cosine of sums equals the cosine of means
        if metric.shape[1] > MOST_TOKENS:
            raise ValueError(
                f"PiToMe keeps a table of all pairs of {metric.shape[1]} tokens; {MOST_TOKENS} are the most. Use ToMe."
            )
        source, target = _pairs(metric, metric.shape[1] - keep, self.margin * (1 - view.block / view.depth))
        return merge_into(source, target, metric.shape[1], view.size)

    def macs(self, step: StepShape) -> int:
        return step.n**2 * step.head_dim

    def fewest(self, n: int) -> int:
        return n - n // 2


@in_full_precision
def _pairs(metric: torch.Tensor, merges: int, margin: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Sources and their targets, each (B, merges)."""
    unit = unit_rows(metric)
    similarity = torch.bmm(unit, unit.transpose(1, 2))
    rank = ranks(elu(similarity - margin).mean(dim=2))
    candidate = rank < 2 * merges
    source = positions(candidate & (rank % 2 == 0), merges)
    is_target = candidate & (rank % 2 == 1)
    rows = take(similarity, source).masked_fill(~is_target.unsqueeze(1), -torch.inf)
    return source, rows.max(dim=2).indices
