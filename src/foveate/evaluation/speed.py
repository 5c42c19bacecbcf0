"""Measured speed of a reduced model, against the unreduced one and against the limit of its token counts.

Three models take turns: the *unreduced* one, the *reduced* one, and the *free slice*, which has the same token
counts in the same places but drops tokens without choosing. The free slice is the fastest that these counts can be in
this runtime, so ``reduced / free slice`` is the cost of choosing tokens.

Each round times all three once, in an order that rotates from round to round. Ratios are taken within a round, since a
machine that slows down slows all three.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median
from typing import Unpack

import torch
from torch import nn

from foveate.adapters import inspect, reducer_of
from foveate.api import cost
from foveate.evaluation.environment import Environment, describe_environment
from foveate.evaluation.memory import peak_memory
from foveate.evaluation.progress import Progress
from foveate.evaluation.timing import (
    Round,
    check_positive,
    check_progress,
    check_seconds,
    checked_device,
    interleave,
    quartiles,
    timer,
)
from foveate.methods.base import Method
from foveate.methods.free_slice import speed_limit_of
from foveate.methods.validation import check_sizes, shown
from foveate.reductions import Reduction, ReductionOptions, as_reduction
from foveate.schedules import Schedule

UNREDUCED, REDUCED, FREE_SLICE = "unreduced", "reduced", "free slice"


@dataclass(frozen=True)
class SpeedResult:
    """Medians over rounds. The speed-up and the efficiency are medians of the ratios within each round."""

    unreduced_per_second: float
    """Images per second of the unreduced model."""
    reduced_per_second: float
    free_slice_per_second: float
    speed_up: float
    """Time of the unreduced model divided by the time of the reduced one."""
    speed_up_quartiles: tuple[float, float]
    """First and third quartile of the speed-up over rounds; they show how steady the machine was."""
    mac_ratio: float
    """MACs of the unreduced model divided by the MACs of the reduced one."""
    realized: float = field(init=False)
    """Share of the MAC ratio that became speed: speed_up / mac_ratio."""
    efficiency: float
    """Images per second relative to the free slice: 1 if choosing tokens takes no time."""
    efficiency_quartiles: tuple[float, float]
    batch_size: int
    image_size: tuple[int, int, int]
    rounds: int
    environment: Environment
    ns_per_pixel: dict[str, float] = field(init=False)
    """Nanoseconds for each pixel of an image, for ``unreduced``, ``reduced`` and ``free slice``."""
    peak_mib: dict[str, float | None] | None = None
    """Peak memory of a pass in MiB, for the same three; None if it was not measured."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "realized", self.speed_up / self.mac_ratio)
        rates = (self.unreduced_per_second, self.reduced_per_second, self.free_slice_per_second)
        pixels = self.image_size[1] * self.image_size[2]
        named = zip((UNREDUCED, REDUCED, FREE_SLICE), rates, strict=True)
        object.__setattr__(self, "ns_per_pixel", {name: 1e9 / (rate * pixels) for name, rate in named})


def measure_speed(
    model: nn.Module,
    method: Method | str | Reduction,
    schedule: Schedule | float | str | None = None,
    *,
    batch_size: int,
    image_size: Sequence[int] | None = None,
    rounds: int | None = None,
    seconds: float = 20.0,
    warmup: int = 2,
    threads: int | None = None,
    dtype: torch.dtype | None = None,
    device: str | torch.device = "cpu",
    memory: bool = False,
    progress: Progress | None = None,
    **options: Unpack[ReductionOptions],
) -> SpeedResult:
    """Time copies of ``model``: unreduced, reduced and as a free slice. The model itself does not change.

    The images are noise, since token counts do not depend on them.

    Args:
        model: An unreduced model.
        method: A method, its name, or a complete ``Reduction``.
        schedule: How many tokens to keep; None for a method with fixed counts.
        batch_size: Images in a batch.
        image_size: (channels, height, width). Default: the model's own.
        rounds: How often to time every variant. Default: as often as fits into ``seconds``, at least 6 times.
        seconds: How long to measure if ``rounds`` is not given.
        warmup: Rounds before the measurement.
        threads: torch's threads while measuring. Default: unchanged.
        options: Further fields of ``Reduction``.
        dtype: Precision of weights and images. Default: the model's own.
        device: Where to run.
        memory: Also measure the peak memory of a pass of each.
        progress: Called after each round.

    Returns:
        Medians, ratios and the environment of the measurement.

    Raises:
        ValueError: If a number, the device, the reduction or the image size cannot be used.
    """
    check_positive(batch_size=batch_size, warmup=warmup, rounds=rounds, threads=threads)
    check_seconds(seconds)
    check_progress(progress)
    if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise TypeError(f"dtype must be a floating-point type such as torch.bfloat16, got {shown(dtype)}.")
    place = checked_device(device)
    size = _full_size(model, image_size)
    variants = _variants(model, as_reduction(method, schedule, **options), size)
    mac_ratio = cost(variants[UNREDUCED], size).macs / cost(variants[REDUCED], size).macs
    for variant in variants.values():
        variant.eval().to(device=place, dtype=dtype)
    used_dtype = next(model.parameters()).dtype if dtype is None else dtype
    images = torch.randn(batch_size, *size, generator=torch.Generator().manual_seed(0)).to(place, used_dtype)
    timers = {name: timer(variant, images) for name, variant in variants.items()}
    with torch_threads(threads), torch.inference_mode():
        environment = describe_environment(place, used_dtype)
        interleave(timers, warmup)
        timed = interleave(timers, rounds, seconds, progress)
        peaks = {name: peak_memory(variant, images) for name, variant in variants.items()} if memory else None
    return dataclasses.replace(summarize(timed, mac_ratio, batch_size, size, environment), peak_mib=peaks)


