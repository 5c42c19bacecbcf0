"""``foveate eval``: accuracy of reduced models on images."""

from __future__ import annotations

from foveate_cli.arguments import (
    Commands,
    add_batch_size,
    add_command,
    add_data,
    add_device,
    add_json,
    add_methods,
    add_model,
    add_schedule,
    add_untrained,
)

DESCRIPTION = "Evaluate a model on images, unreduced and reduced: accuracy, agreement, MACs and speed."
EPILOG = """\
examples:
  foveate eval deit_small_patch16_224 --pretrained --data imagenet --methods ToMe Ward --budget 0.65
  foveate eval runs/finetune/best --data imagenette
  foveate eval vit_tiny_patch16_224 --weights vit.safetensors --data labels.csv --split all --method ToMe --remove 8

Agreement is the share of images on which a model decides like the unreduced model; it needs no labels. Images per
second include only the model's own time. Models take turns batch by batch; `foveate speed` measures more carefully.

keys of --json: model, data, split, images, broken, rows [{model, top1, top5, agreement, macs, images_per_second}]"""


def add_parser(commands: Commands) -> None:
    parser = add_command(
        commands, "eval", "foveate.cli.evaluate:run", "measure accuracy on images", DESCRIPTION, EPILOG
    )
    add_model(parser)
    add_methods(parser)
    add_schedule(parser)
    add_data(parser, limit="all", required=True, split="val")
    parser.add_argument(
        "--task", metavar="NAME", default="classification", help="what the model predicts; default: classification"
    )
    add_batch_size(parser)
    add_device(parser)
    add_untrained(parser)
    add_json(parser)
