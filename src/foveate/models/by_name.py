"""A model by the name users write: a timm name, ``hf:``, ``torchvision:``, or a directory of ``foveate.save``."""

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
    """The model called ``name``, with its library's weights (``pretrained``), those of a file, or random ones.

    Args:
        name: a timm name, ``hf:NAME-OR-PATH``, ``torchvision:NAME``, or a directory written by ``foveate.save``.
        pretrained: load the library's weights; ``hf:`` models always come with theirs.
        weights: a safetensors file, or one of ``torch.save`` that holds plain weights.
        options: for the library: ``num_classes``, and ``img_size`` (timm) or ``image_size`` (torchvision). A saved
            directory takes none.
    """
    return load_with_report(name, pretrained=pretrained, weights=weights, options=options).model


def load_with_report(
    name: str, *, pretrained: bool = False, weights: str | Path | None = None, options: dict[str, Any] | None = None
) -> Built:
    """``load_model``, and the names of the parameters that no trained weights have filled."""
    built = _find(name, pretrained, options or {})
    return Built(built.model, tuple(load_weights_(built.model, Path(weights)))) if weights else built


def brings_architecture(name: str) -> bool:
    """Whether a model of that name comes as it was built: from a directory, or from transformers."""
    return Path(name).is_dir() or library_for(name)[0].brings_architecture


def comes_trained(name: str, pretrained: bool, weights: str | Path | None) -> bool:
    """Whether the model asked for has trained weights, as far as its name tells."""
    return bool(pretrained or weights) or Path(name).is_dir() or library_for(name)[0].always_trained


def size_options(name: str, image_size: ImageSize | None) -> dict[str, Any]:
    """The size of the images as options of the library that builds ``name``."""
    return {} if image_size is None or Path(name).is_dir() else library_for(name)[0].size_options(image_size)


def class_options(name: str, num_classes: int | None, pretrained: bool) -> dict[str, Any]:
    """The number of classes as options of the library that builds ``name``; a saved directory takes none."""
    if num_classes is None or Path(name).is_dir():
        return {}
    return library_for(name)[0].class_options(num_classes, pretrained)


def load_weights_(model: nn.Module, path: Path) -> list[str]:
    """Fill ``model`` from a file of weights; returns the names of parameters that the file does not have.

    Those are a classifier that did not fit, and what a reduction learns (HVT's positions behind its poolings) where
    the file is of a model without any. Positions of a timm model are resampled to its image size. Anything else that
    does not fit is an error. The file is safetensors, or of ``torch.save`` and read as plain weights: nothing in it
    is executed.
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
            f"of another shape, such as {', '.join(wrong[:3])}."
        )
    kept = {name: tensor for name, tensor in tensors.items() if name in own and name not in new}
    model.load_state_dict(own | kept)
    return [*new, *unlearned]


def _read_weights(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise ValueError(f"There is no file of weights {path}.")
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        data = torch.load(path, map_location="cpu", weights_only=True)
    except SafetensorError as error:
        raise ValueError(f"{path} is not a readable safetensors file: {error}") from error
    except Exception as error:  # pickles that are more than weights, and files that are no pickles, raise many kinds
        raise ValueError(f"{path} cannot be read as plain weights: {error}") from error
    data = unwrapped(data) if isinstance(data, dict) else data
    if not isinstance(data, dict) or not all(isinstance(value, Tensor) for value in data.values()):
        raise ValueError(f"{path} holds no weights by name.")
    return data


def _find(name: str, pretrained: bool, options: dict[str, Any]) -> Built:
    if (Path(name) / MANIFEST).is_file():
        return Built(load(name), ())
    if Path(name).is_dir():
        raise ValueError(f"The directory {name} has no {MANIFEST}. For a transformers checkpoint write hf:{name}.")
    library, inner = library_for(name)
    return library.build(inner, pretrained, options)
