"""FPET: faster parameter-efficient tuning with token redundancy reduction (Kim et al., CVPR 2025)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from foveate.core import Assignment, merge_most_similar_of
from foveate.methods.base import BlockView, Kind, Method, Need, Site, StepShape
from foveate.methods.registry import register


@register
@dataclass(frozen=True)
class FPET(Method):
    """Match the white squares of a checkerboard of patches to the black ones, and merge the most similar pairs.

    As in ToMe, each source proposes to the target of largest cosine of keys averaged over heads. The halves are those
    of a checkerboard, so that all four neighbors of a source are targets. Where earlier blocks have removed tokens,
    the halves alternate along the sequence. A block removes up to half of its tokens; the paper merges all sources,
    once, in the middle of the model: ``Keep({6: 98})``.

    The paper tunes adapters together with the matching, which is made differentiable by a straight-through estimate.
    Neither is part of this method: as in ToMe, gradients reach the tokens and not the choice of pairs.
    """

    proportional_attention: bool = True
    """Add log(size) to attention logits, so that a merged token weighs as much as its members."""

    site: ClassVar[Site] = Site.POST_ATTN
    kind: ClassVar[Kind] = "merge"

    @property
    def uses_size(self) -> bool:
        return True

    def needs(self, has_cls: bool) -> frozenset[Need]:
        return frozenset({"keys"})

    def assign(self, view: BlockView, keep: int) -> Assignment:
        metric = view.keys.sum(dim=1)
        groups = _halves(int(metric.shape[1]), view.grid)
        sources, targets = (torch.tensor(group, device=metric.device, dtype=torch.long) for group in groups)
        return merge_most_similar_of(metric, sources, targets, keep, view.size)

    def macs(self, step: StepShape) -> int:
        sources, targets = _halves(step.n, step.grid)
        return len(sources) * len(targets) * step.head_dim

    def fewest(self, n: int) -> int:
        return n - n // 2


def _halves(n: int, grid: tuple[int, int] | None) -> tuple[list[int], list[int]]:
    """Sources, of which there are n // 2, and targets."""
    columns = grid[1] if grid is not None and grid[0] * grid[1] == n else n
    odd = [(token // columns + token % columns) % 2 for token in range(n)]
    targets = [token for token in range(n) if not odd[token]]
    return [token for token in range(n) if odd[token]], targets
