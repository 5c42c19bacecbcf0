"""At least float32 for computations that choose tokens: rounding would change the choice."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

import torch
from torch import Tensor

from foveate.core.assignment import take
from foveate.core.graphs import lengths, positions

P = ParamSpec("P")
R = TypeVar("R")
MIDDLES = tuple(range(1, 18, 2))
"""Of nine parts of an image, in eighteenths."""


def to_float(x: Tensor) -> Tensor:
    """Detach ``x`` and convert half precision, whose squares overflow, to float32."""
    x = x.detach()
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def row_norms(x: Tensor) -> Tensor:
    """|x_i| of tokens x (..., N, C): (..., N), in float32 at least, because squares of half precision overflow."""
    return lengths(x, keepdim=False)


def centered(x: Tensor, valid: Tensor | None = None) -> Tensor:
    """Tokens x (B, N, C) relative to a typical token of their image, in float32 at least.

    Distances stay the same, but |a|^2 + |b|^2 - 2ab no longer loses the digits that an offset common to all tokens
    takes. Unlike the mean, the typical token does not turn equal distances into almost equal ones, needs no sum, whose
    order could depend on the batch, and is not moved by the few tokens of huge norm that many models have.

    Args:
        x: tokens.
        valid: (B, N), false for padding, which is not looked at; None if there is no padding.
    """
    x = to_float(x)
    if valid is None:
        return x - typical_token(x)
    valid_first = positions(valid, valid.shape[1])
    count = valid.sum(dim=1, keepdim=True)
    place = valid_first.gather(1, torch.cat([count * middle // 18 for middle in MIDDLES], dim=1))
    return x - _typical(take(x, place))


def typical_token(x: Tensor, prefix: int = 0) -> Tensor:
    """What ``centered`` subtracts from the tokens behind ``prefix`` of x (B, P + N, C): (B, 1, C)."""
    n = x.shape[1] - prefix
    places = torch.tensor([prefix + n * middle // 18 for middle in MIDDLES], device=x.device)
    return _typical(x.index_select(1, places))


def _typical(x: Tensor) -> Tensor:
    """The median of three medians of three of nine tokens (B, 9, C) in each channel: (B, 1, C)."""
    while x.shape[1] > 1:
        one, two, three = x.chunk(3, dim=1)
        x = torch.maximum(torch.minimum(one, two), torch.minimum(torch.maximum(one, two), three))
    return x


def in_full_precision(function: Callable[Concatenate[Tensor, P], R]) -> Callable[Concatenate[Tensor, P], R]:
    """Decorator that keeps autocast from computing the function's matrix products in half precision."""

    @wraps(function)
    def run(x: Tensor, *args: P.args, **options: P.kwargs) -> R:
        if x.device.type == "meta" or not torch.is_autocast_enabled(x.device.type):  # shapes alone have no autocast
            return function(x, *args, **options)
        with torch.autocast(x.device.type, enabled=False):
            return function(x, *args, **options)

    return run
