"""PatchMerger: learning to merge tokens in vision transformers (Renggli et al., 2022)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from foveate.methods.base import StepShape
from foveate.methods.registry import register
from foveate.methods.soft_slots import SoftSlots


@register
@dataclass(frozen=True)
class PatchMerger(SoftSlots):
    """Let K learned queries attend to all tokens; what they read are the new tokens.

        Y = softmax(W LN(X)^T) X,   W: (K, C), softmax over the tokens

    The logits are not scaled by sqrt(C), as in the paper. The paper mixes X as above; the code of TokenReduction and
    vit-pytorch mixes LN(X), whose length the next blocks of a pretrained model do not know.
    """

    def mixer(self, dim: int, slots: int) -> nn.Module:
        return Queries(dim, slots)

    def macs(self, step: StepShape) -> int:
        return 2 * step.keep * step.n * step.dim


class Queries(nn.Module):
    """K queries and the norm in front of them."""

    no_weight_decay = ("queries",)

    def __init__(self, dim: int, slots: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.queries = nn.Parameter(torch.randn(slots, dim))

    def forward(self, tokens: Tensor) -> Tensor:
        """Weights (B, K, N) of tokens (B, N, C); those of a slot sum to 1."""
        return (self.queries @ self.norm(tokens).transpose(1, 2)).softmax(dim=2, dtype=torch.float32)
