"""DTEM: learning to merge tokens via decoupled embedding (Lee and Hong, NeurIPS 2024)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from foveate.core import Assignment, merge_most_similar, take
from foveate.methods.base import BlockView, Kind, Need, Site, StepShape
from foveate.methods.learned import LearnedMethod
from foveate.methods.registry import register
from foveate.methods.tome import ToMe


@register
@dataclass(frozen=True)
class DTEM(LearnedMethod):
    """ToMe with a learned embedding in place of the keys.

    A linear layer of each block turns what attention reads (the normed tokens, without gradients into them) into an
    embedding of the size of one head. Tokens are matched and merged as in ToMe, by the cosine of these embeddings.

    In training the paper relaxes the choice of the top pairs by repeated softmax and keeps all tokens with fractional
    sizes. Here the same pairs merge as in inference, and gradients reach the embedding straight through: a pair's share
    w counts as w (1 + c - [c]) with its cosine c, where [c] has no gradient. The layer starts as in the published code,
    at random, so without training it matches worse than ToMe.
    """

    seed: int = 0
    """Seed of the layers' initial weights."""
    proportional_attention: bool = True
    """Add log(size) to attention logits, so that a merged token weighs as much as its members."""

    site: ClassVar[Site] = Site.POST_ATTN
    kind: ClassVar[Kind] = "learned"
    training_free: ClassVar[bool] = False

    @property
    def uses_size(self) -> bool:
        return True

    def needs(self, has_cls: bool) -> frozenset[Need]:
        return frozenset({"normed"})

    def build(self, step: StepShape, block: int) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(1000 * self.seed + block)
            return nn.Linear(step.dim, step.head_dim)

    def assign(self, view: BlockView, keep: int) -> Assignment:
        if view.module is None:
            raise ValueError(f"DTEM has learned nothing for block {view.block}. Reduce the model again.")
        metric: Tensor = view.module(view.normed.detach())
        matched = merge_most_similar(metric, keep, view.size, phase=view.prefix % 2)
        return _straight_through(matched, metric) if metric.requires_grad else matched

    def macs(self, step: StepShape) -> int:
        return step.n * step.dim * step.head_dim + ToMe().macs(step)

    def fewest(self, n: int) -> int:
        return n - n // 2


def _straight_through(matched: Assignment, metric: Tensor) -> Assignment:
    """The same shares, with the gradient of each pair's cosine."""
    more = matched.joining
    assert more is not None
    assert matched.src is not None
    ends = matched.src.gather(1, more.dst)
    cosine = torch.cosine_similarity(take(metric, more.src).float(), take(metric, ends).float(), dim=-1)
    weight = more.weight * (1 + cosine - cosine.detach())
    return replace(matched, joining=more._replace(weight=weight))
