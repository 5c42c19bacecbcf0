"""How fast a reduced model really is, against the unreduced one and against the best its counts allow.

Three models take turns: the *unreduced* one, the *reduced* one, and the *free slice*, which has the same token
counts in the same places but cuts tokens off without choosing. The free slice is what these counts could give at
most in this runtime, so ``reduced / free slice`` says what the choosing itself costs.

Each round times all three once, in an order that rotates from round to round, and ratios are formed inside a round:
a machine that slows down slows all three.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median, quantiles

import torch
from torch import Tensor, nn

from foveate.adapters import UnitQK, find_adapter, reduction_of
from foveate.api import cost, reduce_
from foveate.methods.base import Method
from foveate.methods.free_slice import FreeSlice
from foveate.report.environment import Environment, describe_environment
from foveate.schedule import Keep, Schedule

UNREDUCED, REDUCED, FREE_SLICE = "unreduced", "reduced", "free slice"
FEWEST_ROUNDS = 6

Timer = Callable[[], float]
"""Runs a model once and returns the seconds that took."""
Round = Mapping[str, float]
"""Seconds of each variant in one round."""
Progress = Callable[[int, int], None]
"""Called after each round with (rounds done, rounds in all); the latter is an estimate where time decides."""


@dataclass(frozen=True)
class SpeedResult:
    """Medians over rounds; the two ratios of times are medians of the ratios within each round."""

    unreduced_per_second: float
    """Images per second of the unreduced model."""
    reduced_per_second: float
    free_slice_per_second: float
    speed_up: float
    """Time of the unreduced model over time of the reduced one."""
    speed_up_quartiles: tuple[float, float]
    """First and third quartile of the speed-up over rounds: how steady the machine was."""
    mac_ratio: float
    """MACs of the unreduced model over MACs of the reduced one."""
    realised: float = field(init=False)
    """Share of the MAC ratio that arrived as speed: speed_up / mac_ratio."""
    efficiency: float
    """Reduced over free-slice images per second: 1 if choosing tokens cost no time."""
    efficiency_quartiles: tuple[float, float]
    batch_size: int
    image_size: tuple[int, int, int]
    rounds: int
    environment: Environment

    def __post_init__(self) -> None:
        object.__setattr__(self, "realised", self.speed_up / self.mac_ratio)


def measure_speed(
    model: nn.Module,
    method: Method,
    schedule: Schedule | None = None,
    *,
    batch_size: int,
    image_size: Sequence[int] | None = None,
    rounds: int | None = None,
    seconds: float = 20.0,
    warmup: int = 2,
    threads: int | None = None,
    exact_last_block: bool = False,
    unit_qk: UnitQK | None = None,
    dtype: torch.dtype | None = None,
    device: str | torch.device = "cpu",
    progress: Progress | None = None,
) -> SpeedResult:
    """Time ``model`` unreduced, reduced and as a free slice, on copies of it; the model itself is not touched.

    Without ``rounds`` there are as many as fit into ``seconds`` (6 at least), after ``warmup`` rounds that do not
    count. ``image_size`` is (channels, height, width); ``dtype`` and ``threads`` are left as they are where not
    given. Images are noise, which is as good as any: counts do not depend on them.
    """
    _check_numbers(batch_size=batch_size, warmup=warmup, rounds=rounds, threads=threads)
    if not seconds > 0:
        raise ValueError(f"seconds is a time to measure for, above 0; got {seconds}.")
    place = checked_device(device)
    size = _full_size(model, image_size)
    variants = _variants(model, method, schedule, exact_last_block, size, unit_qk)
    mac_ratio = cost(variants[UNREDUCED], size).macs / cost(variants[REDUCED], size).macs
    for variant in variants.values():
        variant.eval().to(device=place, dtype=dtype)
    used_dtype = next(model.parameters()).dtype if dtype is None else dtype
    images = torch.randn(batch_size, *size, generator=torch.Generator().manual_seed(0)).to(place, used_dtype)
    timers = {name: timer(variant, images) for name, variant in variants.items()}
    with _torch_threads(threads), torch.inference_mode():
        environment = describe_environment(place, used_dtype)
        interleave(timers, warmup)
        timed = interleave(timers, rounds, seconds, progress)
    return summarise(timed, mac_ratio, batch_size, size, environment)


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
        first = len(results) % len(names)
        order = names[first:] + names[:first]
        results.append({name: timers[name]() for name in order})
        elapsed += sum(results[-1].values())
        total = rounds or rounds_within(seconds, len(results), elapsed)
        if progress is not None:
            progress(len(results), total)
    return results


def rounds_within(seconds: float, done: int, elapsed: float) -> int:
    """Rounds in all that fill ``seconds``, if they go on as the ``done`` ones, which took ``elapsed``.

    At least ``FEWEST_ROUNDS``, and a multiple of three, so that every order comes equally often. Asked anew after
    each round: one hiccup cannot end a measurement early.
    """
    wanted = max(FEWEST_ROUNDS, done, seconds * done / max(elapsed, 1e-9))
    return 3 * math.ceil(wanted / 3 - 1e-9)


def summarise(
    rounds: Sequence[Round],
    mac_ratio: float,
    batch_size: int,
    image_size: tuple[int, int, int],
    environment: Environment,
) -> SpeedResult:
    """Medians of the times, and medians of ratios paired within a round."""
    speed_ups = [r[UNREDUCED] / r[REDUCED] for r in rounds]
    efficiencies = [r[FREE_SLICE] / r[REDUCED] for r in rounds]
    per_second = {name: batch_size / median(r[name] for r in rounds) for name in (UNREDUCED, REDUCED, FREE_SLICE)}
    return SpeedResult(
        unreduced_per_second=per_second[UNREDUCED],
        reduced_per_second=per_second[REDUCED],
        free_slice_per_second=per_second[FREE_SLICE],
        speed_up=median(speed_ups),
        speed_up_quartiles=_quartiles(speed_ups),
        mac_ratio=mac_ratio,
        efficiency=median(efficiencies),
        efficiency_quartiles=_quartiles(efficiencies),
        batch_size=batch_size,
        image_size=image_size,
        rounds=len(rounds),
        environment=environment,
    )


@dataclass(frozen=True)
class _TheseCounts(Schedule):
    """Counts already resolved for the images at hand, whatever size the model was made for."""

    resolved: tuple[int, ...]

    def counts(self, method: Method, depth: int, n: int) -> tuple[int, ...]:
        return self.resolved


def _variants(
    model: nn.Module,
    method: Method,
    schedule: Schedule | None,
    exact_last_block: bool,
    size: tuple[int, int, int],
    unit_qk: UnitQK | None = None,
) -> dict[str, nn.Module]:
    """Three models that share nothing: a copy of ``model``, one reduced, and one cut to the same counts."""

    def copy_reduced(method: Method, schedule: Schedule | None, exact: bool) -> nn.Module:
        return reduce_(copy.deepcopy(model), method, schedule, exact_last_block=exact, unit_qk=unit_qk)

    reduced = copy_reduced(method, schedule, exact_last_block)
    reduction = reduction_of(reduced)
    assert reduction is not None
    grid = find_adapter(reduced).grid(reduced, *size[1:])
    same_counts = _TheseCounts(reduction.plan_for(grid).counts)
    free = copy_reduced(method.free_slice() or FreeSlice(site=method.site), same_counts, exact_last_block)
    whole = copy.deepcopy(model) if unit_qk is None else copy_reduced(FreeSlice(), Keep({}), False)
    return {UNREDUCED: whole, REDUCED: reduced, FREE_SLICE: free}


def timer(model: nn.Module, images: Tensor) -> Timer:
    """Seconds of one pass of ``images``, with what a device still has to do waited for."""

    def run_once() -> float:
        _wait_for(images.device)
        start = time.perf_counter()
        model(images)
        _wait_for(images.device)
        return time.perf_counter() - start

    return run_once


def _wait_for(device: torch.device) -> None:
    """An accelerator works on behind our back; a clock may only be read once it is done."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


@contextmanager
def _torch_threads(threads: int | None) -> Iterator[None]:
    before = torch.get_num_threads()
    if threads is not None:
        torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _full_size(model: nn.Module, image_size: Sequence[int] | None) -> tuple[int, int, int]:
    if image_size is None:
        return find_adapter(model).image_size(model)
    if len(image_size) != 3:
        raise ValueError(f"image_size is (channels, height, width); got {tuple(image_size)}.")
    channels, height, width = image_size
    return channels, height, width


def checked_device(name: str | torch.device) -> torch.device:
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"There is no device {str(name)!r} here: {str(error).splitlines()[0]}") from error
    return device


def _check_numbers(**numbers: int | None) -> None:
    for name, value in numbers.items():
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise ValueError(f"{name} is a whole number, 1 or more; got {value!r}.")


def _quartiles(values: Sequence[float]) -> tuple[float, float]:
    if len(values) == 1:
        return values[0], values[0]
    first, _, third = quantiles(values, n=4, method="inclusive")
    return first, third
