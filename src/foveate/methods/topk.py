"""Plain top-k selection, the baseline that every scored method contains."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from foveate.core import Assignment, keep_topk
from foveate.methods.base import BlockView, Method, Need, Site, StepShape, register


@register("topk", "Top-k", "select")
@dataclass(frozen=True)
class TopK(Method):
    """Keep the most attended tokens and drop the others.

    Ranked by the class token's attention, averaged over heads; on a model without a class token, by the attention
    received from all queries, summed over heads.
    """

    site: ClassVar[Site] = Site.POST_ATTN

    def needs(self, has_cls: bool) -> frozenset[Need]:
        return frozenset({"cls_attn"}) if has_cls else frozenset({"attn_received"})

    def assign(self, view: BlockView, keep: int) -> Assignment:
        return keep_topk(view.cls_attn if view.has_cls else view.attn_received, keep)

    def macs(self, step: StepShape) -> int:
        # attention received comes out of the attention itself, formed once for both
        return step.cls_row_macs if step.has_cls else 0
