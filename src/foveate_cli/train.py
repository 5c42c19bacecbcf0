"""``foveate train``: run a training recipe."""

from __future__ import annotations

from pathlib import Path

from foveate_cli import names
from foveate_cli.arguments import SOURCES, Commands, add_command, add_json, completed_by

DESCRIPTION = "Train, distill or fine-tune a model with a recipe. `foveate recipes` lists recipes."
EPILOG = """\
examples:
  foveate train finetune --data imagenette --model vit_small_patch16_224 --pretrained
  foveate train evit-finetune --data imagenette --model deit_small_patch16_224 --set reduction.keep_rate=0.5
  foveate train deit --data imagenet --model deit_small_patch16_224 --out runs/deit --resume
  accelerate launch --num_processes 4 -m foveate train deit --data imagenet --model deit_small_patch16_224

Any value of a recipe can be set: `foveate recipes NAME` shows them with their comments.
To continue a stopped or killed run exactly where it was, repeat the command with --resume. SIGTERM and Ctrl-C write a
checkpoint first.

Writes config.json (all values), log.jsonl (one line per epoch), checkpoint.safetensors, tensorboard/, best/ and model/
to --out. The last two can be used with foveate.load and with every command that takes a MODEL.

keys of --json: directory, finished, best, history, products"""

OF_THE_RECIPE = (
    ("--epochs", "N", "number of epochs"),
    ("--batch-size", "N", "images per step, over all processes"),
    ("--lr", "RATE", "learning rate, scaled with the batch size if the recipe does so"),
    ("--workers", "N", "number of processes that read images"),
    ("--seed", "N", "seed of all random numbers"),
)


def add_parser(commands: Commands) -> None:
    parser = add_command(commands, "train", "foveate.cli.train:run", "run a training recipe", DESCRIPTION, EPILOG)
    recipe = parser.add_argument(
        "recipe", metavar="RECIPE", help="a recipe from `foveate recipes`, or your own .toml file"
    )
    data = parser.add_argument("--data", metavar="SOURCE", help=SOURCES)
    model = parser.add_argument(
        "--model", metavar="MODEL", help="a timm name, hf:NAME, torchvision:NAME or a saved directory"
    )
    parser.add_argument("--pretrained", action="store_true", help="start from the library's pretrained weights")
    parser.add_argument("--weights", metavar="FILE", help="start from weights in a file")
    teacher = parser.add_argument("--teacher", metavar="MODEL", help="teacher for distillation")
    for option, metavar, text in OF_THE_RECIPE:
        parser.add_argument(option, metavar=metavar, help=f"{text}; default: the recipe's")
    changes = parser.add_argument(
        "--set",
        metavar="SECTION.NAME=VALUE",
        nargs="+",
        action="extend",
        default=[],
        dest="changes",
        help="change values of the recipe",
    )
    completed_by(recipe, names.recipes_and_files)
    completed_by(data, names.data)
    for named in (model, teacher):
        completed_by(named, names.models)
    completed_by(changes, names.settings)
    parser.add_argument("--out", metavar="DIR", type=Path, help="folder to write to; default: runs/RECIPE")
    parser.add_argument("--resume", action="store_true", help="continue from the checkpoint in --out, if there is one")
    add_json(parser)