def summarize(
    rounds: Sequence[Round],
    mac_ratio: float,
    batch_size: int,
    image_size: tuple[int, int, int],
    environment: Environment,
) -> SpeedResult:
    """Return medians of the times, and medians of ratios paired within a round."""
    speed_ups = [r[UNREDUCED] / r[REDUCED] for r in rounds]
    efficiencies = [r[FREE_SLICE] / r[REDUCED] for r in rounds]
    per_second = {name: batch_size / median(r[name] for r in rounds) for name in (UNREDUCED, REDUCED, FREE_SLICE)}
    return SpeedResult(
        unreduced_per_second=per_second[UNREDUCED],
        reduced_per_second=per_second[REDUCED],
        free_slice_per_second=per_second[FREE_SLICE],
        speed_up=median(speed_ups),
        speed_up_quartiles=quartiles(speed_ups),
        mac_ratio=mac_ratio,
        efficiency=median(efficiencies),
        efficiency_quartiles=quartiles(efficiencies),
        batch_size=batch_size,
        image_size=image_size,
        rounds=len(rounds),
        environment=environment,
    )


@dataclass(frozen=True)
class _TheseCounts(Schedule):
    """Counts already resolved for the given images, regardless of the model's own image size."""

    resolved: tuple[int, ...]

    def counts(self, method: Method, depth: int, n: int) -> tuple[int, ...]:
        return self.resolved


def _variants(model: nn.Module, reduction: Reduction, size: tuple[int, int, int]) -> dict[str, nn.Module]:
    """Return three independent copies of ``model``: unreduced, reduced, and sliced to the same counts.

    Unit queries and keys are part of the model, so all three have them.
    """
    reduced = reduction.apply_(copy.deepcopy(model))
    free = free_slice(reduced, inspect(reduced).grid_for(*size[1:])).apply_(copy.deepcopy(model))
    unreduced = Reduction(unit_qk=reduction.unit_qk).apply_(copy.deepcopy(model))
    return {UNREDUCED: unreduced, REDUCED: reduced, FREE_SLICE: free}


def free_slice(model: nn.Module, grid: tuple[int, int] | None = None) -> Reduction:
    """Return the reduction that drops tokens blindly to the counts of a reduced ``model``: the limit of its speed.

    Args:
        model: A reduced model.
        grid: Rows and columns of patches. Default: those of the model's own image size.
    """
    reducer = reducer_of(model)
    if reducer is None or reducer.method is None:
        return inspect(model).reduction
    plan = reducer.plan if grid is None else reducer.plan_for(grid)
    return dataclasses.replace(
        reducer.reduction, method=speed_limit_of(reducer.method), schedule=_TheseCounts(plan.counts)
    )


@contextmanager
def torch_threads(threads: int | None) -> Iterator[None]:
    """Set torch's threads for a while, which other runtimes follow."""
    before = torch.get_num_threads()
    if threads is not None:
        check_sizes(threads=threads)
        torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _full_size(model: nn.Module, image_size: Sequence[int] | None) -> tuple[int, int, int]:
    if image_size is None:
        return inspect(model).image_size
    inspect(model).grid_for_size(image_size)  # raises unless it is (channels, height, width)
    channels, height, width = image_size
    return channels, height, width
