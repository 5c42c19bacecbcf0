"""``foveate recover``: a short tuning without labels."""

from __future__ import annotations

from pathlib import Path

from foveate_cli import arguments

DESCRIPTION = """\
Tune a reduced model for a few minutes so that it follows the unreduced one, on images without labels. Images that are
held apart judge it, and it never ends worse on them than it began."""

EPILOG = """\
examples:
  foveate recover deit_small_patch16_224 --pretrained --method Ward --budget 0.35 --data photos --minutes 15 --out tuned
  foveate recover runs/evit/best --data photos --out tuned
  foveate recover vit_tiny_patch16_224 --weights vit.safetensors --method ToMe --schedule found.json --data photos

A model directory that is already reduced needs no --method. Writes the tuned model to --out (foveate.load reads it).
Ctrl-C keeps the best so far and exits with 130.

keys of --json: quality_before, quality_after, standard_error_before, standard_error_after, divergence_before,
  divergence_after, steps, steps_done, seconds, images, complete"""

DEFAULT_IMAGES = 1000


def add_parser(commands: arguments.Commands) -> None:
    text = "tune a reduced model for some minutes, without labels"
    parser = arguments.add_command(commands, "recover", "foveate.cli.recover:run", text, DESCRIPTION, EPILOG)
    arguments.add_model(parser)
    arguments.add_methods(parser, "how to reduce tokens")
    arguments.add_schedule(parser)
    arguments.add_data(parser, limit=f"{DEFAULT_IMAGES}, a fifth held apart", required=True, split="val, or all")
    group = parser.add_argument_group("tuning")
    arguments.add_default(group, "--minutes", 10.0, "time to spend", "M", arguments.positive_float)
    group.add_argument("--steps", metavar="N", type=arguments.positive_int, help="largest number of steps")
    arguments.add_default(group, "--batch-size", 32, "images in a step", "N", arguments.positive_int)
    arguments.add_default(group, "--lr", 2e-5, "highest learning rate", "RATE", arguments.positive_float)
    text = "bf16 is faster where the processor has it, and the default there"
    group.add_argument("--precision", choices=("fp32", "bf16"), help=text)
    arguments.add_default(parser, "--out", Path("foveate-recovered"), "directory of the model", "DIR", Path)
    arguments.add_json(parser)
