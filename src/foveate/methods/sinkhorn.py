"""The Sinkhorn tokenizer (Haurum et al., 2022): clusters by optimal transport."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from foveate.methods.base import StepShape
from foveate.methods.registry import register
from foveate.methods.soft_slots import SoftSlots


@register
@dataclass(frozen=True)
class Sinkhorn(SoftSlots):
    """Share the tokens out to K learned centers, so that every center gets equally much.

    The plan P (K, n) starts at exp(cos(c_k, x_i) / ``epsilon``). Each round scales its rows to equal sums, then its
    columns (Sinkhorn's iteration, in logarithms). A slot is the mean of the tokens weighted by its row.

    The published code takes the sum of tokens brought to unit length, where this takes the mean of the tokens
    themselves: the following blocks of a pretrained model do not know the former. It also sets the centers to unit
    length in place; here they are divided by their length where they are used.
    """

    epsilon: float = 1.0
    """Strength of the entropy term; smaller values give sharper clusters. 1 is TokenReduction's default."""
    iterations: int = 3
    """Rounds of scaling rows and columns; 3 is TokenReduction's default."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.epsilon > 0:
            raise ValueError(f"Sinkhorn.epsilon must be above 0, got {self.epsilon}.")
        if self.iterations < 1:
            raise ValueError(f"Sinkhorn.iterations must be at least 1, got {self.iterations}.")

    def mixer(self, dim: int, slots: int) -> nn.Module:
        return Centers(dim, slots, self.epsilon, self.iterations)

    def macs(self, step: StepShape) -> int:
        return 2 * step.keep * step.n * step.dim


class Centers(nn.Module):
    """Learned centers, and the transport of tokens to them."""

    no_weight_decay = ("centers",)

    def __init__(self, dim: int, slots: int, epsilon: float, iterations: int) -> None:
        super().__init__()
        self.centers = nn.Parameter(torch.randn(slots, dim))
        self.epsilon, self.iterations = epsilon, iterations

    def forward(self, tokens: Tensor) -> Tensor:
        """Weights (B, K, N) of tokens (B, N, C); those of a slot sum to 1."""
        plan = self.plan(tokens)
        return plan / plan.sum(dim=2, keepdim=True)

    def plan(self, tokens: Tensor) -> Tensor:
        """The share (B, K, N) of each token that each center gets; a token's shares sum to 1."""
        cosine = normalize(self.centers, dim=-1) @ normalize(tokens, dim=-1).transpose(1, 2)
        plan = cosine.float() / self.epsilon
        for _ in range(self.iterations):
            plan = plan.log_softmax(dim=2).log_softmax(dim=1)
        return plan.exp()
