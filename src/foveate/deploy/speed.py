"""Measured speed of reduced models in several runtimes, all in turns.

Each model runs once before the call that is timed. A server calls one model again and again, and without it a small
model would always find its weights pushed out of the cache by the others, and threads of other runtimes still awake.
OpenVINO is loaded for the batch size that is timed.
"""

from __future__ import annotations

import copy
import dataclasses
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import torch
from torch import Tensor, nn

from foveate.adapters import inspect
from foveate.deploy.runtimes import EAGER, Call, Ready, Runtime, prepare, read_runtimes
from foveate.evaluation.progress import Progress
from foveate.evaluation.speed import free_slice, torch_threads
from foveate.evaluation.timing import (
    Round,
    Timer,
    check_positive,
    check_progress,
    check_seconds,
    interleave,
    quartiles,
)
from foveate.methods.validation import check_type, shown
from foveate.reductions import Reduction

PREPARING = "exporting and loading"
SETTLE = 0.002
"""Seconds before each model, in which threads of the one before fall asleep."""
CALIBRATION = 8
"""Images of noise that int8 is calibrated on where only its speed is asked for."""


@dataclass(frozen=True)
class RuntimeSpeed:
    """One reduction in one runtime; medians over rounds, ratios paired within a round."""

    reduction: Reduction
    runtime: Runtime
    batch_size: int
    threads: int
    milliseconds: float
    """Time of one batch."""
    speed_up: float
    """Time of the unreduced model in eager PyTorch, in float32, divided by this time."""
    speed_up_quartiles: tuple[float, float]
    speed_up_within: float
    """Time of the unreduced model in the same runtime and precision divided by this time."""
    efficiency: float | None
    """Speed relative to the free slice in the same runtime and precision; None if no tokens are chosen."""
    efficiency_quartiles: tuple[float, float] | None
    export_seconds: float
    load_seconds: float
    """Time to load and compile it, up to the first output."""
    rounds: int

    @property
    def images_per_second(self) -> float:
        return 1000 * self.batch_size / self.milliseconds


@dataclass(frozen=True)
class Variant:
    """One model in one runtime: a reduction, or its free slice."""

    reduction: int
    """Index of the reduction; 0 is the unreduced model."""
    runtime: Runtime
    sliced: bool = False


def measure_runtimes(
    model: nn.Module,
    reductions: Sequence[Reduction],
    *,
    runtimes: Sequence[str] = ("all",),
    precisions: Sequence[str] = ("fp32",),
    batch_sizes: Sequence[int] = (1, 16),
    image_size: Sequence[int] | None = None,
    rounds: int | None = None,
    seconds: float = 20.0,
    threads: int | None = None,
    keep_files: Path | None = None,
    progress: Progress | None = None,
) -> list[RuntimeSpeed]:
    """Time ``model`` unreduced and with each of ``reductions`` in every runtime, each beside its free slice.

    All take turns at each batch size, so a machine that slows down slows all of them. Images are noise, and int8 is
    calibrated on noise: only speeds mean something here.

    Args:
        model: An unreduced model.
        reductions: How to reduce it.
        runtimes: ``eager``, ``compile``, ``onnxruntime``, ``openvino``, or ``all`` that are installed.
        precisions: ``fp32``, ``bf16``, ``int8``; pairs that do not exist are left out.
        batch_sizes: Images in a batch.
        image_size: (channels, height, width). Default: the model's own.
        rounds: How often to time everything. Default: as often as fits into ``seconds``, at least 6 times.
        seconds: How long to measure at each batch size, for each reduction.
        threads: Threads of every runtime. Default: torch's.
        keep_files: Keep the exported files here, and use those of an earlier call with the same model.
        progress: Called during the work.

    Returns:
        One result per reduction, runtime and batch size; the unreduced model comes first.

    Raises:
        ValueError: If a setting cannot be used, a runtime is not installed, or the model cannot be exported.
    """
    check_type(list | tuple, "a list", reductions=reductions, runtimes=runtimes, precisions=precisions)
    check_type(list | tuple, "a list of numbers", batch_sizes=batch_sizes)
    check_positive(rounds=rounds, threads=threads, **{f"batch_sizes[{i}]": size for i, size in enumerate(batch_sizes)})
    check_seconds(seconds)
    check_progress(progress)
    if not all(isinstance(reduction, Reduction) for reduction in reductions):
        raise TypeError(f"reductions must be a list of Reduction, got {shown(reductions)}.")
    found, _ = read_runtimes(runtimes, precisions)
    size = tuple(inspect(model).image_size if image_size is None else image_size)
    inspect(model).grid_for_size(size)
    units = {reduction.unit_qk for reduction in reductions} or {None}
    if len(units) > 1:
        raise ValueError("unit_qk is part of the model: all reductions must have the same.")
    plain = [Reduction(unit_qk=units.pop()), *(r for r in reductions if not r.is_identity)]
    for reduction in plain:
        reduction.plan(inspect(model).shape())  # raises before the first export, which takes long
    with torch_threads(threads):
        variants = _prepared(model, plain, [EAGER, *(r for r in found if r != EAGER)], size, keep_files, progress)
        results: list[RuntimeSpeed] = []
        for batch in batch_sizes:
            images = torch.randn(batch, *size, generator=torch.Generator().manual_seed(0))
            timers = {variant: run_twice(ready.for_batch(len(images)), images) for variant, ready in variants.items()}
            timed = time_in_turns(timers, rounds, seconds * max(1, len(plain) - 1), progress)
            results += summarized(plain, variants, timed, batch, torch.get_num_threads())
    return [result for result in results if result.runtime in found]


