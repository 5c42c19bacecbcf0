"""The model that a command was asked for."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from foveate.adapters import find_keeper, reduction_of
from foveate.api import restore_
from foveate.cli.arguments import ImageSize, Request
from foveate.models.by_name import load_model
from foveate.schedule import OwnCounts


class Loaded(NamedTuple):
    """An unreduced model with the size of its images, and the reduction it was saved with, if any."""

    model: nn.Module
    image_size: tuple[int, int, int]
    own: Request | None = None


def load_from(args: argparse.Namespace) -> Loaded:
    """The model that ``arguments.add_model`` asked for, in evaluation mode."""
    options = _size_options(args.model, args.image_size)
    model = load_model(args.model, pretrained=args.pretrained, weights=args.weights, options=options).eval()
    channels, *size = find_keeper(model).image_size(model)  # raises here for a model that is not supported
    if args.image_size is not None:
        channels, size = args.image_size[0] or channels, list(args.image_size[1:])
    reduction = reduction_of(model)
    if reduction is None:
        return Loaded(model, (channels, size[0], size[1]))
    schedule = None if isinstance(reduction.schedule, OwnCounts) else reduction.schedule
    learned = reduction.state_dict()
    own = Request(reduction.method, schedule, reduction.exact_last_block, reduction.unit_qk, learned)
    return Loaded(restore_(model), (channels, size[0], size[1]), own)


def brings_weights(args: argparse.Namespace) -> bool:
    """Whether the model asked for is a trained one, as far as its name tells."""
    return bool(args.pretrained or args.weights) or args.model.startswith("hf:") or Path(args.model).is_dir()


def _size_options(name: str, image_size: ImageSize | None) -> dict[str, Any]:
    """The size of the images as each library wants to hear it; transformers is told when images come."""
    if image_size is None or name.startswith("hf:") or Path(name).is_dir():
        return {}
    channels, height, width = image_size
    if not name.startswith("torchvision:"):
        return {"img_size": (height, width)} | ({} if channels is None else {"in_chans": channels})
    if height != width:
        raise ValueError(f"torchvision builds models for square images; got {height}x{width}.")
    return {"image_size": height}
