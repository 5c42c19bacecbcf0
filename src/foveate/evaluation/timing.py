"""The one timer. Models take turns, in an order that rotates, so that a machine that slows down slows all alike."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from statistics import quantiles
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from foveate.evaluation.progress import Progress

FEWEST_ROUNDS = 6
PHASE = "rounds"

Timer = Callable[[], float]
"""Runs a model once and returns the seconds that took."""
Round = Mapping[str, float]
"""Seconds of each variant in one round."""
T = TypeVar("T")


def interleave(
    timers: Mapping[str, Timer], rounds: int | None, seconds: float = 0.0, progress: Progress | None = None
) -> list[Round]:
    """Time every variant once a round, for ``rounds`` rounds or else about ``seconds``.

    The order rotates (ABC, BCA, CAB), so that none always follows the same one.
    """
    names = list(timers)
    results: list[Round] = []
    elapsed, total = 0.0, rounds or FEWEST_ROUNDS
    while len(results) < total:
        results.append({name: timers[name]() for name in rotated(names, len(results))})
        elapsed += sum(results[-1].values())
        total = rounds or rounds_within(seconds, len(results), elapsed)
        if progress is not None:
            progress(PHASE, len(results), total)
    return results


def rotated(names: Sequence[str], turn: int) -> list[str]:
    """The names, beginning with another one at each turn."""
    first = turn % len(names)
    return [*names[first:], *names[:first]]


def rounds_within(seconds: float, done: int, elapsed: float) -> int:
    """Rounds in all that fill ``seconds``, if they go on as the ``done`` ones, which took ``elapsed``.

    At least ``FEWEST_ROUNDS``, and a multiple of three, so that every order comes equally often. Computed anew after
    each round: one hiccup cannot end a measurement early.
    """
    wanted = max(FEWEST_ROUNDS, done, seconds * done / max(elapsed, 1e-9))
    return 3 * math.ceil(wanted / 3 - 1e-9)


def timer(model: nn.Module, images: Tensor) -> Timer:
    """Measures the seconds of one pass of ``images``."""
    return lambda: timed(lambda: model(images), images.device)[1]


def timed(work: Callable[[], T], device: torch.device) -> tuple[T, float]:
    """The result of ``work`` and the seconds it took, what the device still has to do included."""
    wait_for(device)
    start = time.perf_counter()
    result = work()
    wait_for(device)
    return result, time.perf_counter() - start


def wait_for(device: torch.device) -> None:
    """An accelerator works asynchronously; the clock may only be read once it is done."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def quartiles(values: Sequence[float]) -> tuple[float, float]:
    """First and third quartile."""
    if len(values) == 1:
        return values[0], values[0]
    first, _, third = quantiles(values, n=4, method="inclusive")
    return first, third


def checked_device(name: str | torch.device) -> torch.device:
    """The device called ``name``; a ValueError if it is not there."""
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"There is no device {str(name)!r} here: {str(error).splitlines()[0]}") from error
    return device


def check_positive(**numbers: Any) -> None:
    """Raise a ValueError for the first that is neither None nor a whole number above 0."""
    for name, value in numbers.items():
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise ValueError(f"{name} is a whole number, 1 or more; got {value!r}.")
