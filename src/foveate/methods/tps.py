"""Joint token pruning and squeezing (Wei et al., CVPR 2023)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from foveate.core import Assignment, merge_into, take, unit_rows
from foveate.core.graphs import largest_and_rest
from foveate.core.precision import in_full_precision
from foveate.methods.base import BlockView, Kind, Method, Need, Site, StepShape
from foveate.methods.registry import register


@register
@dataclass(frozen=True)
class TPS(Method):
    """Keep the most attended tokens, and squeeze each of the others into the kept token it is most similar to.

    Tokens are ranked by the class token's attention (the paper's eTPS); on a model without a class token, by the
    attention received. A pruned token i joins the kept token j of largest c_ij = cos(x_i, x_j), which becomes

        (e x_j + sum_i exp(c_ij) x_i) / (e + sum_i exp(c_ij)).

    The paper's dTPS ranks by DynamicViT's predictors instead; it is not part of this library.
    """

    proportional_attention: bool = False
    """Add log(size) to attention logits; the original does not."""

    site: ClassVar[Site] = Site.POST_ATTN
    kind: ClassVar[Kind] = "select"

    def needs(self, has_cls: bool) -> frozenset[Need]:
        return frozenset({"cls_attn"}) if has_cls else frozenset({"attn_received"})

    def assign(self, view: BlockView, keep: int) -> Assignment:
        n = view.patches.shape[1]
        staying, leaving = largest_and_rest(view.cls_attn if view.has_cls else view.attn_received, keep)
        cosine, host = _hosts(view.patches, leaving, staying)
        weight = torch.full(view.patches.shape[:2], math.e, device=cosine.device, dtype=cosine.dtype)
        return merge_into(leaving, host, n, view.size, weight.scatter(1, leaving, cosine.exp()))

    def macs(self, step: StepShape) -> int:
        matching = (step.n - step.keep) * step.keep * step.dim
        return matching + (step.cls_row_macs if step.has_cls else 0)

    def fewest(self, n: int) -> int:
        return min(n, 1)


@in_full_precision
def _hosts(x: Tensor, leaving: Tensor, staying: Tensor) -> tuple[Tensor, Tensor]:
    """The largest cosine of each leaving token with one that stays, and that token: both (B, R)."""
    unit = unit_rows(x)
    cosine, place = torch.bmm(take(unit, leaving), take(unit, staying).transpose(1, 2)).max(dim=2)
    return cosine, staying.gather(1, place)