def _prepared(
    model: nn.Module,
    reductions: Sequence[Reduction],
    runtimes: Sequence[Runtime],
    size: Sequence[int],
    keep_files: Path | None,
    progress: Progress | None,
) -> dict[Variant, Ready]:
    images = torch.randn(CALIBRATION, *size, generator=torch.Generator().manual_seed(1))
    wanted = [(number, runtime) for number in range(len(reductions)) for runtime in runtimes]
    found: dict[Variant, Ready] = {}
    for done, (number, runtime) in enumerate(wanted):
        if progress is not None:
            progress(PREPARING, done, len(wanted))
        for variant, reduced in variants_of(model, reductions[number], number, runtime, size):
            own = _folder(keep_files, reductions[number], variant)
            found[variant] = prepare(reduced, runtime, images, torch.get_num_threads(), own)
    if progress is not None:
        progress(PREPARING, len(wanted), len(wanted))
    return found


def variants_of(
    model: nn.Module, reduction: Reduction, number: int, runtime: Runtime, size: Sequence[int]
) -> Iterator[tuple[Variant, nn.Module]]:
    """A copy of ``model`` with the reduction, and one that drops tokens blindly to the same counts."""
    reduced = reduction.apply_(copy.deepcopy(model).eval())
    yield Variant(number, runtime), reduced
    if reduction.method is not None:
        free = free_slice(reduced, inspect(reduced).grid_for(size[1], size[2]))
        yield Variant(number, runtime, sliced=True), free.apply_(copy.deepcopy(model).eval())


def _folder(keep_files: Path | None, reduction: Reduction, variant: Variant) -> Path | None:
    if keep_files is None:
        return None
    words = f"{reduction.text} {variant.runtime.name} {variant.runtime.precision}{' slice' * variant.sliced}"
    return keep_files / "".join(letter if letter.isalnum() or letter in ".=" else "-" for letter in words)


def run_twice(run: Call, images: Tensor) -> Timer:
    """A timer of the second of two calls."""

    def timer() -> float:
        time.sleep(SETTLE)
        run(images)
        start = time.perf_counter()
        run(images)
        return time.perf_counter() - start

    return timer


def time_in_turns(
    timers: Mapping[Variant, Timer], rounds: int | None, seconds: float, progress: Progress | None = None
) -> list[dict[Variant, float]]:
    """Seconds of every variant, by round."""
    names = {str(number): variant for number, variant in enumerate(timers)}
    own = {name: timers[variant] for name, variant in names.items()}
    with torch.inference_mode():
        interleave(own, 1)
        timed: list[Round] = interleave(own, rounds, seconds / 2, progress)  # each call is made twice
    return [{variant: found[name] for name, variant in names.items()} for found in timed]


def summarized(
    reductions: Sequence[Reduction],
    variants: Mapping[Variant, Ready],
    timed: Sequence[Mapping[Variant, float]],
    batch_size: int,
    threads: int,
) -> list[RuntimeSpeed]:
    """Medians of the times, and medians of ratios paired within a round."""

    def ratios(base: Variant, variant: Variant) -> list[float]:
        return [found[base] / found[variant] for found in timed]

    results = []
    for variant, ready in variants.items():
        if variant.sliced:
            continue
        limit = dataclasses.replace(variant, sliced=True)
        efficiencies = ratios(limit, variant) if limit in variants else None
        speed_ups = ratios(Variant(0, EAGER), variant)
        results.append(
            RuntimeSpeed(
                reduction=reductions[variant.reduction],
                runtime=variant.runtime,
                batch_size=batch_size,
                threads=threads,
                milliseconds=1000 * median(found[variant] for found in timed),
                speed_up=median(speed_ups),
                speed_up_quartiles=quartiles(speed_ups),
                speed_up_within=median(ratios(Variant(0, variant.runtime), variant)),
                efficiency=None if efficiencies is None else median(efficiencies),
                efficiency_quartiles=None if efficiencies is None else quartiles(efficiencies),
                export_seconds=ready.export_seconds,
                load_seconds=ready.load_seconds,
                rounds=len(timed),
            )
        )
    return results
