"""``foveate speed``: images per second, measured."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import torch

from foveate.cli import output
from foveate.cli.arguments import (
    Request,
    add_json,
    add_methods,
    add_model,
    add_schedule,
    positive_float,
    positive_int,
    read_requests,
)
from foveate.cli.models import Loaded, load_from
from foveate.methods.options import method_text
from foveate.report.speed import SpeedResult, measure_speed

DESCRIPTION = """\
Measure images per second of the unreduced model, of the reduced one, and of the free slice: the same token counts
with tokens cut off unseen, the fastest these counts can be. The three take turns, and ratios are medians of ratios
within a round."""

EPILOG = """\
examples:
  foveate speed deit_small_patch16_224 --method tome --remove 13 --batch-size 1 16 --threads 2
  foveate speed deit_small_patch16_224 --method evit --method topk --keep-rate 0.7 --seconds 10 --json

columns:
  speed-up    unreduced time / reduced time
  MAC ratio   unreduced MACs / reduced MACs
  realised    speed-up / MAC ratio
  efficiency  reduced img/s / free-slice img/s; 100 % if choosing tokens cost no time

keys of --json:
  model, environment {cpu, cores, threads, device, dtype, torch, timm, foveate}, rows. In each row:
  method {name, options}, schedule {kind, ...}, exact_last_block, unit_qk, batch_size,
  image_size [channels, height, width], rounds, unreduced_per_second, reduced_per_second, free_slice_per_second,
  speed_up, speed_up_quartiles, mac_ratio, realised, efficiency, efficiency_quartiles"""

RATES = ("un-\nreduced\nimg/s", "reduced\nimg/s", "free\nslice\nimg/s")
COLUMNS = ("method", "batch", *RATES, "speed-\nup", "MAC\nratio", "realised", "efficiency")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
WIDE_SPREAD = 0.1  # of the median, between the quartiles of a speed-up


class SpeedRow(NamedTuple):
    request: Request
    result: SpeedResult


def add_parser(commands: argparse._SubParsersAction) -> None:
    parser = commands.add_parser("speed", help="measured speed", description=DESCRIPTION, epilog=EPILOG)
    add_model(parser)
    add_methods(parser)
    add_schedule(parser)
    group = parser.add_argument_group("measurement")
    group.add_argument("--batch-size", metavar="N", type=positive_int, nargs="+", default=[1], help="default: 1")
    group.add_argument("--threads", metavar="N", type=positive_int, help="torch threads; default: torch's own choice")
    group.add_argument(
        "--seconds", metavar="S", type=positive_float, default=20.0, help="for each method and batch size; default: 20"
    )
    group.add_argument("--dtype", choices=tuple(DTYPES), help="default: the model's own")
    group.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1, ...; default: cpu")
    add_json(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    read_requests(args)  # so that a wrong request fails before a model is loaded
    loaded = load_from(args)
    requests = read_requests(args, loaded.own)
    if not requests:
        raise ValueError(
            "speed needs --method: what to compare with the unreduced model. `foveate methods` lists them."
        )
    rows = [measure(args, loaded, request, batch) for request in requests for batch in args.batch_size]
    environment = rows[0].result.environment
    if args.json:
        document = {"model": args.model, "environment": dataclasses.asdict(environment)}
        output.print_json({**document, "rows": [as_json(row) for row in rows]})
        return 0
    title = f"{args.model}, {'; '.join(dict.fromkeys(request.schedule_in_words for request in requests))}"
    output.print_table(title, COLUMNS, [as_cells(row) for row in rows], ("method",))
    output.say(str(environment))
    for note in notes_on_noise(rows):
        output.say(note)
    return 0


def measure(args: argparse.Namespace, loaded: Loaded, request: Request, batch_size: int) -> SpeedRow:
    """Measure one request at one batch size."""
    with output.progress_bar(f"{method_text(request.method)}, batch {batch_size}") as progress:
        result = measure_speed(
            loaded.model,
            request.method,
            request.schedule,
            batch_size=batch_size,
            image_size=loaded.image_size,
            seconds=args.seconds,
            threads=args.threads,
            exact_last_block=request.exact_last_block,
            unit_qk=request.unit_qk,
            dtype=None if args.dtype is None else DTYPES[args.dtype],
            device=args.device,
            progress=progress,
        )
    return SpeedRow(request, result)


def as_cells(row: SpeedRow) -> list[str]:
    """One line of the table."""
    result = row.result
    return [
        method_text(row.request.method),
        str(result.batch_size),
        f"{result.unreduced_per_second:.1f}",
        f"{result.reduced_per_second:.1f}",
        f"{result.free_slice_per_second:.1f}",
        f"{result.speed_up:.2f}x",
        f"{result.mac_ratio:.2f}x",
        f"{result.realised:.0%}",
        f"{result.efficiency:.0%}",
    ]


def as_json(row: SpeedRow) -> dict[str, object]:
    """One row of the document; the environment is the same for all and stands beside them."""
    result = dataclasses.asdict(row.result)
    del result["environment"]
    return {**row.request.as_json(), **result}


def notes_on_noise(rows: Sequence[SpeedRow]) -> list[str]:
    """A warning for each row whose rounds disagree, so that a busy machine is not taken for a result."""
    notes = []
    for request, result in rows:
        first, third = result.speed_up_quartiles
        if third - first > WIDE_SPREAD * result.speed_up:
            notes.append(
                f"Noisy: {method_text(request.method)} at batch {result.batch_size} sped up {first:.2f}x to "
                f"{third:.2f}x in the middle half of its {result.rounds} rounds. Free the machine, or raise --seconds."
            )
    return notes
