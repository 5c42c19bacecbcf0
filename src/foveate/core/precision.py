"""Float32 at least, for work whose result is a choice: rounding there would choose other tokens."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

import torch
from torch import Tensor

P = ParamSpec("P")
R = TypeVar("R")


def to_float(x: Tensor) -> Tensor:
    """``x`` detached, and in float32 if it is half precision, whose squares overflow."""
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
