"""``foveate eval``: accuracy of reduced models on images."""

from __future__ import annotations

from foveate_cli import arguments

DESCRIPTION = "Evaluate a model on images, unreduced and reduced: accuracy, agreement, MACs and speed."
EPILOG = """\
examples:
  foveate eval deit_small_patch16_224 --pretrained --data imagenet --methods ToMe Ward --budget 0.65
  foveate eval runs/finetune/best --data imagenette
  foveate eval vit_tiny_patch16_224 --weights vit.safetensors --data labels.csv --split all --method ToMe --remove 8
  foveate eval runs/camvid/best --data camvid --option inference=slide

Agreement is the share of images, or of pixels, on which a model decides like the unreduced model; it needs no labels.
Images per second include only the model's own time. Models take turns batch by batch; `foveate speed` measures more
carefully.

keys of --json: model, data, split, images, broken, rows [{model, figures of the task, macs, images_per_second}];
  classification: top1, top5, agreement; segmentation: miou, pixel_accuracy, boundary_accuracy, agreement,
  boundary_agreement"""


def add_parser(commands: arguments.Commands) -> None:
    text = "measure accuracy on images"
    parser = arguments.add_command(commands, "eval", "foveate.cli.evaluate:run", text, DESCRIPTION, EPILOG)
    arguments.add_model(parser)
    arguments.add_methods(parser)
    arguments.add_schedule(parser)
    arguments.add_data(parser, limit="all", required=True, split="val")
    arguments.add_task(parser)
    arguments.add_batch_size(parser)
    arguments.add_device(parser)
    arguments.add_untrained(parser)
    arguments.add_json(parser)
