"""Adaptive token sampling (Fayyaz et al., ECCV 2022)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from foveate.core import Assignment, keep_topk
from foveate.methods.base import BlockView, Kind, Method, Need, Site, StepShape
from foveate.methods.registry import register
from foveate.methods.topk import lost_shares


@register
@dataclass(frozen=True)
class ATS(Method):
    """Sample tokens evenly along the cumulative sum of their significance.

    The significance of token j is S_j = sum over heads of A_1j |V_j|: the class token's attention times the norm of the
    value, scaled to sum to 1. Each of the K points (2 k - 1) / (2 K) takes the token whose cumulative sum is nearest.
    Points may take the same token, so that an image whose significance is concentrated needs fewer tokens.

    With fixed counts the K slots that points leave free go to the most significant other tokens, which the paper would
    not keep. ``Adaptive`` gives an image of concentrated significance fewer tokens, at one of its levels. The paper
    samples on the attention matrix, whose other rows it never computes; here the rows of dropped tokens are computed
    and then dropped.
    """

    site: ClassVar[Site] = Site.POST_ATTN
    kind: ClassVar[Kind] = "select"
    needs_class_token: ClassVar[bool] = True

    def needs(self, has_cls: bool) -> frozenset[Need]:
        return frozenset({"cls_value_attn"})

    def assign(self, view: BlockView, keep: int) -> Assignment:
        share = significance(view.cls_value_attn)
        return keep_topk(share + 2 * sampled(share, keep), keep)  # shares are at most 1

    def removal_costs(self, view: BlockView) -> Tensor:
        """The share of the significance that goes with the least significant tokens."""
        return lost_shares(view.cls_value_attn)

    def macs(self, step: StepShape) -> int:
        return step.cls_row_macs


def significance(score: Tensor) -> Tensor:
    """Scores (B, N) scaled to sum to 1."""
    score = score.detach().float()
    return score / score.sum(dim=1, keepdim=True).clamp_min(torch.finfo(torch.float32).tiny)


def sampled(share: Tensor, points: int) -> Tensor:
    """(B, N) 1 for tokens that at least one of ``points`` points takes, else 0."""
    place = (torch.arange(points, device=share.device) + 0.5) / max(1, points)
    nearest = (share.cumsum(dim=1).unsqueeze(1) - place.unsqueeze(1)).abs().min(dim=2).indices
    return torch.zeros_like(share).scatter(1, nearest, 1.0)
