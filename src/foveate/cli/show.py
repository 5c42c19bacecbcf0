"""The work of ``foveate show``."""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from PIL import Image
from torch import nn

from foveate.adapters import inspect as adapters_inspect
from foveate.adapters import reducer_of
from foveate.cli import output
from foveate.cli.evaluate import class_names, requested_task
from foveate.cli.requests import Loaded, first_line, load_from, read_reductions
from foveate.data.preprocessing import open_image
from foveate.drawing import Picture, all_pictures
from foveate.files import replacing
from foveate.tasks import Task  # whose package also registers the picture of predictions


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
    # --method takes precedence over the reduction saved with the model
    model = variants[-1][1] if variants else loaded.model
    name = f"{Path(args.model).name}{untrained(loaded, model)}"
    options = read_options(args, known) | task_of(args, model, known)
    drawn = known[args.picture](model, args.images, name=name, **options)
    with replacing(target) as temporary:
        drawn.save(temporary)
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


def task_of(args: argparse.Namespace, model: nn.Module, known: Mapping[str, Picture]) -> dict[str, Task]:
    """The model's task with its class names, for pictures that draw what it predicts; empty for others."""
    if "task" not in inspect.signature(known[args.picture]).parameters:
        if args.task or args.classes or args.task_options:
            raise ValueError(f"{args.picture} has no --task, --option and --classes; the picture predictions has them.")
        return {}
    kind, own = requested_task(args, model)
    task, names = kind.for_model(model, **own), class_names(args)
    return {"task": task if names is None else task.with_classes(names)}


def untrained(loaded: Loaded, model: nn.Module) -> str:
    """A note for pictures with random weights, of the model but its classifier or of a learned method; else empty."""
    family = adapters_inspect(loaded.model)
    if not all(map(family.is_classifier, loaded.untrained)):
        return " (untrained)"
    reducer = reducer_of(model)
    if reducer is not None and len(reducer.learned) and model is not loaded.own:
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
    for path in args.images:
        open_image(path)
    if Image.registered_extensions().get(target.suffix.lower()) not in Image.SAVE:
        raise ValueError(f"{target} is not in an image format that can be written. Use .png.")
    if target.is_dir():
        raise ValueError(f"{target} is a directory. --out must be a file.")
    if not target.parent.is_dir():
        raise ValueError(f"The directory {target.parent} does not exist, so {target.name} cannot be written.")
