"""Dropping high frequencies of the token sequence (He et al., Fourier Transformer, ACL Findings 2023)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from foveate.core import Assignment, mix, soft_slots
from foveate.methods.base import BlockView, Kind, Method, Site, StepShape
from foveate.methods.registry import register


@register
@dataclass(frozen=True)
class DCT(Method):
    """Shorten the sequence by leaving out the highest frequencies of its cosine transform.

    Channel by channel, n tokens are transformed (DCT-II), the K lowest coefficients are transformed back with length K:
    the sequence is low-passed and sampled at K places. Both steps together are one matrix (K, n), which is how it is
    computed here instead of by a fast Fourier transform:

        M_ki = (R(a_k - b_i) + R(a_k + b_i)) / (2 n),   R(t) = sin((K - 1/2) t) / sin(t / 2),
        a_k = pi (k + 1/2) / K,   b_i = pi (i + 1/2) / n

    The published code uses orthonormal transforms, which lengthens every token by sqrt(n / K); here a constant
    sequence stays as it is. It was made for text: in images neighbors in the sequence are neighbors in a row only.
    """

    site: ClassVar[Site] = Site.POST_ATTN
    kind: ClassVar[Kind] = "pool"
    heads_weigh_by_size: ClassVar[bool] = False

    def assign(self, view: BlockView, keep: int) -> Assignment:
        batch, n = view.patches.shape[:2]
        return soft_slots(low_pass(int(n), keep, view.tokens.device).expand(batch, keep, n))

    def combine(self, view: BlockView, assignment: Assignment) -> Tensor:
        return mix(view.tokens, assignment, prefix=view.prefix)

    def macs(self, step: StepShape) -> int:
        return step.keep * step.n * step.dim

    def fewest(self, n: int) -> int:
        return min(n, 1)


def low_pass(n: int, keep: int, device: torch.device | None = None) -> Tensor:
    """The matrix (keep, n) that leaves out all but the ``keep`` lowest frequencies of n tokens."""
    slot = (torch.arange(keep, device=device, dtype=torch.float64) + 0.5).unsqueeze(1) * (math.pi / keep)
    token = (torch.arange(n, device=device, dtype=torch.float64) + 0.5).unsqueeze(0) * (math.pi / n)
    return ((_kernel(slot - token, keep) + _kernel(slot + token, keep)) / (2 * n)).float()


def _kernel(angle: Tensor, keep: int) -> Tensor:
    """R(t), and its limit at 0."""
    below = (angle / 2).sin()
    at_zero = below.abs() < 1e-9
    return torch.where(at_zero, 2.0 * keep - 1, ((keep - 0.5) * angle).sin() / torch.where(at_zero, 1.0, below))
