"""``foveate train``: run a recipe."""

from __future__ import annotations

import argparse
from pathlib import Path

from foveate.cli import output
from foveate.cli.arguments import add_json
from foveate.train.checkpoint import find_checkpoint
from foveate.train.config import TrainConfig, override
from foveate.train.loop import Outcome, Run
from foveate.train.progress import Reporter, Stopper
from foveate.train.recipe import read_recipe

DESCRIPTION = "Train, distil or fine-tune a model by a recipe. `foveate recipes` lists them."
EPILOG = """\
examples:
  foveate train finetune --data imagenette --model vit_small_patch16_224 --pretrained
  foveate train evit-finetune --data imagenette --model deit_small_patch16_224 --set reduction.keep_rate=0.5
  foveate train deit --data imagenet --model deit_small_patch16_224 --out runs/deit --resume
  accelerate launch --num_processes 4 -m foveate train deit --data imagenet --model deit_small_patch16_224

Any value of a recipe can be set: `foveate recipes NAME` shows them with their comments.
A run that was stopped or killed goes on exactly where it was: the same command with --resume. SIGTERM and Ctrl-C write
a checkpoint first.

written to --out: config.json (all values), log.jsonl (a line per epoch), checkpoint.safetensors, tensorboard/, best/
and model/ (for foveate.load and every command that takes a MODEL)

keys of --json: directory, finished, best, history, products"""
SHORTCUTS = {
    "data": "data.source",
    "model": "model.name",
    "weights": "model.weights",
    "teacher": "objective.teacher",
    "epochs": "schedule.epochs",
    "batch_size": "data.batch_size",
    "lr": "optimiser.lr",
    "workers": "data.workers",
    "seed": "run.seed",
}
STOPPED = 128  # and the signal's number, as shells count


def add_parser(commands: argparse._SubParsersAction) -> None:
    parser = commands.add_parser("train", help="run a training recipe", description=DESCRIPTION, epilog=EPILOG)
    parser.add_argument("recipe", metavar="RECIPE", help="a name of `foveate recipes`, or a .toml file of your own")
    parser.add_argument(
        "--data", metavar="SOURCE", help="a folder, a .csv file, hf:NAME, wds:PATTERN, torchvision:NAME"
    )
    parser.add_argument("--model", metavar="MODEL", help="a timm name, hf:NAME, torchvision:NAME or a saved directory")
    parser.add_argument("--pretrained", action="store_true", help="start from the library's weights")
    parser.add_argument("--weights", metavar="FILE", help="start from a file of weights")
    parser.add_argument("--teacher", metavar="MODEL", help="the teacher of a distillation")
    parser.add_argument("--epochs", metavar="N", help="how long to train")
    parser.add_argument("--batch-size", metavar="N", help="images per step, over all processes")
    parser.add_argument("--lr", metavar="RATE", help="learning rate, scaled to the batch where the recipe says so")
    parser.add_argument("--workers", metavar="N", help="processes that read images")
    parser.add_argument("--seed", metavar="N", help="of every random number of the run")
    parser.add_argument("--set", metavar="SECTION.NAME=VALUE", nargs="+", action="extend", default=[], dest="changes")
    parser.add_argument("--out", metavar="DIR", type=Path, help="where to write; default: runs/RECIPE")
    parser.add_argument("--resume", action="store_true", help="go on from --out's checkpoint, if there is one")
    add_json(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    config = resolved(args)
    directory = args.out or Path("runs") / Path(args.recipe).stem
    if not args.resume and find_checkpoint(directory) is not None:
        raise ValueError(f"{directory} holds a run already. --resume goes on with it; --out names another directory.")
    reporter = Reporter(quiet=args.json)
    job = Run(config, directory, reporter)
    reporter.curves = job.accelerator.is_main_process
    reporter.quiet = args.json or not reporter.curves
    reporter.say(f"Trains on {job.accelerator.device.type}, processes: {job.world}.")
    if args.resume and job.resume():
        reporter.say(f"Goes on after step {job.state.step}, in epoch {job.state.epoch}.")
    with Stopper().listening() as stopper:
        outcome = job.train(stopper)
    if job.accelerator.is_main_process:
        tell(outcome, args.json)
    return 0 if outcome.finished else STOPPED + (stopper.signal or 0)


def resolved(args: argparse.Namespace) -> TrainConfig:
    """The recipe with what the command line says instead."""
    named = [change.partition("=")[2] for change in args.changes if change.startswith("model.name=")]
    config = read_recipe(args.recipe, named[-1] if named else args.model or "")  # which may have values for the model
    given = [f"{path}={getattr(args, name)}" for name, path in SHORTCUTS.items() if getattr(args, name) is not None]
    return override(config, [*given, *(["model.pretrained=true"] if args.pretrained else []), *args.changes])


def tell(outcome: Outcome, as_json: bool) -> None:
    if as_json:
        output.print_json({**vars(outcome), "directory": str(outcome.directory)})
        return
    if not outcome.finished:
        output.say(f"Stopped. The checkpoint is in {outcome.directory}; the same command with --resume goes on.")
        return
    best = "" if outcome.best is None else f" Best evaluation: {outcome.best:.4g}."
    output.say(f"Wrote {outcome.directory / 'model'}.{best}")
    broken = outcome.history[-1]["broken"] if outcome.history else 0
    if broken:
        output.say(f"{broken} images could not be read; the warnings name them.")
    for name, value in outcome.products.items():
        output.say(f"{name}: {value}")
