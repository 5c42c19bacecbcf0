"""At least float32 for computations that choose tokens: rounding would change the choice."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

import torch
from torch import Tensor

P = ParamSpec("P")
R = TypeVar("R")


def to_float(x: Tensor) -> Tensor:
    """Detach ``x`` and convert half precision, whose squares overflow, to float32."""
    x = x.detach()
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def in_full_precision(function: Callable[Concatenate[Tensor, P], R]) -> Callable[Concatenate[Tensor, P], R]:
    """Decorator that keeps autocast from computing the function's matrix products in half precision."""

    @wraps(function)
    def run(x: Tensor, *args: P.args, **options: P.kwargs) -> R:
        if not torch.is_autocast_enabled(x.device.type):
            return function(x, *args, **options)
        with torch.autocast(x.device.type, enabled=False):
            return function(x, *args, **options)

    return run
