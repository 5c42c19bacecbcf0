"""PoWER-BERT (Goyal et al., ICML 2020): keep the tokens of largest significance, and learn how many in each block.

Three stages: fine-tune; search with ``PoWERSearch``, which scales every token by a learned value of its rank, and with
``strength * mass_penalty(model)`` added to the loss; read the counts (``found_counts``) and fine-tune again with
``PoWER`` or any other method at those counts.

The published code for BERT differs in three ways. It leaves a token's attention to itself out of its significance:
``self_attention=False`` does so too. It rounds masses down, to at least one: ``found_counts(model, round_down=True)``.
It counts the class token among the tokens a block retains; here counts are of patch tokens, and prefix tokens always
stay, which no option changes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from foveate.core import Assignment, keep_topk
from foveate.core.graphs import ranks
from foveate.methods.base import BlockView, Kind, Method, Need, Site, StepShape
from foveate.methods.learned import LearnedMethod
from foveate.methods.registry import register


@register
@dataclass(frozen=True)
class PoWER(Method):
    """Keep the tokens that receive the most attention and drop the others.

    The significance of token j is the attention paid to it, summed over heads and queries, its own included; the
    published code leaves that out. Prefix tokens always stay, and counts are of patch tokens.
    """

    self_attention: bool = True
    """Count a token's attention to itself as significance; the published code does not."""

    site: ClassVar[Site] = Site.POST_ATTN
    kind: ClassVar[Kind] = "select"

    def needs(self, has_cls: bool) -> frozenset[Need]:
        return _needs(self.self_attention)

    def assign(self, view: BlockView, keep: int) -> Assignment:
        return keep_topk(_significance(view, self.self_attention), keep)


def _needs(self_attention: bool) -> frozenset[Need]:
    return frozenset({"attn_received"} if self_attention else {"attn_from_others"})


def _significance(view: BlockView, self_attention: bool) -> Tensor:
    return view.attn_received if self_attention else view.attn_from_others


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
        return self.clamped().to(significance.dtype).expand_as(significance).gather(1, ranks(significance))


@register
@dataclass(frozen=True)
class PoWERSearch(LearnedMethod):
    """Search for counts: scale each token by a learned value of its rank, and drop none.

    In every block, the token whose significance has rank p is multiplied by r[p] in [0, 1], one parameter per block
    and rank, all starting at 1. It fixes its own counts: all tokens stay.
    """

    self_attention: bool = True
    """Count a token's attention to itself as significance; the published code does not."""

    site: ClassVar[Site] = Site.POST_ATTN
    kind: ClassVar[Kind] = "learned"
    training_free: ClassVar[bool] = False

    def needs(self, has_cls: bool) -> frozenset[Need]:
        return _needs(self.self_attention)

    def own_counts(self, depth: int, grid: tuple[int, int]) -> tuple[int, ...]:
        return (grid[0] * grid[1],) * depth

    def soft_blocks(self, depth: int) -> tuple[int, ...]:
        return tuple(range(depth))

    def build(self, step: StepShape, block: int) -> nn.Module:
        return SoftExtract(step.n)

    def assign(self, view: BlockView, keep: int) -> Assignment:
        assert view.module is not None
        return Assignment(None, None, view.module(_significance(view, self.self_attention)), keep, keep)


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


def found_counts(model: nn.Module, round_down: bool = False) -> list[int]:
    """The counts that a search has found, for ``Keep(found_counts(model))``: ceil(mass(l)), never rising.

    ``round_down``: max(1, floor(mass(l))), as the published code has it.
    """
    return hard_counts((float(module.mass().detach()) for module in soft_extracts(model)), round_down)


def hard_counts(masses: Iterable[float], round_down: bool = False) -> list[int]:
    """K_l = ceil(mass(l)), or max(1, floor(mass(l))), made non-increasing by a running minimum."""
    counts: list[int] = []
    for mass in masses:
        # a sum of float32 ones may end a hair beside a whole number
        count = max(1, math.floor(mass + 1e-4)) if round_down else max(0, math.ceil(mass - 1e-4))
        counts.append(min([count, *counts[-1:]]))
    return counts
