"""``foveate show``: pictures of what a model keeps."""

from __future__ import annotations

import argparse
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path

from PIL import Image
from torch import nn

from foveate.adapters import reduction_of
from foveate.cli import output
from foveate.cli.arguments import Request, add_json, add_methods, add_model, add_schedule, first_line, read_requests
from foveate.cli.models import brings_weights, load_from
from foveate.report.pictures import Picture, PictureRequest, all_pictures

DESCRIPTION = "Draw a picture of what a model keeps, to a file. Without a picture's name, list what there is."
EPILOG = """\
examples:
  foveate show                                             list what there is
  foveate show tokens deit_small_patch16_224 photo.jpg --pretrained --method evit --keep-rate 0.7
  foveate show features hvt_small_1 photo.jpg              feature maps of four blocks, to features.png
  foveate show clusters clustr_small photo.jpg --stage 3 --weights clustr.safetensors
  foveate show features deit_small_patch16_224 photo.jpg --pretrained --method tome --budget 0.65 --at 0 5 11

keys of --json:
  a list of {name, description} without a picture's name; else picture, file"""


def add_parser(commands: argparse._SubParsersAction) -> None:
    parser = commands.add_parser("show", help="pictures of kept tokens", description=DESCRIPTION, epilog=EPILOG)
    parser.add_argument("picture", metavar="PICTURE", nargs="?", help="the picture to draw")
    add_model(parser, optional=True)
    parser.add_argument("images", metavar="IMAGE", type=Path, nargs="*", help="photographs; they come before options")
    parser.add_argument(
        "--at", metavar="N", type=int, nargs="+", help="blocks to show, from 0; -1 is the last (default: a few)"
    )
    parser.add_argument("--channels", metavar="N", type=int, default=6, help="channels to show of features; default: 6")
    parser.add_argument("--stage", metavar="N", type=int, default=3, help="stage to show clusters of; default: 3")
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
    target = args.out or Path(f"{args.picture}.png")
    check(args, known, target)
    loaded = load_from(args)
    requests = read_requests(args, loaded.own)[-1:]  # what is asked for outranks what the model brought along
    for request in requests:
        request.apply_(loaded.model)
    name = f"{Path(args.model).name}{untrained(args, loaded.model, requests)}"
    wanted = PictureRequest(args.images, name, args.at, args.channels, args.stage)
    write(known[args.picture](loaded.model, wanted), target)
    if args.json:
        output.print_json({"picture": args.picture, "file": str(target)})
    else:
        output.say(f"Wrote {target}.")
    return 0


def untrained(args: argparse.Namespace, model: nn.Module, requests: Sequence[Request]) -> str:
    """What to say of a picture that shows random weights: the whole model's, or those of a method that learns."""
    if not brings_weights(args):
        return " (untrained)"
    reduction = reduction_of(model)
    known = {name.partition(".")[0] for request in requests for name in request.learned}
    if reduction is not None and len(reduction.learned) and "learned" not in known:
        return f" ({type(reduction.method).__name__} untrained)"
    return ""


def check(args: argparse.Namespace, known: Mapping[str, Picture], target: Path) -> None:
    """Refuse what cannot be drawn or written before the model is loaded."""
    if args.picture not in known:
        raise ValueError(f"There is no picture {args.picture!r}. Known: {', '.join(known) or 'none yet'}.")
    if args.model is None:
        raise ValueError(f"{args.picture} needs a model: foveate show {args.picture} MODEL IMAGE.")
    if not args.images:
        raise ValueError(f"{args.picture} needs a photograph: foveate show {args.picture} {args.model} IMAGE.")
    if len(args.methods) > 1:
        raise ValueError("A picture shows one --method at a time.")
    if args.channels < 0:
        raise ValueError(f"--channels is 0 or more; got {args.channels}.")
    if Image.registered_extensions().get(target.suffix.lower()) not in Image.SAVE:
        raise ValueError(f"{target} has no ending of a kind of picture that can be written. Use .png.")
    if target.is_dir():
        raise ValueError(f"{target} is a directory; --out is the file to write.")
    if not target.parent.is_dir():
        raise ValueError(f"There is no directory {target.parent} to write {target.name} to.")


def write(image: Image.Image, target: Path) -> None:
    """All of the file or nothing."""
    temporary = target.with_name(f".{secrets.token_hex(4)}-{target.name}")
    try:
        image.save(temporary)
        temporary.replace(target)
    except OSError as error:
        raise ValueError(f"{target} cannot be written: {error}") from error
    finally:
        temporary.unlink(missing_ok=True)
