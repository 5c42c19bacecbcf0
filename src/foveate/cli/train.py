"""The work of ``foveate train``."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager

from accelerate import PartialState

from foveate.cli import output
from foveate.evaluation.progress import Progress
from foveate.training import Outcome, train
from foveate.training.stopping import StopSignal

SHORTCUTS = {
    "weights": "model.weights",
    "teacher": "objective.teacher",
    "epochs": "schedule.epochs",
    "batch_size": "data.batch_size",
    "lr": "optimizer.lr",
    "workers": "data.workers",
    "seed": "run.seed",
}
STOPPED = 128  # plus the signal's number, as in shells


def run(args: argparse.Namespace) -> int:
    stop = StopSignal()
    with shown(args.json) as progress:
        outcome = train(
            args.recipe,
            model=args.model,
            data=args.data,
            out=args.out,
            overrides=overrides(args),
            resume=args.resume,
            progress=progress,
            stop=stop,
        )
    processes = PartialState()
    if processes.is_main_process:
        report(outcome, args.json)
    processes.destroy_process_group()  # left open, gloo may abort a process whose peer exits first
    return 0 if outcome.finished else STOPPED + (stop.signal or 0)


@contextmanager
def shown(quiet: bool) -> Iterator[Progress | None]:
    """Show progress and log messages on stderr, unless ``quiet``."""
    if quiet:
        yield None
        return
    with output.phases() as progress, output.logged_to_stderr():
        yield progress


def overrides(args: argparse.Namespace) -> list[str]:
    """Changes of the recipe by the command line; --set takes precedence over other options."""
    given = [f"{path}={getattr(args, name)}" for name, path in SHORTCUTS.items() if getattr(args, name) is not None]
    if args.epochs is not None:
        given.append("schedule.steps=0")  # a recipe that counts steps would ignore epochs
    return [*given, *(["model.pretrained=true"] if args.pretrained else []), *args.changes]


def report(outcome: Outcome, as_json: bool) -> None:
    if as_json:
        output.print_json({**vars(outcome), "directory": str(outcome.directory)})
        return
    if not outcome.finished:
        output.say(f"Stopped. The checkpoint is in {outcome.directory}. Repeat the command with --resume to continue.")
        return
    best = "" if outcome.best is None else f" Best evaluation: {outcome.best:.4g}."
    output.say(f"Wrote {outcome.directory / 'model'}.{best}")
    broken = outcome.history[-1]["broken"] if outcome.history else 0
    if broken:
        output.say(f"Images that could not be read: {broken}; warnings list them.")
    for name, value in outcome.products.items():
        output.say(f"{name}: {value}")
