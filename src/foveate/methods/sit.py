"""SiT: self-slimmed vision transformer (Zong et al., ECCV 2022)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from foveate.methods.base import StepShape
from foveate.methods.registry import register
from foveate.methods.soft_slots import SoftSlots


@register
@dataclass(frozen=True)
class SiT(SoftSlots):
    """Let a small network give every token a weight in each of K slots; slots are weighted means.

        A = softmax(scale * MLP(LN(X)))^T,   softmax over the tokens,   Y = A X

    The MLP is Linear(C, C / 2), GELU, Linear(C / 2, K), and the scale is learned, from 1. The paper trains with
    distillation of reconstructed tokens; here the objective is the user's.
    """

    def mixer(self, dim: int, slots: int) -> nn.Module:
        return Slimming(dim, slots)

    def macs(self, step: StepShape) -> int:
        hidden = step.dim // 2
        return step.n * hidden * (step.dim + step.keep) + step.keep * step.n * step.dim


class Slimming(nn.Module):
    """The weights of SiT's token slimming module."""

    no_weight_decay = ("scale",)

    def __init__(self, dim: int, slots: int) -> None:
        super().__init__()
        self.weight = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, dim // 2), nn.GELU(), nn.Linear(dim // 2, slots))
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, tokens: Tensor) -> Tensor:
        """Weights (B, K, N) of tokens (B, N, C); those of a slot sum to 1."""
        return (self.weight(tokens) * self.scale).transpose(1, 2).softmax(dim=2, dtype=torch.float32)
