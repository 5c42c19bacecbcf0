"""Load a model by the name the command line gives it."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import timm
import torchvision
from torch import nn

from foveate.adapters import find_adapter, reduction_of
from foveate.api import restore_
from foveate.cli.arguments import ImageSize, Request
from foveate.schedule import OwnCounts
from foveate.storage import MANIFEST, load


class Loaded(NamedTuple):
    """An unreduced model with the size of its images, and the reduction it was saved with, if any."""

    model: nn.Module
    image_size: tuple[int, int, int]
    own: Request | None = None


def load_from(args: argparse.Namespace) -> Loaded:
    """The model that ``arguments.add_model`` asked for, in evaluation mode."""
    model = load_model(args.model, pretrained=args.pretrained, image_size=args.image_size).eval()
    channels, *size = find_adapter(model).image_size(model)  # raises here for a model that is not supported
    if args.image_size is not None:
        channels, size = args.image_size[0] or channels, list(args.image_size[1:])
    reduction = reduction_of(model)
    if reduction is None:
        return Loaded(model, (channels, size[0], size[1]))
    schedule = None if isinstance(reduction.schedule, OwnCounts) else reduction.schedule
    learned = reduction.state_dict()
    own = Request(reduction.method, schedule, reduction.exact_last_block, reduction.unit_qk, learned)
    return Loaded(restore_(model), (channels, size[0], size[1]), own)


def load_model(name: str, *, pretrained: bool = False, image_size: ImageSize | None = None) -> nn.Module:
    """A model of timm, transformers (``hf:``), torchvision (``torchvision:``), or from a saved directory."""
    library, colon, rest = name.partition(":")
    if colon and library == "hf":
        return _from_transformers(rest)
    if colon and library == "torchvision":
        return _from_torchvision(rest, pretrained, image_size)
    if (Path(name) / MANIFEST).is_file():
        return load(name)
    if Path(name).is_dir():
        raise ValueError(f"The directory {name} has no {MANIFEST}. For a transformers checkpoint write hf:{name}.")
    return _from_timm(name, pretrained, image_size)


def _from_timm(name: str, pretrained: bool, image_size: ImageSize | None) -> nn.Module:
    if not timm.is_model(name):
        raise ValueError(_unknown("timm model", name, timm.list_models()))
    options: dict[str, Any] = {}
    if image_size is not None:
        channels, height, width = image_size
        options = {"img_size": (height, width)} | ({} if channels is None else {"in_chans": channels})
    return _build(lambda: timm.create_model(name, pretrained=pretrained, **options), name)


def _from_torchvision(name: str, pretrained: bool, image_size: ImageSize | None) -> nn.Module:
    known = torchvision.models.list_models(module=torchvision.models)
    if name not in known:
        raise ValueError(_unknown("torchvision model", name, known))
    options: dict[str, Any] = {}
    if image_size is not None:
        if image_size[1] != image_size[2]:
            raise ValueError(f"torchvision builds models for square images; got {image_size[1]}x{image_size[2]}.")
        options["image_size"] = image_size[1]
    weights = "DEFAULT" if pretrained else None
    return _build(lambda: torchvision.models.get_model(name, weights=weights, **options), name)


def _from_transformers(name: str) -> nn.Module:
    try:
        from transformers import AutoModel, AutoModelForImageClassification
    except ImportError as error:
        raise ValueError("hf: models need transformers: pip install foveate[hf]") from error
    try:
        return AutoModelForImageClassification.from_pretrained(name, trust_remote_code=False)
    except ValueError:  # no classifier is known for this kind of model
        return AutoModel.from_pretrained(name, trust_remote_code=False)


def _build(create: Callable[[], nn.Module], name: str) -> nn.Module:
    """Call ``create``; what a library says about options a model does not take becomes an error of the user's."""
    try:
        return create()
    except (RuntimeError, TypeError, AssertionError) as error:
        raise ValueError(f"{name} cannot be built like this: {error}") from error


def _unknown(kind: str, name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(known), n=4)
    return f"There is no {kind} {name!r}." + (f" Did you mean {', '.join(close)}?" if close else "")
