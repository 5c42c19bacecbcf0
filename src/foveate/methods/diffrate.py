"""DiffRate: differentiable compression rate for efficient vision transformers (Chen et al., ICCV 2023)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from foveate.core import Assignment, joined_means, take, unit_rows
from foveate.core.graphs import positions, ranks
from foveate.core.precision import in_full_precision
from foveate.methods.base import BlockView, Kind, Method, Need, Site, StepShape
from foveate.methods.registry import register


@register
@dataclass(frozen=True)
class DiffRate(Method):
    """Prune the least attended tokens, then merge the next ones into the most similar of those that stay.

    Tokens are ranked by the class token's attention; on a model without a class token, by the attention received. Of
    the tokens that a block removes, the share ``pruned``, lowest in rank, is dropped. Each of the others joins the
    token it is most similar to, by cos(x_i, x_j), as a plain mean. Its size counts times that cosine, as in the
    published code; the paper does not say so.

    The paper learns two rates per block, of pruning and of merging, with a budget as the loss. Here the counts come
    from the schedule: ``fv.search`` finds them for a budget on unlabeled images, and ``pruned`` is one share for all
    blocks, near the rates published for DeiT.
    """

    pruned: float = 0.4
    """Share of the removed tokens that is dropped; the others are merged."""
    proportional_attention: bool = True
    """Add log(size) to attention logits, so that a merged token weighs as much as its members."""

    site: ClassVar[Site] = Site.POST_ATTN
    kind: ClassVar[Kind] = "merge"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.pruned <= 1:
            raise ValueError(f"DiffRate.pruned must be a share in [0, 1], got {self.pruned}.")

    @property
    def uses_size(self) -> bool:
        return True

    def needs(self, has_cls: bool) -> frozenset[Need]:
        return frozenset({"cls_attn"}) if has_cls else frozenset({"attn_received"})

    def assign(self, view: BlockView, keep: int) -> Assignment:
        n = view.patches.shape[1]
        rank = ranks(view.cls_attn if view.has_cls else view.attn_received)
        staying, merges = positions(rank < keep, keep), self._merges(n, keep)
        joining = positions((rank >= keep) & (rank < keep + merges), merges)
        cosine, slot = _most_similar(view.patches, joining, staying)
        means = joined_means(staying, joining, slot, n)
        size = torch.ones(rank.shape, device=rank.device) if view.size is None else view.size
        sizes = size.gather(1, staying).scatter_add(
            1, slot, size.gather(1, joining) * torch.where(cosine > 0, cosine, 0.0)
        )
        return replace(means, sizes=sizes)

    def macs(self, step: StepShape) -> int:
        merging = self._merges(step.n, step.keep) * step.keep * step.dim
        return merging + (step.cls_row_macs if step.has_cls else 0)

    def fewest(self, n: int) -> int:
        return min(n, 1)

    def _merges(self, n: int, keep: int) -> int:
        """How many of the tokens that leave are merged."""
        removed = int(n) - keep  # a traced graph has tensors for sizes
        return removed - round(self.pruned * removed)


@in_full_precision
def _most_similar(x: Tensor, joining: Tensor, staying: Tensor) -> tuple[Tensor, Tensor]:
    """The largest cosine of each joining token with one that stays, and that one's slot: both (B, R)."""
    unit = unit_rows(x)
    return torch.bmm(take(unit, joining), take(unit, staying).transpose(1, 2)).max(dim=2)
