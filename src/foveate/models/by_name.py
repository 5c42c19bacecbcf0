"""Models by name: a timm name, ``hf:``, ``torchvision:``, or a directory written by ``foveate.save``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from foveate.adapters import CHILD, Built, ImageSize, inspect, library_for
from foveate.adapters.timm_weights import unwrapped
from foveate.storage import MANIFEST, load


def load_model(
    name: str, *, pretrained: bool = False, weights: str | Path | None = None, options: dict[str, Any] | None = None
) -> nn.Module:
    """Load the model called ``name`` with pretrained weights, weights from a file, or random weights.

    Args:
        name: a timm name, ``hf:NAME-OR-PATH``, ``torchvision:NAME``, or a directory written by ``foveate.save``.
        pretrained: load the library's weights; ``hf:`` models always have them.
        weights: a safetensors file, or a ``torch.save`` file of plain weights.
        options: for the library: ``num_classes``, and ``img_size`` (timm) or ``image_size`` (torchvision). A saved
            directory takes none.

    Raises:
        ValueError: if there is no such model, or the weights do not fit it.
    """
    return load_with_report(name, pretrained=pretrained, weights=weights, options=options).model


def load_with_report(
    name: str, *, pretrained: bool = False, weights: str | Path | None = None, options: dict[str, Any] | None = None
) -> Built:
    """``load_model``, and the names of the parameters without trained weights."""
    built = _find(name, pretrained, options or {})
    return Built(built.model, tuple(load_weights_(built.model, Path(weights)))) if weights else built


def brings_architecture(name: str) -> bool:
    """Whether options cannot change the model called ``name``: it is a directory or from transformers."""
    return Path(name).is_dir() or library_for(name)[0].brings_architecture


def comes_trained(name: str, pretrained: bool, weights: str | Path | None) -> bool:
    """Whether the model has trained weights, as far as its name tells."""
    return bool(pretrained or weights) or Path(name).is_dir() or library_for(name)[0].always_trained


def size_options(name: str, image_size: ImageSize | None) -> dict[str, Any]:
    """Options that set the image size, for the library that builds ``name``."""
    return {} if image_size is None or Path(name).is_dir() else library_for(name)[0].size_options(image_size)


def class_options(name: str, num_classes: int | None, pretrained: bool) -> dict[str, Any]:
    """Options that set the number of classes, for the library that builds ``name``; empty for a saved directory."""
    if num_classes is None or Path(name).is_dir():
        return {}
    return library_for(name)[0].class_options(num_classes, pretrained)


def load_weights_(model: nn.Module, path: Path) -> list[str]:
    """Load weights from a file into ``model``.

    Positions of a timm model are resampled to its image size. Files of ``torch.save`` are read as plain weights, so
    nothing in them is executed.

    Args:
        model: the model to fill.
        path: a safetensors or ``torch.save`` file.

    Returns:
        Names of the parameters that the file does not fill: a classifier of another size, and learned weights of a
        reduction (such as HVT's positions after poolings) if the file has none.

    Raises:
        ValueError: if the file cannot be read, or if anything else does not fit.
    """
    family = inspect(model)
    found = _read_weights(path)
    unlearned = [name for name in model.state_dict() if name.startswith(f"{CHILD}.") and name not in found]
    try:
        tensors = family.convert_weights(found)
    except ValueError as error:
        raise ValueError(f"The weights in {path} do not fit this {type(model).__name__}: {error}") from error
    own = model.state_dict()
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
        data = torch.load(path, map_location="cpu", weights_only=True)
    except SafetensorError as error:
        raise ValueError(f"{path} is not a readable safetensors file: {error}") from error
    except (
        Exception
    ) as error:  # pickles that hold more than weights, and files that are not pickles, raise many kinds of errors
        raise ValueError(f"{path} cannot be read as plain weights: {error}") from error
    data = unwrapped(data) if isinstance(data, dict) else data
    if not isinstance(data, dict) or not all(isinstance(value, Tensor) for value in data.values()):
        raise ValueError(f"{path} does not hold named weights.")
    return data


def _find(name: str, pretrained: bool, options: dict[str, Any]) -> Built:
    if (Path(name) / MANIFEST).is_file():
        return Built(load(name), ())
    if Path(name).is_dir():
        raise ValueError(f"The directory {name} has no {MANIFEST}. For a transformers checkpoint write hf:{name}.")
    library, inner = library_for(name)
    return library.build(inner, pretrained, options)
