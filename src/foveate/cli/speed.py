"""The work of ``foveate speed``."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from foveate.adapters import copy_unreduced, inspect
from foveate.cli import output
from foveate.cli.requests import Loaded, load_from, read_reductions
from foveate.evaluation import SpeedResult, measure_speed
from foveate.evaluation.timing import checked_device
from foveate.methods.options import method_text
from foveate.reductions import Reduction

NO_METHOD = "speed needs --method, to compare with the unreduced model. `foveate methods` lists methods."
RATES = ("un-\nreduced\nimg/s", "reduced\nimg/s", "free\nslice\nimg/s")
COLUMNS = ("method", "batch", *RATES, "speed-\nup", "MAC\nratio", "realized", "efficiency")
WIDE_SPREAD = 0.1  # between the quartiles of a speed-up, relative to its median


class SpeedRow(NamedTuple):
    reduction: Reduction
    result: SpeedResult

    @property
    def method(self) -> str:
        assert self.reduction.method is not None
        return method_text(self.reduction.method)


def run(args: argparse.Namespace) -> int:
    requested = read_reductions(args)  # before a model is loaded
    checked_device(args.device)
    if not requested and not Path(args.model).is_dir():  # a saved model may be reduced
        raise ValueError(NO_METHOD)
    loaded = load_from(args)
    reductions = [reduction for reduction, _ in loaded.variants(requested)]
    if not reductions:
        raise ValueError(NO_METHOD)
    rows = [measure(args, loaded, reduction, batch) for reduction in reductions for batch in args.batch_size]
    environment = rows[0].result.environment
    if args.json:
        document = {"model": args.model, "environment": dataclasses.asdict(environment)}
        output.print_json({**document, "rows": [as_json(row) for row in rows]})
        return 0
    title = f"{args.model}, {'; '.join(dict.fromkeys(reduction.schedule_words for reduction in reductions))}"
    output.print_table(title, COLUMNS, [as_cells(row) for row in rows], ("method",))
    output.say(str(environment))
    for note in notes_on_noise(rows):
        output.say(note)
    return 0


def measure(args: argparse.Namespace, loaded: Loaded, reduction: Reduction, batch_size: int) -> SpeedRow:
    """Measure one reduction at one batch size."""
    reduction = dataclasses.replace(reduction, unit_qk=inspect(loaded.model).reduction.unit_qk)
    with output.progress_bar(f"{method_text(reduction.method)}, batch {batch_size}") as progress:  # type: ignore[arg-type]
        result = measure_speed(
            copy_unreduced(loaded.model),
            reduction,
            batch_size=batch_size,
            image_size=loaded.image_size,
            seconds=args.seconds,
            threads=args.threads,
            dtype=None if args.dtype is None else getattr(torch, args.dtype),
            device=args.device,
            progress=progress,
        )
    return SpeedRow(reduction, result)


def as_cells(row: SpeedRow) -> list[str]:
    """Format one line of the table."""
    result = row.result
    return [
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


def as_json(row: SpeedRow) -> dict[str, object]:
    """One row of the JSON document, without the environment, which is the same for all rows."""
    result = dataclasses.asdict(row.result)
    del result["environment"]
    return {"reduction": row.reduction.to_dict(), **result}


def notes_on_noise(rows: Sequence[SpeedRow]) -> list[str]:
    """A warning for each row whose rounds disagree, which is a sign of a busy machine."""
    notes = []
    for row in rows:
        result = row.result
        first, third = result.speed_up_quartiles
        if third - first > WIDE_SPREAD * result.speed_up:
            notes.append(
                f"Noisy: {row.method} at batch {result.batch_size} sped up {first:.2f}x to "
                f"{third:.2f}x in the middle half of its {result.rounds} rounds. Free the machine or raise --seconds."
            )
    return notes
