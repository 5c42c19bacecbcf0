"""``foveate predict``: the most likely classes of many images, as Parquet."""

from __future__ import annotations

import argparse
from pathlib import Path

from foveate_cli import arguments, names

DESCRIPTION = """\
Predict the most likely classes of every image, and write them to a folder of Parquet files with a manifest. Labels are
not read. Use --resume to go on after a stop at any moment: every image is in the output exactly once."""

EPILOG = """\
examples:
  foveate predict deit_small_patch16_224 --pretrained --data photos --out classes
  foveate predict deit_small_patch16_224 --pretrained --method ToMe --budget 0.5 --data photos --out classes --resume
  foveate predict fast-int8 --data 'parquet:images-*.parquet' --key-column id --out classes --engine ray

columns: key, classes, probabilities, names (with --classes), error: why an image could not be read

The model may also be a folder written by `foveate export` (onnx or openvino).
Needs: pip install 'foveate[scale]'

keys of --json: folder, images, broken, files, written (by this run), seconds, images_per_second, processes"""

TOP_K = 5


def add_parser(commands: arguments.Commands) -> None:
    text = "write the classes of many images to Parquet"
    parser = arguments.add_command(commands, "predict", "foveate.cli.predict:run", text, DESCRIPTION, EPILOG)
    parser.set_defaults(gives="classes", dtype="float32")
    add_common(parser)
    parser.add_argument("--classes", metavar="FILE", type=Path, help="file with the model's class names, in order")
    arguments.add_default(parser, "--top-k", TOP_K, "number of classes for each image", type=arguments.positive_int)


def add_common(parser: arguments.Parser) -> None:
    """Add the options that predict and embed share."""
    arguments.add_model(parser)
    arguments.add_methods(parser, "how to reduce tokens")
    arguments.add_schedule(parser)
    _add_images(parser.add_argument_group("images"))
    group = parser.add_argument_group("run")
    group.add_argument("--out", metavar="DIR", type=Path, required=True, help="a new or an empty folder")
    group.add_argument("--resume", action="store_true", help="go on with the run in --out, if there is one")
    group.add_argument(
        "--engine",
        choices=("local", "ray"),
        default="local",
        help="processes on this machine, or actors of Ray Data; default: local",
    )
    group.add_argument("--address", metavar="HOST:PORT", help="a Ray cluster, or auto; default: start a local one")
    count = "processes or actors; default: one for each core, or for each accelerator"
    group.add_argument("--processes", metavar="N", type=arguments.positive_int, help=count)
    size = "images that run at once; default: by the memory that is free, 32 at most on CPUs"
    group.add_argument("--batch-size", metavar="N", type=arguments.positive_int, help=size)
    size = "images in a file, which a killed process loses at most; default: by the number of images, 1000 or more"
    group.add_argument("--part-images", metavar="N", type=arguments.positive_int, help=size)
    arguments.add_device(group)
    arguments.add_untrained(parser)
    arguments.add_json(parser)


def _add_images(group: argparse._ArgumentGroup) -> None:
    data = group.add_argument("--data", metavar="SOURCE", required=True, help=arguments.SOURCES)
    arguments.completed_by(data, names.data)
    group.add_argument("--split", metavar="NAME", default="all", help="split of the data; default: all images")
    group.add_argument("--root", metavar="DIR", help="folder of torchvision: data")
    group.add_argument("--image-column", metavar="NAME", help="Parquet column with encoded images or paths")
    group.add_argument("--key-column", metavar="NAME", help="Parquet column with keys; default: file and row")
    limit = "number of images, drawn with --seed; default: all"
    group.add_argument("--limit", metavar="N", type=arguments.positive_int, help=limit)
    arguments.add_default(group, "--seed", arguments.SEED, "seed for drawing images", type=int)
