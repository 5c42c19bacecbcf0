"""The work of ``foveate speed``."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from pathlib import Path

import torch

from foveate.adapters import copy_unreduced, inspect
from foveate.cli import output, runtime_speed
from foveate.cli.requests import Loaded, load_from, read_reductions
from foveate.evaluation import measure_speed
from foveate.evaluation.timing import checked_device
from foveate.files import check_writable, write_text
from foveate.methods.options import method_text
from foveate.reductions import Reduction
from foveate.report.page.speed import SpeedRow, render_speed

NO_METHOD = "speed needs --method, to compare with the unreduced model. `foveate methods` lists methods."
RATES = ("un-\nreduced\nimg/s", "reduced\nimg/s", "free\nslice\nimg/s")
COLUMNS = ("method", "batch", *RATES, "speed-\nup", "MAC\nratio", "realized", "efficiency")
PIXEL_COLUMNS = ("size", "method", "batch", "un-\nreduced\nns/px", "reduced\nns/px", "free\nslice\nns/px")
MEMORY_COLUMNS = ("un-\nreduced\nMiB", "reduced\nMiB", "free\nslice\nMiB")


def run(args: argparse.Namespace) -> int:
    requested = read_reductions(args)  # before a model is loaded
    if args.runtimes:
        runtime_speed.check(args)
    checked_device(args.device)
    if not requested and not Path(args.model).is_dir():  # a saved model may be reduced
        raise ValueError(NO_METHOD)
    if args.report is not None:
        check_report(args.report)
    prepared = [prepared_at(args, size, requested) for size in args.image_sizes or (None,)]  # errors come first
    if args.runtimes:
        return runtime_speed.run(args, *prepared[0])
    rows = [
        measure(args, loaded, reduction, batch)
        for loaded, reductions in prepared
        for reduction in reductions
        for batch in args.batch_size
    ]
    if args.report is not None:
        args.report.parent.mkdir(parents=True, exist_ok=True)
        write_text(args.report, render_speed(args.model, rows))
    if args.json:
        document = {"model": args.model, "environment": dataclasses.asdict(rows[0].result.environment)}
        output.print_json({**document, "rows": [as_json(row) for row in rows]})
    else:
        print_rows(args, rows)
    return 0


def check_report(path: Path) -> None:
    """Refuse a file that cannot be written, before anything is measured."""
    if path.is_dir():
        raise ValueError(f"argument --report: {path} is a folder; name a file, such as {path / 'speed.html'}.")
    check_writable(path.parent)


def prepared_at(
    args: argparse.Namespace, size: tuple[int | None, int, int] | None, requested: list[Reduction]
) -> tuple[Loaded, list[Reduction]]:
    """The model for one of the image sizes, and the reductions to measure; each is applied once, to see that it can."""
    loaded = load_from(argparse.Namespace(**vars(args) | {"image_size": size}))
    reductions = [reduction for reduction, _ in loaded.variants(requested)]
    if not reductions:
        raise ValueError(NO_METHOD)
    return loaded, reductions


def print_rows(args: argparse.Namespace, rows: Sequence[SpeedRow]) -> None:
    """Print the tables, the machine, and warnings."""
    title = f"{args.model}, {'; '.join(dict.fromkeys(row.reduction.schedule_words for row in rows))}"
    several = len(args.image_sizes or ()) > 1
    columns = ("size", *COLUMNS) if several else COLUMNS
    output.print_table(title, columns, [as_cells(row, several) for row in rows], ("method",))
    if several or args.memory:
        columns = (*PIXEL_COLUMNS, *(MEMORY_COLUMNS if args.memory else ()))
        output.print_table("per pixel", columns, [as_pixel_cells(row) for row in rows], ("method",))
    output.say(str(rows[0].result.environment))
    if args.report is not None:
        output.say(f"Report: {args.report}")
    for note in notes_on_noise(rows):
        output.say(note)


def measure(args: argparse.Namespace, loaded: Loaded, reduction: Reduction, batch_size: int) -> SpeedRow:
    """Measure one reduction at one batch size."""
    reduction = dataclasses.replace(reduction, unit_qk=inspect(loaded.model).reduction.unit_qk)
    height, width = loaded.image_size[1:]
    what = f"{method_text(reduction.method)}, {height} x {width}, batch {batch_size}"  # type: ignore[arg-type]
    with output.progress_bar(what) as progress:
        result = measure_speed(
            copy_unreduced(loaded.model),
            reduction,
            batch_size=batch_size,
            image_size=loaded.image_size,
            seconds=args.seconds,
            rounds=args.rounds,
            threads=args.threads,
            dtype=None if args.dtype is None else getattr(torch, args.dtype),
            device=args.device,
            memory=args.memory,
            progress=progress,
        )
    return SpeedRow(reduction, result)


def as_cells(row: SpeedRow, with_size: bool = False) -> list[str]:
    """Format one line of the table."""
    result = row.result
    return [
        *([row.size] if with_size else []),
        row.method,
        str(result.batch_size),
        f"{result.unreduced_per_second:.1f}",
        f"{result.reduced_per_second:.1f}",
        f"{result.free_slice_per_second:.1f}",
        f"{result.speed_up:.2f}x",
        f"{result.mac_ratio:.2f}x",
        f"{result.realized:.0%}",
        f"{result.efficiency:.0%}",
    ]


def as_pixel_cells(row: SpeedRow) -> list[str]:
    """Format one line of the second table."""
    result = row.result
    times = [f"{value:.0f}" for value in result.ns_per_pixel.values()]
    peaks = ["" if value is None else f"{value:.0f}" for value in (result.peak_mib or {}).values()]
    return [row.size, row.method, str(result.batch_size), *times, *peaks]


def as_json(row: SpeedRow) -> dict[str, object]:
    """One row of the JSON document, without the environment, which is the same for all rows."""
    result = dataclasses.asdict(row.result)
    del result["environment"]
    if result["peak_mib"] is None:
        del result["peak_mib"]
    return {"reduction": row.reduction.to_dict(), **result}


def notes_on_noise(rows: Sequence[SpeedRow]) -> list[str]:
    """A warning for each row whose rounds disagree, which is a sign of a busy machine."""
    notes = []
    for row in rows:
        result = row.result
        first, third = result.speed_up_quartiles
        if row.noisy:
            notes.append(
                f"Noisy: {row.method} at batch {result.batch_size} sped up {first:.2f}x to "
                f"{third:.2f}x in the middle half of its {result.rounds} rounds. Free the machine or raise --seconds."
            )
    return notes
