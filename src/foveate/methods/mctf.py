"""Multi-criteria token fusion (Lee et al., CVPR 2024)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from foveate.core import Assignment, merge_into, unit_rows
from foveate.core.cluster import relative_weights
from foveate.core.graphs import largest
from foveate.core.match import halves
from foveate.core.precision import in_full_precision
from foveate.methods.base import BlockView, Kind, Method, Need, Site, StepShape
from foveate.methods.registry import register


@register
@dataclass(frozen=True)
class MCTF(Method):
    """Merge pairs that are similar, little attended and small, in both directions between two halves.

    Tokens at alternating positions form two halves, as in ToMe. The attraction of i and j is

        ((cos(x_i, x_j) + 1) / 2)^(1 / tau_sim) * (1 / (a_i a_j))^(1 / tau_info) * (1 / (s_i s_j))^(1 / tau_size),

    with the attention a that a token receives and its size s. Half of the merges go from the first half to the second,
    the others from the second to what is left of the first. A merged token is the mean of its members weighted by a s.

    The paper merges before a block's attention, by the attention of that block computed in advance ("one step ahead"),
    and then reuses the merged map. Here tokens merge between attention and MLP, where that attention is known without
    another map. The temperatures are those of the published commands.
    """

    tau_sim: float = 1.0
    """Temperature of similarity; larger values weigh it less."""
    tau_info: float = 20.0
    """Temperature of attention received; larger values weigh it less."""
    tau_size: float = 40.0
    """Temperature of size; larger values weigh it less."""
    proportional_attention: bool = True
    """Add log(size) to attention logits, so that a merged token weighs as much as its members."""

    site: ClassVar[Site] = Site.POST_ATTN
    kind: ClassVar[Kind] = "merge"

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("tau_sim", "tau_info", "tau_size"):
            if not getattr(self, name) > 0:
                raise ValueError(f"MCTF.{name} must be above 0, got {getattr(self, name)}.")

    @property
    def uses_size(self) -> bool:
        return True

    def needs(self, has_cls: bool) -> frozenset[Need]:
        return frozenset({"attn_received"})

    def assign(self, view: BlockView, keep: int) -> Assignment:
        tokens = view.patches
        size = torch.ones(tokens.shape[:2], device=tokens.device) if view.size is None else view.size
        info, phase = relative_weights(view.attn_received), view.prefix % 2
        cheap = info.pow(-1 / self.tau_info) * size.pow(-1 / self.tau_size)
        source, target = _both_ways(tokens, cheap, 1 / self.tau_sim, tokens.shape[1] - keep, phase)
        return merge_into(source, target, tokens.shape[1], size, info * size)

    def macs(self, step: StepShape) -> int:
        sources, targets = halves(step.n, step.prefix % 2)
        return sources * targets * step.dim

    def fewest(self, n: int) -> int:
        return n - n // 2


@in_full_precision
def _both_ways(x: Tensor, cheap: Tensor, power: float, merges: int, phase: int) -> tuple[Tensor, Tensor]:
    """Tokens that merge and the tokens they end in, each (B, merges)."""
    unit, n = unit_rows(x), x.shape[1]
    left, right = unit[:, phase::2], unit[:, 1 - phase :: 2].transpose(1, 2)
    score = ((torch.bmm(left, right) + 1) / 2).clamp_min(0).pow(power)
    score = score * cheap[:, phase::2, None] * cheap[:, None, 1 - phase :: 2]
    there = merges // 2
    best, to = score.max(dim=2)
    source = largest(best, there)
    target = to.gather(1, source)
    is_gone = torch.zeros(best.shape, dtype=torch.bool, device=x.device).scatter(1, source, 1)
    best_back, back_to = score.masked_fill(is_gone.unsqueeze(2), -torch.inf).max(dim=1)
    source_back = largest(best_back, merges - there)
    gone = torch.cat([source * 2 + phase, source_back * 2 + 1 - phase], dim=1)
    ends = torch.cat([target * 2 + 1 - phase, back_to.gather(1, source_back) * 2 + phase], dim=1)
    leads_to = torch.arange(n, device=x.device).expand(x.shape[:2]).scatter(1, gone, ends)
    return gone, leads_to.gather(1, ends)  # a target of the first merges may itself merge back
