"""The work of ``foveate search``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from foveate.cli import output
from foveate.cli.evaluate import task_by_name
from foveate.cli.requests import load_from, read_methods, require_trained
from foveate.files import check_writable
from foveate.methods.base import Method
from foveate.methods.options import method_text
from foveate.schedules import Keep
from foveate.tasks import find_task
from foveate.tuning import Found, search
from foveate.tuning.constraints import Constraints, check_goal, parse_constraint
from foveate.tuning.found import Finalist
from foveate.tuning.searching import METHODS
from foveate_cli.search import DEFAULT_IMAGES

INTERRUPTED_CODE = 130


def run(args: argparse.Namespace) -> int:
    asked = constraints(args)
    check_goal(args.optimize, asked)
    methods: Sequence[Method | str] = read_methods(args) or METHODS
    check_writable(args.out.parent)
    task = task_by_name(args.model) or ("embedding" if asked.quality == "cosine" else "classification")
    find_task(task)().open_matching(args.data, args.split)  # before a model is loaded
    loaded = load_from(args)
    require_trained(loaded, args)
    half = DEFAULT_IMAGES if args.limit is None else max(1, args.limit // 2)
    with output.phases() as progress:
        found = search(
            loaded.model,
            args.data,
            **asked.as_dict(),
            optimize=args.optimize,
            methods=methods,
            mixtures=args.mixtures,
            calibration=half,
            validation=half,
            trials=args.trials,
            batch_size=args.batch_size,
            split=args.split,
            workers=args.workers,
            seed=args.seed,
            seconds=args.seconds,
            measurements=args.measurements,
            progress=progress,
        )
    found.save(args.out)
    if args.json:
        output.print_json(found.to_dict())
    else:
        show(found, args)
    return 0 if found.complete else INTERRUPTED_CODE


def constraints(args: argparse.Namespace) -> Constraints:
    """All constraints of ``--for``.

    Raises:
        ValueError: if one cannot be read, is given twice, or they contradict each other.
    """
    given: dict[str, float] = {}
    for text in args.constraints:
        new = parse_constraint(text)
        if new.keys() & given.keys():
            raise ValueError(f"{next(iter(new))} is bounded twice.")
        given |= new
    return Constraints(**given)


def show(found: Found, args: argparse.Namespace) -> None:
    """Print the finalists, the choice and the lines that apply it."""
    weighed = found.best.memory_mib is not None
    head = ["method", "tokens after each block", "MACs", "quality %", "+-", "speed-up"]
    rows = [_row(one, weighed) for one in found.finalists]
    title = f"{args.model}: {found.constraints}, judged by {found.best.judged.images} other images"
    output.print_table(title, [*head, "peak MiB"] if weighed else head, rows, tuple(head[:2]))
    output.say(f"\n{found}" if found.complete else f"\nInterrupted. The best so far: {found}")
    output.say("\n" + "\n".join(f"    {line}" for line in found.reduction.code().splitlines()))
    output.say(f"\nWrote {args.out}")


def _row(one: Finalist, weighed: bool) -> list[str]:
    schedule = one.reduction.schedule
    assert one.reduction.method is not None
    assert isinstance(schedule, Keep)
    counts = " ".join(str(count) for _, count in schedule.pairs)
    cells = [method_text(one.reduction.method), counts, f"{one.macs:.3f}"]
    cells += [f"{100 * value:.1f}" for value in (one.judged.quality, one.judged.standard_error)]
    cells.append("" if one.speedup is None else f"{one.speedup:.2f}")
    return [*cells, f"{one.memory_mib:.1f}"] if weighed else cells
