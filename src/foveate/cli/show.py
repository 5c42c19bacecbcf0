"""``foveate show``: pictures of what a model keeps."""

from __future__ import annotations

import argparse
from pathlib import Path

from foveate.cli import output
from foveate.cli.arguments import add_json, add_methods, add_model, add_schedule, first_line, read_requests
from foveate.cli.models import load_from
from foveate.report.pictures import all_pictures

DESCRIPTION = "Draw a picture of what a model keeps, to a file. Without a picture's name, list what there is."
EPILOG = """\
examples:
  foveate show             list what there is

keys of --json:
  a list of {name, description} without a picture's name; else picture, file"""


def add_parser(commands: argparse._SubParsersAction) -> None:
    parser = commands.add_parser("show", help="pictures of kept tokens", description=DESCRIPTION, epilog=EPILOG)
    parser.add_argument("picture", metavar="PICTURE", nargs="?", help="the picture to draw")
    add_model(parser, optional=True)
    parser.add_argument("--image", metavar="FILE", type=Path, nargs="+", default=[], help="images to show")
    parser.add_argument("--out", metavar="FILE", type=Path, help="file to write; default: PICTURE.png")
    add_methods(parser)
    add_schedule(parser)
    add_json(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    known = all_pictures()
    if args.picture is None:
        output.print_listing("pictures", {name: first_line(draw) for name, draw in known.items()}, args.json)
        return 0
    if args.picture not in known:
        raise ValueError(f"There is no picture {args.picture!r}. Known: {', '.join(known) or 'none yet'}.")
    if args.model is None:
        raise ValueError(f"{args.picture} needs a model: foveate show {args.picture} MODEL.")
    if len(args.methods) > 1:
        raise ValueError("A picture shows one --method at a time.")
    loaded = load_from(args)
    for request in read_requests(args, loaded.own)[-1:]:  # what is asked for outranks what the model brought along
        request.apply_(loaded.model)
    target = args.out or Path(f"{args.picture}.png")
    known[args.picture](loaded.model, args.image).save(target)
    if args.json:
        output.print_json({"picture": args.picture, "file": str(target)})
    else:
        output.say(f"Wrote {target}.")
    return 0
