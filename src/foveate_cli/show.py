"""``foveate show``: draw what a model keeps."""

from __future__ import annotations

from pathlib import Path

from foveate_cli import names
from foveate_cli.arguments import (
    Commands,
    add_command,
    add_json,
    add_methods,
    add_model,
    add_schedule,
    add_task,
    completed_by,
    whole_number,
)

DESCRIPTION = "Draw a picture of what a model keeps and write it to a file. Without PICTURE, list all pictures."
EPILOG = """\
examples:
  foveate show                                             list all pictures
  foveate show tokens deit_small_patch16_224 photo.jpg --pretrained --method EViT --keep-rate 0.7
  foveate show features hvt_small_1 photo.jpg              feature maps of four blocks, to features.png
  foveate show clusters clustr_small photo.jpg --stage 3 --weights clustr.safetensors
  foveate show features deit_small_patch16_224 photo.jpg --pretrained --method ToMe --budget 0.65 --at 0 5 11

  foveate show predictions runs/camvid/best photo.jpg      classes, masks, boxes or keypoints over the photograph

keys of --json:
  picture, file; without PICTURE a list of {name, description}"""


def add_parser(commands: Commands) -> None:
    parser = add_command(commands, "show", "foveate.cli.show:run", "draw pictures of kept tokens", DESCRIPTION, EPILOG)
    picture = parser.add_argument("picture", metavar="PICTURE", nargs="?", help="picture to draw")
    completed_by(picture, names.pictures)
    add_model(parser, optional=True)
    parser.add_argument("images", metavar="IMAGE", type=Path, nargs="*", help="images to draw")
    parser.add_argument(
        "--at", metavar="N", type=int, nargs="+", help="blocks to show, counted from 0; -1 is the last; default: a few"
    )
    parser.add_argument(
        "--channels", metavar="N", type=whole_number, help="number of channels (picture features); default: 6"
    )
    parser.add_argument(
        "--stage", metavar="N", type=int, help="stage to show, counted from 1 (picture clusters); default: 3"
    )
    parser.add_argument("--out", metavar="FILE", type=Path, help="file to write; default: PICTURE.png")
    add_task(parser)
    parser.add_argument("--classes", metavar="FILE", type=Path, help="class names, in order (picture predictions)")
    add_methods(parser)
    add_schedule(parser)
    add_json(parser)
