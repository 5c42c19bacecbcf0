"""Models by name: a timm name, ``hf:``, ``torchvision:``, or a directory written by ``foveate.save``.

``ENCODER+HEAD`` puts a dense head on any of these, such as ``clustr_small+semantic-fpn``.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.serialization import safe_globals

from foveate.adapters import CHILD, Built, ImageSize, inspect, library_for
from foveate.adapters.official_names import from_official
from foveate.adapters.timm_weights import unwrapped
from foveate.methods.validation import check_type, shown, shown_error
from foveate.models.dense import DenseModel
from foveate.models.dense.by_name import assemble, encoder_options, load_encoder_weights_, split_name
from foveate.reductions import Reduction
from foveate.storage import MANIFEST, load, saved_folder


def load_model(
    name: str,
    *,
    pretrained: bool = False,
    weights: str | Path | None = None,
    options: dict[str, Any] | None = None,
    reduction: Reduction | None = None,
) -> nn.Module:
    """Load the model called ``name`` with pretrained weights, weights from a file, or random weights.

    Args:
        name: a timm name, ``hf:NAME-OR-PATH``, ``torchvision:NAME``, or a directory written by ``foveate.save``;
            with ``+HEAD`` behind it, such as ``clustr_small+semantic-fpn``, a dense model.
        pretrained: load the library's weights; ``hf:`` models always have them.
        weights: a safetensors file, or a ``torch.save`` file of plain weights.
        options: for the library: ``num_classes``, and ``img_size`` (timm) or ``image_size`` (torchvision). A saved
            directory takes none. A dense model takes ``num_classes``, ``image_size`` (height, width), ``head`` (options
            of the head by name), and what its encoder takes.
        reduction: reduce the model by it before the weights of a file are loaded, which then also fill what the method
            learns: DynamicViT's predictors, HVT's positions.
    """
    return load_with_report(name, pretrained=pretrained, weights=weights, options=options, reduction=reduction).model


def load_with_report(
    name: str,
    *,
    pretrained: bool = False,
    weights: str | Path | None = None,
    options: dict[str, Any] | None = None,
    reduction: Reduction | None = None,
) -> Built:
    """``load_model``, and the names of the parameters without trained weights."""
    check_type(str | Path, "a model's name or a directory", name=name)
    check_type(bool, "True or False", pretrained=pretrained)
    check_type(dict | None, "values by name, such as {'num_classes': 10}", options=options)
    check_type(str | Path | None, "the path of a file", weights=weights)
    check_type(Reduction | None, "a Reduction", reduction=reduction)
    found = _read_weights(Path(weights)) if weights is not None else None  # before a model is built, or downloaded
    built = _find(str(name), pretrained, options or {})
    if reduction is not None:
        reduction.apply_(built.model)
    if weights is None or found is None:
        return built
    return Built(built.model, tuple(_load_found_(built.model, found, Path(weights))))


def brings_architecture(name: str) -> bool:
    """Whether options cannot change the model called ``name``: it is a directory or from transformers."""
    if split_name(name)[1]:
        return False
    return Path(name).is_dir() or library_for(name)[0].brings_architecture


def comes_trained(name: str, pretrained: bool, weights: str | Path | None) -> bool:
    """Whether the model has trained weights, as far as its name tells."""
    name = split_name(name)[0]
    return bool(pretrained or weights) or Path(name).is_dir() or library_for(name)[0].always_trained


def size_options(name: str, image_size: ImageSize | None) -> dict[str, Any]:
    """Options that set the image size, for the library that builds ``name``."""
    if image_size is not None and split_name(name)[1]:
        return {"image_size": image_size[1:]}
    return {} if image_size is None or Path(name).is_dir() else library_for(name)[0].size_options(image_size)


def class_options(name: str, num_classes: int | None, pretrained: bool) -> dict[str, Any]:
    """Options that set the number of classes, for the library that builds ``name``; empty for a saved directory."""
    if num_classes is None or Path(name).is_dir():
        return {}
    if split_name(name)[1]:
        return {"num_classes": num_classes}
    return library_for(name)[0].class_options(num_classes, pretrained)


def load_weights_(model: nn.Module, path: Path) -> list[str]:
    """Load weights from a file into ``model``.

    Those are a classifier that did not fit, and what a reduction learns (HVT's positions behind its poolings) where
    the file is of a model without any. Positions of a timm model are resampled to its image size. Anything else that
    does not fit is an error. The file is safetensors, or of ``torch.save`` and read as plain weights: nothing in it
    is executed. Files that the authors of DynamicViT, HVT, EViT and LV-ViT publish are read as they are. A dense model
    takes a file of its own, or one of its encoder.
    """
    return _load_found_(model, _read_weights(path), path)


def _load_found_(model: nn.Module, found: dict[str, Tensor], path: Path) -> list[str]:
    if isinstance(model, DenseModel) and not any(name.startswith("encoder.") for name in found):
        return load_encoder_weights_(model, found, path, _fill_)
    return _fill_(model, found, path)


def _fill_(model: nn.Module, found: dict[str, Tensor], path: Path) -> list[str]:
    family = inspect(model)
    try:
        found = from_official(found, model)
        tensors = family.convert_weights(found)
    except ValueError as error:
        raise ValueError(f"The weights in {path} do not fit this {type(model).__name__}: {error}") from error
    own = model.state_dict()
    unlearned = [name for name in own if name.startswith(f"{CHILD}.") and name not in found]
    missing, unknown = sorted(own.keys() - tensors.keys()), sorted(tensors.keys() - own.keys())
    differing = [name for name in own if name in tensors and tensors[name].shape != own[name].shape]
    new = [name for name in (*differing, *missing) if family.is_classifier(name)]
    wrong = [name for name in (*differing, *missing, *unknown) if not family.is_classifier(name)]
    if wrong:
        raise ValueError(
            f"The weights in {path} do not fit this {type(model).__name__}: {len(wrong)} names are missing, unknown or "
            f"have another shape, such as {', '.join(wrong[:3])}."
        )
    kept = {name: tensor for name, tensor in tensors.items() if name in own and name not in new}
    model.load_state_dict(own | kept)
    return [*new, *unlearned]


def _read_weights(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise ValueError(f"There is no weights file {path}.")
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        with safe_globals([argparse.Namespace]):  # training loops save their arguments; it is a plain table of values
            data = torch.load(path, map_location="cpu", weights_only=True)
    except SafetensorError as error:
        raise ValueError(f"{path} is not a readable safetensors file: {error}") from error
    except Exception as error:  # pickles that are more than weights, and files that are no pickles, raise many kinds
        raise ValueError(_unreadable(path, error)) from error
    data = unwrapped(data) if isinstance(data, dict) else data
    if not isinstance(data, dict) or not all(isinstance(value, Tensor) for value in data.values()):
        raise ValueError(f"{path} does not hold named weights.")
    return data


def _unreadable(path: Path, error: Exception) -> str:
    """Why a file of ``torch.save`` was not read, without torch's advice to run what is in it."""
    needed = re.search(r"GLOBAL (\S+)", str(error))
    if needed is None:
        return f"{path} cannot be read as plain weights: {shown_error(error)}"
    return (
        f"{path} cannot be read as plain weights: its pickle asks for {needed[1]}, and foveate runs nothing from a "
        "file. Ask its author for a file of tensors alone, such as safetensors."
    )


def _find(name: str, pretrained: bool, options: dict[str, Any]) -> Built:
    if (saved_folder(name) / MANIFEST).is_file():
        if options:
            raise ValueError(f"{name} is a saved model and takes no options. Leave out {shown(options)}.")
        return Built(load(name), ())
    encoder, head = split_name(name)
    if head:
        its_options, own = encoder_options(encoder, options)
        return assemble(_find(encoder, pretrained, its_options), encoder, head, its_options, own)
    if Path(name).is_dir():
        raise ValueError(f"The directory {name} has no {MANIFEST}. For a transformers checkpoint write hf:{name}.")
    library, inner = library_for(name)
    if not library.prefix and is_path(name):
        raise ValueError(f"The folder {name} does not exist. Pass a folder written by fv.save or foveate train.")
    return library.build(inner, pretrained, options)


def is_path(name: str) -> bool:
    """Whether a name without a library's prefix can only be a path."""
    return "/" in name or "\\" in name or name.startswith(("~", "."))
