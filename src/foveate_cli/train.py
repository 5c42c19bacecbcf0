"""``foveate train``: run a recipe."""

from __future__ import annotations

from pathlib import Path

from foveate_cli.arguments import Commands, add_command, add_json

DESCRIPTION = "Train, distill or fine-tune a model by a recipe. `foveate recipes` lists them."
EPILOG = """\
examples:
  foveate train finetune --data imagenette --model vit_small_patch16_224 --pretrained
  foveate train evit-finetune --data imagenette --model deit_small_patch16_224 --set reduction.keep_rate=0.5
  foveate train deit --data imagenet --model deit_small_patch16_224 --out runs/deit --resume
  accelerate launch --num_processes 4 -m foveate train deit --data imagenet --model deit_small_patch16_224

Any value of a recipe can be set: `foveate recipes NAME` shows them with their comments.
A run that was stopped or killed continues exactly where it was: the same command with --resume. SIGTERM and Ctrl-C
write a checkpoint first.

written to --out: config.json (all values), log.jsonl (a line per epoch), checkpoint.safetensors, tensorboard/, best/
and model/ (for foveate.load and every command that takes a MODEL)

keys of --json: directory, finished, best, history, products"""


def add_parser(commands: Commands) -> None:
    parser = add_command(commands, "train", "foveate.cli.train:run", "run a training recipe", DESCRIPTION, EPILOG)
    parser.add_argument("recipe", metavar="RECIPE", help="a name of `foveate recipes`, or a .toml file of your own")
    parser.add_argument(
        "--data", metavar="SOURCE", help="a folder, a .csv file, hf:NAME, wds:PATTERN, torchvision:NAME"
    )
    parser.add_argument("--model", metavar="MODEL", help="a timm name, hf:NAME, torchvision:NAME or a saved directory")
    parser.add_argument("--pretrained", action="store_true", help="start from the library's weights")
    parser.add_argument("--weights", metavar="FILE", help="start from a file of weights")
    parser.add_argument("--teacher", metavar="MODEL", help="the teacher of a distillation")
    parser.add_argument("--epochs", metavar="N", help="how long to train")
    parser.add_argument("--batch-size", metavar="N", help="images per step, over all processes; default: the recipe's")
    parser.add_argument("--lr", metavar="RATE", help="learning rate, scaled to the batch if the recipe does")
    parser.add_argument("--workers", metavar="N", help="processes that read images; default: the recipe's")
    parser.add_argument("--seed", metavar="N", help="of every random number of the run; default: the recipe's")
    parser.add_argument(
        "--set",
        metavar="SECTION.NAME=VALUE",
        nargs="+",
        action="extend",
        default=[],
        dest="changes",
        help="other values than the recipe's",
    )
    parser.add_argument("--out", metavar="DIR", type=Path, help="where to write; default: runs/RECIPE")
    parser.add_argument("--resume", action="store_true", help="continue from --out's checkpoint, if there is one")
    add_json(parser)
