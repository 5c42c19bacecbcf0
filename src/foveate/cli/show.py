"""The work of ``foveate show``."""

from __future__ import annotations

import argparse
import inspect
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from PIL import Image
from torch import nn

from foveate.adapters import inspect as adapters_inspect
from foveate.adapters import reducer_of
from foveate.cli import output
from foveate.cli.requests import first_line, has_trained_weights, load_from, read_reductions
from foveate.drawing import Picture, all_pictures


def run(args: argparse.Namespace) -> int:
    known = all_pictures()
    if args.picture is None:
        output.print_listing("pictures", {name: first_line(draw) for name, draw in known.items()}, args.json)
        return 0
    target = args.out or Path(f"{args.picture}.png")
    check(args, known, target)
    reductions = read_reductions(args)
    loaded = load_from(args)
    if adapters_inspect(loaded.model).image_size != loaded.image_size:
        raise ValueError(f"{args.model} was made for other images than --image-size. Leave it out.")
    variants = loaded.variants(reductions)
    model = (
        variants[-1][1] if variants else loaded.model
    )  # --method takes precedence over the reduction saved with the model
    name = f"{Path(args.model).name}{untrained(args, model, saved=model is loaded.own)}"
    drawn = known[args.picture](model, args.images, name=name, **read_options(args, known))
    write(drawn, target)
    if args.json:
        output.print_json({"picture": args.picture, "file": str(target)})
    else:
        output.say(f"Wrote {target}.")
    return 0


def read_options(args: argparse.Namespace, known: Mapping[str, Picture]) -> dict[str, Any]:
    """The given options of the picture.

    Raises:
        ValueError: If an option belongs to another picture.
    """
    options = {}
    for option, name in (("at", "blocks"), ("channels", "channels"), ("stage", "stage")):
        if getattr(args, option) is None:
            continue
        takers = [picture for picture, draw in known.items() if name in inspect.signature(draw).parameters]
        if args.picture not in takers:
            raise ValueError(
                f"{args.picture} has no --{option}. Pictures with --{option}: {', '.join(takers) or 'none'}."
            )
        options[name] = getattr(args, option)
    return options


def untrained(args: argparse.Namespace, model: nn.Module, saved: bool) -> str:
    """A note for pictures with random weights, of the whole model or of a learned method; else empty."""
    if not has_trained_weights(args):
        return " (untrained)"
    reducer = reducer_of(model)
    if reducer is not None and len(reducer.learned) and not saved:
        return f" ({type(reducer.method).__name__} untrained)"
    return ""


def check(args: argparse.Namespace, known: Mapping[str, Picture], target: Path) -> None:
    """Check the command before the model is loaded.

    Raises:
        ValueError: If the picture cannot be drawn or the file cannot be written.
    """
    if args.picture not in known:
        raise ValueError(f"There is no picture {args.picture!r}. Known: {', '.join(known) or 'none yet'}.")
    if args.model is None:
        raise ValueError(f"{args.picture} needs a model: foveate show {args.picture} MODEL IMAGE.")
    if not args.images:
        raise ValueError(f"{args.picture} needs an image: foveate show {args.picture} {args.model} IMAGE.")
    if len(args.methods or ()) > 1:
        raise ValueError("show takes one --method at a time.")
    read_options(args, known)
    if Image.registered_extensions().get(target.suffix.lower()) not in Image.SAVE:
        raise ValueError(f"{target} is not in an image format that can be written. Use .png.")
    if target.is_dir():
        raise ValueError(f"{target} is a directory. --out must be a file.")
    if not target.parent.is_dir():
        raise ValueError(f"The directory {target.parent} does not exist, so {target.name} cannot be written.")


def write(image: Image.Image, target: Path) -> None:
    """Write the whole file or nothing.

    Raises:
        ValueError: If it cannot be written.
    """
    temporary = target.with_name(f".{secrets.token_hex(4)}-{target.name}")
    try:
        image.save(temporary)
        temporary.replace(target)
    except OSError as error:
        raise ValueError(f"{target} cannot be written: {error}") from error
    finally:
        temporary.unlink(missing_ok=True)
