"""Slots that mix all tokens, with weights of their own for every image."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from foveate.core.assignment import Assignment


@dataclass(frozen=True)
class SoftAssignment(Assignment):
    """An assignment whose slots are ``mixing`` (B, num_out, num_in) times the tokens.

    Every token contributes to every slot. Its one edge leads to the slot it contributes most to: traces, dense features
    and sizes follow that edge.
    """

    mixing: Tensor | None = None


def soft_slots(mixing: Tensor) -> SoftAssignment:
    """The assignment of weights ``mixing`` (B, K, N)."""
    _, k, n = mixing.shape
    return SoftAssignment(None, mixing.detach().max(dim=1).indices, None, n, k, mixing=mixing)


def mix(x: Tensor, a: Assignment, prefix: int = 0) -> Tensor:
    """Apply a ``SoftAssignment`` to tokens x (B, prefix + num_in, C): (B, prefix + num_out, C)."""
    assert isinstance(a, SoftAssignment)
    assert a.mixing is not None
    slots = torch.bmm(a.mixing.to(x.dtype), x[:, prefix:])
    return torch.cat([x[:, :prefix], slots.to(x.dtype)], dim=1) if prefix else slots
