"""Representation shift (Choi et al., ICCV 2025): scores without an attention map."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from foveate.core import Assignment, keep_topk
from foveate.methods.base import BlockView, Kind, Method, Need, Site
from foveate.methods.registry import register


@register
@dataclass(frozen=True)
class RepresentationShift(Method):
    """Keep the tokens that the block's MLP changes most.

    The score of token i is |x_i' - x_i|, from before to after the MLP, residual connection included. It needs no
    attention map, so attention stays a fused kernel, and it costs no multiplication. Tokens are dropped after the
    block. The paper also tries attention and the whole block as the transformation and other distances, and finds the
    MLP and this one best. In blocks whose attention and MLP run side by side, the shift is that of the whole block.
    """

    site: ClassVar[Site] = Site.POST_BLOCK
    kind: ClassVar[Kind] = "select"

    def needs(self, has_cls: bool) -> frozenset[Need]:
        return frozenset({"mlp_shift"})

    def assign(self, view: BlockView, keep: int) -> Assignment:
        return keep_topk(view.mlp_shift, keep)
