"""The work of ``foveate search``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from foveate.cli import output
from foveate.cli.requests import load_from, read_methods, require_trained
from foveate.files import check_writable
from foveate.methods.base import Method
from foveate.tasks import find_task
from foveate.tuning import Found, search
from foveate.tuning.constraints import Constraints, parse_constraint
from foveate.tuning.searching import METHODS
from foveate_cli.search import DEFAULT_IMAGES

INTERRUPTED_CODE = 130


def run(args: argparse.Namespace) -> int:
    asked = constraints(args)
    methods: Sequence[Method | str] = read_methods(args) or METHODS
    check_writable(args.out.parent)
    task = "classification" if asked.quality != "cosine" else "embedding"
    find_task(task)().open_matching(args.data, args.split)  # before a model is loaded
    loaded = load_from(args)
    require_trained(loaded, args)
    half = DEFAULT_IMAGES if args.limit is None else max(1, args.limit // 2)
    with output.phases() as progress:
        found = search(
            loaded.model,
            args.data,
            agreement=asked.agreement,
            cosine=asked.cosine,
            latency_ms=asked.latency_ms,
            speedup=asked.speedup,
            macs=asked.macs,
            methods=methods,
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
    head = ["setting", "MACs", "quality", "+-", "speed-up"]
    rows = [
        [
            str(one.reduction.method),
            f"{one.macs:.3f}",
            f"{100 * one.judged.quality:.1f}",
            f"{100 * one.judged.standard_error:.1f}",
            "" if one.speedup is None else f"{one.speedup:.2f}",
        ]
        for one in found.finalists
    ]
    images = found.best.judged.images
    output.print_table(f"{args.model}: {found.constraints}, judged by {images} other images", head, rows, ("setting",))
    output.say(f"\n{found}" if found.complete else f"\nInterrupted. The best so far: {found}")
    output.say("\n" + "\n".join(f"    {line}" for line in found.reduction.code().splitlines()))
    output.say(f"\nWrote {args.out}")
