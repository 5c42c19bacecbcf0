"""Plain top-k selection, which every method that ranks tokens contains."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from foveate.core import Assignment, keep_topk
from foveate.methods.base import BlockView, Kind, Method, Need, Site, StepShape
from foveate.methods.registry import register


@register
@dataclass(frozen=True)
class TopK(Method):
    """Keep the most attended tokens and drop the others.

    Ranked by the class token's attention, averaged over heads; on a model without a class token, by the attention
    received from all queries, summed over heads.
    """

    site: ClassVar[Site] = Site.POST_ATTN
    kind: ClassVar[Kind] = "select"

    def needs(self, has_cls: bool) -> frozenset[Need]:
        return frozenset({"cls_attn"}) if has_cls else frozenset({"attn_received"})

    def assign(self, view: BlockView, keep: int) -> Assignment:
        return keep_topk(view.cls_attn if view.has_cls else view.attn_received, keep)

    def removal_costs(self, view: BlockView) -> Tensor:
        """The share of the attention that goes with the least attended tokens."""
        return lost_shares(view.cls_attn if view.has_cls else view.attn_received)

    def macs(self, step: StepShape) -> int:
        # attention received is read from the attention matrix that the block computes anyway
        return step.cls_row_macs if step.has_cls else 0


def lost_shares(score: Tensor) -> Tensor:
    """The share of all scores (B, N) that the 1, 2, ... lowest hold together: (B, N), rising to 1."""
    score = score.detach().float()
    return score.sort(dim=1).values.cumsum(dim=1) / score.sum(dim=1, keepdim=True)
