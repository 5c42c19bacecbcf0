"""``foveate cost``: count MACs, parameters and tokens."""

from __future__ import annotations

from foveate_cli.arguments import Commands, add_command, add_json, add_methods, add_model, add_schedule

DESCRIPTION = """\
Count multiply-accumulates (MACs) per image, parameters, and tokens after every block (class token included), for the
unreduced model and for every method."""

EPILOG = """\
examples:
  foveate cost deit_small_patch16_224
  foveate cost deit_small_patch16_224 --methods EViT TopK --keep-rate 0.7 --blocks 3,6,9
  foveate cost deit_small_patch16_224 --method EViT:fuse=false --keep 3:100,6:50 --exact-last-block
  foveate cost torchvision:vit_b_16 --method ToMe --budget 50% --json

keys of --json:
  model, image_size [channels, height, width], rows; the first row is the unreduced model. In each row:
  reduction {version, method, schedule, exact_last_block, unit_qk} (foveate.Reduction.from_dict reads it),
  macs (all of them), of_unreduced (share of the unreduced macs), reduction_macs (the method's own),
  params, tokens (after each block, class token included), keys (patch tokens attended to in each block, for a
  method that reduces keys and values only; else null)"""


def add_parser(commands: Commands) -> None:
    text = "count MACs, parameters and tokens"
    parser = add_command(commands, "cost", "foveate.cli.cost:run", text, DESCRIPTION, EPILOG)
    add_model(parser)
    add_methods(parser)
    add_schedule(parser)
    add_json(parser)
