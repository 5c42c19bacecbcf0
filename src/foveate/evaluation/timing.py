"""Interleaved timing: models take turns in rotating order, so a machine that slows down affects all of them alike."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from statistics import quantiles
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from foveate.evaluation.progress import Progress
from foveate.methods.validation import shown

FEWEST_ROUNDS = 6
PHASE = "rounds"

Timer = Callable[[], float]
"""Runs a model once and returns the seconds it took."""
Round = Mapping[str, float]
"""Seconds of each variant in one round, by name."""
T = TypeVar("T")


def interleave(
    timers: Mapping[str, Timer], rounds: int | None, seconds: float = 0.0, progress: Progress | None = None
) -> list[Round]:
    """Time every variant once per round, for ``rounds`` rounds, or for about ``seconds`` if it is None.

    The order rotates (ABC, BCA, CAB), so that no variant always follows the same one.
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
    """Rotate the names so that each turn begins with another one."""
    first = turn % len(names)
    return [*names[first:], *names[:first]]


def rounds_within(seconds: float, done: int, elapsed: float) -> int:
    """Estimate the total number of rounds that fill ``seconds``, given that ``done`` rounds took ``elapsed``.

    At least ``FEWEST_ROUNDS`` and a multiple of three, so that every order occurs equally often. The estimate is
    updated after each round, so that one slow round cannot end a measurement early.
    """
    wanted = max(FEWEST_ROUNDS, done, seconds * done / max(elapsed, 1e-9))
    return 3 * math.ceil(wanted / 3 - 1e-9)


def timer(model: nn.Module, images: Tensor) -> Timer:
    """Return a timer for one pass of ``images``."""
    return lambda: timed(lambda: model(images), images.device)[1]


def timed(work: Callable[[], T], device: torch.device) -> tuple[T, float]:
    """Return the result of ``work`` and the seconds it took, including pending work on the device."""
    wait_for(device)
    start = time.perf_counter()
    result = work()
    wait_for(device)
    return result, time.perf_counter() - start


def wait_for(device: torch.device) -> None:
    """Wait until an accelerator, which works asynchronously, is done, so that the clock can be read."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def quartiles(values: Sequence[float]) -> tuple[float, float]:
    """Return the first and third quartile."""
    if len(values) == 1:
        return values[0], values[0]
    first, _, third = quantiles(values, n=4, method="inclusive")
    return first, third


def checked_device(name: str | torch.device) -> torch.device:
    """Return the device ``name``.

    Raises:
        ValueError: If it is not available.
    """
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError, TypeError, ValueError) as error:
        shown_name = shown(str(name) if isinstance(name, torch.device) else name)
        raise ValueError(f"Device {shown_name} is not available: {str(error).splitlines()[0]}") from error
    return device


def check_positive(**numbers: Any) -> None:
    """Raise a ValueError for the first value that is neither None nor a positive integer."""
    for name, value in numbers.items():
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise ValueError(f"{name} must be an integer of at least 1, got {shown(value)}.")


def check_seconds(seconds: float) -> None:
    """Raise a ValueError for anything but a finite time above 0."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < math.inf:
        raise ValueError(f"seconds must be above 0, got {shown(seconds)}.")


def check_workers(workers: object) -> None:
    """Raise a ValueError for anything but a number of processes; 0 reads images in this one."""
    if isinstance(workers, bool) or not isinstance(workers, int) or workers < 0:
        raise ValueError(f"workers must be an integer of at least 0, got {shown(workers)}.")


def check_progress(progress: object) -> None:
    """Raise a TypeError for something that is not a function; a model can be called, but not with what is done."""
    if progress is not None and (isinstance(progress, nn.Module) or not callable(progress)):
        raise TypeError(f"progress must be a function, got {shown(progress)}.")
