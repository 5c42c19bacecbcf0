"""Token Fusion: bridging the gap between token pruning and token merging (Kim et al., WACV 2024)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from foveate.core import Assignment, merge_most_similar, pool
from foveate.core.graphs import max_into_slots
from foveate.core.precision import row_norms
from foveate.methods.base import BlockView, Kind, Method, Need, Site, StepShape
from foveate.methods.registry import register
from foveate.methods.tome import ToMe


@register
@dataclass(frozen=True)
class ToFu(Method):
    """Match tokens as ToMe does; early blocks then drop the matched token, later ones merge and keep its norm.

    A model that answers nearly linearly to a mean of two tokens may merge them; early blocks do not, so there only the
    target of each pair stays, unchanged. Later blocks take MLERP of the members x_i, whose mean is m:

        m / |m| * max_i |x_i|

    The paper's mean has equal weights; here it is weighted by size, as in ToMe. A dropped token still counts in the
    size of its target. The paper chooses the blocks by a model's linearity and its code was not published; the first
    half (``prune_until``) is what OpenToMe takes. OpenToMe divides by the norm of the target before the merge; this
    follows the paper.
    """

    prune_until: float = 0.5
    """Share of the blocks, from the first, in which the matched token is dropped instead of merged."""
    proportional_attention: bool = True
    """Add log(size) to attention logits, so that a merged token weighs as much as its members."""

    site: ClassVar[Site] = Site.POST_ATTN
    kind: ClassVar[Kind] = "merge"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.prune_until <= 1:
            raise ValueError(f"ToFu.prune_until must be a share of the blocks in [0, 1], got {self.prune_until}.")

    @property
    def uses_size(self) -> bool:
        return True

    def needs(self, has_cls: bool) -> frozenset[Need]:
        return frozenset({"keys"})

    def assign(self, view: BlockView, keep: int) -> Assignment:
        matched = merge_most_similar(view.keys.sum(dim=1), keep, view.size, phase=view.prefix % 2)
        return _unchanged(matched) if view.block < self.prune_until * view.depth else matched

    def combine(self, view: BlockView, assignment: Assignment) -> Tensor:
        pooled = pool(view.tokens, assignment, prefix=view.prefix)
        if view.block < self.prune_until * view.depth:
            return pooled
        slots = pooled[:, view.prefix :]
        return torch.cat([pooled[:, : view.prefix], _at_largest_norm(slots, view.patches, assignment)], dim=1)

    def macs(self, step: StepShape) -> int:
        return ToMe().macs(step)

    def fewest(self, n: int) -> int:
        return n - n // 2


def _unchanged(matched: Assignment) -> Assignment:
    """The same members, but each slot is its first token."""
    assert matched.joining is not None
    joining = matched.joining._replace(weight=torch.zeros_like(matched.joining.weight))
    return Assignment(matched.src, None, None, matched.num_in, matched.num_out, joining, matched.sizes)


def _at_largest_norm(slots: Tensor, tokens: Tensor, a: Assignment) -> Tensor:
    """``slots`` (B, K, C) scaled to the largest norm of their ``tokens`` (B, N, C)."""
    assert a.src is not None
    assert a.joining is not None
    norm = row_norms(tokens)
    joined = max_into_slots(norm.gather(1, a.joining.src), a.joining.dst, a.num_out, 0.0)
    wanted = torch.maximum(norm.gather(1, a.src), joined)
    now = row_norms(slots)
    # tokens that cancel out leave a tiny mean of arbitrary direction: stretch it at most a thousandfold
    factor = wanted / torch.maximum(now, wanted * 1e-3).clamp_min(torch.finfo(now.dtype).tiny)
    return slots * factor.unsqueeze(-1).to(slots.dtype)
