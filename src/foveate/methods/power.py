"""PoWER-BERT (Goyal et al., ICML 2020): keep the tokens of largest significance, and learn how many in each block.

Three stages: 1. fine-tune; 2. search with ``PoWERSearch``, which scales every token by a learned value of its rank, and
with ``strength * mass_penalty(model)`` added to the loss; 3. read the counts (``found_counts``) and fine-tune again
with ``PoWER`` or any other method at these counts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from foveate.core import Assignment, keep_topk
from foveate.methods.base import BlockView, Kind, Method, Need, Site, StepShape
from foveate.methods.learned import LearnedMethod
from foveate.methods.registry import register


@register
@dataclass(frozen=True)
class PoWER(Method):
    """Keep the tokens that receive the most attention and drop the others.

    The significance of token j is the attention paid to it, summed over heads and queries.
    """

    site: ClassVar[Site] = Site.POST_ATTN
    kind: ClassVar[Kind] = "select"

    def needs(self, has_cls: bool) -> frozenset[Need]:
        return frozenset({"attn_received"})

    def assign(self, view: BlockView, keep: int) -> Assignment:
        return keep_topk(view.attn_received, keep)


class SoftExtract(nn.Module):
    """Retention parameters of one block: a factor in [0, 1] for each rank of significance."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.retention = nn.Parameter(torch.ones(n))

    def clamped(self) -> Tensor:
        """The parameters clamped to [0, 1]. Gradients pass through the clamp, so that no parameter gets stuck."""
        return self.retention + (self.retention.clamp(0, 1) - self.retention).detach()

    def mass(self) -> Tensor:
        """Sum of the retention parameters: the soft number of tokens that this block keeps."""
        return self.clamped().sum()

    @torch.no_grad()
    def project_(self) -> None:
        """Clamp the parameters to [0, 1] in place. Call it after each optimizer step."""
        self.retention.clamp_(0, 1)

    def forward(self, significance: Tensor) -> Tensor:
        """The retention parameter of each token's rank, (B, N), from its ``significance`` (B, N)."""
        if significance.shape[1] != len(self.retention):
            raise ValueError(
                f"This search was set up for {len(self.retention)} patch tokens; the image has "
                f"{significance.shape[1]}. Use images of the size the model was built for."
            )
        by_rank = significance.argsort(dim=1, descending=True, stable=True)
        return torch.zeros_like(significance).scatter(
            1, by_rank, self.clamped().to(significance.dtype).expand_as(significance)
        )


@register
@dataclass(frozen=True)
class PoWERSearch(LearnedMethod):
    """Search for counts: scale each token by a learned value of its rank, and drop none.

    In every block, the token whose significance has rank p is multiplied by r[p] in [0, 1], one parameter per block
    and rank, all starting at 1. It fixes its own counts: all tokens stay.
    """

    site: ClassVar[Site] = Site.POST_ATTN
    kind: ClassVar[Kind] = "learned"
    training_free: ClassVar[bool] = False

    def needs(self, has_cls: bool) -> frozenset[Need]:
        return frozenset({"attn_received"})

    def own_counts(self, depth: int, grid: tuple[int, int]) -> tuple[int, ...]:
        return (grid[0] * grid[1],) * depth

    def soft_blocks(self, depth: int) -> tuple[int, ...]:
        return tuple(range(depth))

    def build(self, step: StepShape, block: int) -> nn.Module:
        return SoftExtract(step.n)

    def assign(self, view: BlockView, keep: int) -> Assignment:
        assert view.module is not None
        return Assignment(None, None, view.module(view.attn_received), keep, keep)


def soft_extracts(model: nn.Module) -> list[SoftExtract]:
    """The search modules of a model, in the order of its blocks."""
    found = [m for m in model.modules() if isinstance(m, SoftExtract)]
    if not found:
        raise ValueError("This model has no search modules. Add them with reduce_(model, PoWERSearch()).")
    return found


def mass_penalty(model: nn.Module) -> Tensor:
    """sum_l l * mass(l), with blocks l counted from 1, so that later blocks keep less. Scale it by a strength."""
    return torch.stack([(i + 1) * module.mass() for i, module in enumerate(soft_extracts(model))]).sum()


def project_retention_(model: nn.Module) -> None:
    """``SoftExtract.project_`` in every block."""
    for module in soft_extracts(model):
        module.project_()


def found_counts(model: nn.Module) -> list[int]:
    """The counts that a search found, ceil(mass(l)) made non-increasing, for ``Keep(found_counts(model))``."""
    return hard_counts(float(module.mass().detach()) for module in soft_extracts(model))


def hard_counts(masses: Iterable[float]) -> list[int]:
    """K_l = ceil(mass(l)), made non-increasing by a running minimum."""
    counts: list[int] = []
    for mass in masses:
        count = math.ceil(mass - 1e-4)  # a sum of float32 ones may exceed a whole number slightly
        counts.append(min([max(0, count), *counts[-1:]]))
    return counts
