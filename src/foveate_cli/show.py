"""``foveate show``: pictures of what a model keeps."""

from __future__ import annotations

from pathlib import Path

from foveate_cli.arguments import Commands, add_command, add_json, add_methods, add_model, add_schedule, whole_number

DESCRIPTION = "Draw a picture of what a model keeps, to a file. Without a picture's name, list what there is."
EPILOG = """\
examples:
  foveate show                                             list what there is
  foveate show tokens deit_small_patch16_224 photo.jpg --pretrained --method EViT --keep-rate 0.7
  foveate show features hvt_small_1 photo.jpg              feature maps of four blocks, to features.png
  foveate show clusters clustr_small photo.jpg --stage 3 --weights clustr.safetensors
  foveate show features deit_small_patch16_224 photo.jpg --pretrained --method ToMe --budget 0.65 --at 0 5 11

keys of --json:
  a list of {name, description} without a picture's name; else picture, file"""


def add_parser(commands: Commands) -> None:
    parser = add_command(commands, "show", "foveate.cli.show:run", "pictures of kept tokens", DESCRIPTION, EPILOG)
    parser.add_argument("picture", metavar="PICTURE", nargs="?", help="the picture to draw")
    add_model(parser, optional=True)
    parser.add_argument("images", metavar="IMAGE", type=Path, nargs="*", help="photographs; put them before options")
    parser.add_argument(
        "--at", metavar="N", type=int, nargs="+", help="blocks to show, from 0; -1 is the last (default: a few)"
    )
    parser.add_argument("--channels", metavar="N", type=whole_number, help="features: channels to show; default: 6")
    parser.add_argument("--stage", metavar="N", type=int, help="clusters: stage to show, from 1; default: 3")
    parser.add_argument("--out", metavar="FILE", type=Path, help="file to write; default: PICTURE.png")
    add_methods(parser)
    add_schedule(parser)
    add_json(parser)
