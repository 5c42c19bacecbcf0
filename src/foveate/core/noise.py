"""Random numbers without a generator: a hash of (seed, stream, index), the same on every device and in every graph."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from foveate.core.graphs import exporting

_MASK = 0xFFFFFFFF


def counter_uniform(n: int, seed: int, stream: int, device: torch.device | None = None) -> Tensor:
    """n numbers in (0, 1), float32, that depend only on ``seed`` and ``stream``.

    A 32-bit multiply-xorshift finalizer over the counter. Without state there are no locks, and results do not depend
    on the order of calls, threads or batches. An exported graph holds the numbers as constants.
    """
    # different factors, so that a step of the seed never equals a step of the counter or the stream
    start = (seed * 0xC2B2AE3D + stream * 0x27D4EB2F) & _MASK
    # 23 bits plus one half, which excludes 0 and 1, fit float32 exactly
    if exporting():
        return torch.tensor([(_hashed(i, start) + 0.5) / 2**23 for i in range(n)], device=device)
    return _hashed(torch.arange(n, device=device), start).float().add(0.5) / 2**23


def _hashed(counter: Any, start: int) -> Any:
    """23 bits for a counter, which is a number or a tensor of int64."""
    x = (counter * 0x9E3779B1 + start) & _MASK
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        x = ((x ^ (x >> shift)) * factor) & _MASK
    return (x ^ (x >> 16)) >> 9
