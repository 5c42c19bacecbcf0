"""Plain top-k selection, which every method that ranks tokens contains."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

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

    def macs(self, step: StepShape) -> int:
        # attention received is read from the attention matrix that the block computes anyway
        return step.cls_row_macs if step.has_cls else 0
