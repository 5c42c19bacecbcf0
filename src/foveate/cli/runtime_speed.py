"""The work of ``foveate speed --runtime``: every method in every runtime."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence

import torch

from foveate.adapters import copy_unreduced, inspect
from foveate.cli import output
from foveate.cli.requests import Loaded
from foveate.deploy import RuntimeSpeed, measure_runtimes
from foveate.deploy.runtimes import read_runtimes
from foveate.evaluation.environment import describe_environment
from foveate.methods.options import method_text
from foveate.reductions import Reduction
from foveate.schedules_text import split_list

UNREDUCED = "unreduced"
NAMES = ("method", "runtime")
COLUMNS = (*NAMES, "batch", "ms", "img/s", "over\neager", "over\nsame", "efficiency", "ready in")
WIDE_SPREAD = 0.1  # between the quartiles of a speed-up, relative to its median


def check(args: argparse.Namespace) -> list[str]:
    """Check the options before a model is loaded; returns a sentence for each pair that is not measured."""
    _, notes = read_runtimes(split_list(args.runtimes), split_list(args.precisions))
    if args.device != "cpu" or args.dtype is not None:
        raise ValueError("--runtime measures on the CPU. Leave out --device, and use --precision in place of --dtype.")
    if args.memory or args.report is not None or len(args.image_sizes or ()) > 1:
        raise ValueError("--runtime measures speed at one image size. Leave out --memory, --report and further sizes.")
    return notes


def run(args: argparse.Namespace, loaded: Loaded, reductions: Sequence[Reduction]) -> int:
    """Measure and print every reduction in every runtime."""
    unit_qk = inspect(loaded.model).reduction.unit_qk
    found = [dataclasses.replace(reduction, unit_qk=unit_qk) for reduction in reductions]
    with output.phases() as progress:
        results = measure_runtimes(
            copy_unreduced(loaded.model),
            found,
            runtimes=split_list(args.runtimes),
            precisions=split_list(args.precisions),
            batch_sizes=args.batch_size,
            image_size=loaded.image_size,
            rounds=args.rounds,
            seconds=args.seconds,
            threads=args.threads,
            progress=progress,
        )
    _show(args, results, [*check(args), *_noise(results)])
    return 0


def _show(args: argparse.Namespace, results: Sequence[RuntimeSpeed], notes: Sequence[str]) -> None:
    environment = dataclasses.replace(
        describe_environment(torch.device("cpu"), torch.float32), threads=results[0].threads
    )
    if args.json:
        rows = [as_json(result) for result in results]
        output.print_json({"model": args.model, "environment": dataclasses.asdict(environment), "rows": rows})
        return
    words = dict.fromkeys(r.reduction.schedule_words for r in results if r.reduction.method is not None)
    output.print_table(f"{args.model}, {'; '.join(words)}", COLUMNS, [_cells(result) for result in results], NAMES)
    output.say(str(environment))
    if any(result.runtime.precision == "int8" for result in results):
        output.say("int8 was calibrated on noise: only its speed means something. `foveate export` calibrates it.")
    for note in notes:
        output.say(note)


def _name(result: RuntimeSpeed) -> str:
    return UNREDUCED if result.reduction.method is None else method_text(result.reduction.method)


def _cells(result: RuntimeSpeed) -> list[str]:
    return [
        _name(result),
        result.runtime.title,
        str(result.batch_size),
        f"{result.milliseconds:.1f}",
        f"{result.images_per_second:.1f}",
        f"{result.speed_up:.2f}x",
        f"{result.speed_up_within:.2f}x",
        "" if result.efficiency is None else f"{result.efficiency:.0%}",
        f"{result.load_seconds:.1f} s",
    ]


def as_json(result: RuntimeSpeed) -> dict[str, object]:
    """One row of the JSON document."""
    plain = {field.name: getattr(result, field.name) for field in dataclasses.fields(result)}
    plain |= {"reduction": result.reduction.to_dict(), "images_per_second": result.images_per_second}
    return plain | dataclasses.asdict(result.runtime) | {"runtime": result.runtime.name}


def _noise(results: Sequence[RuntimeSpeed]) -> list[str]:
    """A warning if rounds disagree, which is a sign of a busy machine."""
    noisy = [r for r in results if r.speed_up_quartiles[1] - r.speed_up_quartiles[0] > WIDE_SPREAD * r.speed_up]
    if not noisy:
        return []
    worst = max(noisy, key=lambda r: r.speed_up_quartiles[1] / r.speed_up_quartiles[0])
    first, third = worst.speed_up_quartiles
    return [
        f"Noisy: {len(noisy)} of {len(results)} rows vary by more than {WIDE_SPREAD:.0%}; {_name(worst)} in "
        f"{worst.runtime.title} at batch {worst.batch_size} was {first:.2f}x to {third:.2f}x in the middle half of its "
        f"{worst.rounds} rounds. Free the machine or raise --seconds."
    ]
