"""EViT: expediting vision transformers via token reorganization (Liang et al., ICLR 2022)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from foveate.core import Assignment, keep_topk, keep_topk_fuse_rest
from foveate.methods.base import BlockView, Kind, Method, Need, Site, StepShape
from foveate.methods.registry import register


@register
@dataclass(frozen=True)
class EViT(Method):
    """Keep the tokens the class token attends to, and fuse the others into one.

    Attentiveness a_i is the class token's attention to i, averaged over heads. The k most attentive tokens stay;
    the rest become x_fused = sum_i a_i x_i. With keep rate rho, k = ceil(rho * n) of the n tokens at that stage, and
    the fused token is added to them: 196 -> 139 -> 99 -> 71 slots at 0.7. It counts in n at the next stage.

    Where k = n - 1, the one token left over is "fused" alone, as in the published code: all n slots stay, and the least
    attentive token is multiplied by its attention. Where k = n nothing happens. ``Keep`` counts slots, so n slots there
    mean that nothing happens.
    """

    fuse: bool = True
    """Fuse inattentive tokens into one instead of dropping them."""
    normalize: bool = False
    """Scale the fused token's weights to sum to one; the original uses the raw attention."""
    proportional_attention: bool = False
    """Add log(size) to attention logits; the original does not."""

    site: ClassVar[Site] = Site.POST_ATTN
    kind: ClassVar[Kind] = "select"
    needs_class_token: ClassVar[bool] = True

    def needs(self, has_cls: bool) -> frozenset[Need]:
        return frozenset({"cls_attn"})

    def assign(self, view: BlockView, keep: int) -> Assignment:
        if self.fuse and keep:
            return keep_topk_fuse_rest(view.cls_attn, keep - 1, self.normalize)
        return keep_topk(view.cls_attn, keep)

    def macs(self, step: StepShape) -> int:
        return step.cls_row_macs

    def keep_count(self, rate: float, current: int, first: int, stage: int) -> int:
        kept = super().keep_count(rate, current, first, stage)
        return min(current, kept + self.fuse)

    def acts_on_all(self, rate: float, current: int, first: int, stage: int) -> bool:
        return self.fuse and super().keep_count(rate, current, first, stage) == current - 1
