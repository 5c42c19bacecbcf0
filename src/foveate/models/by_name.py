"""A model by the name users write: a timm name, ``hf:``, ``torchvision:``, or a directory of ``foveate.save``."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import timm
import torch
import torchvision
from safetensors import SafetensorError
from safetensors.torch import load_file
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from foveate.adapters import CHILD
from foveate.models.hvt_weights import convert_weights, unwrapped
from foveate.storage import MANIFEST, load

CLASSIFIERS = (
    *("head", "head_dist", "aux_head", "fc"),  # timm, LV-ViT's second one included
    *("classifier", "cls_classifier", "distillation_classifier"),  # transformers
    "heads",  # torchvision
)


def load_model(
    name: str, *, pretrained: bool = False, weights: str | Path | None = None, options: dict[str, Any] | None = None
) -> nn.Module:
    """The model called ``name``, with its library's weights (``pretrained``), those of a file, or random ones.

    ``options`` go to the library: ``num_classes``, and ``img_size`` (timm) or ``image_size`` (torchvision). A
    directory of ``foveate.save`` brings everything along, and takes none.
    """
    return load_and_tell(name, pretrained=pretrained, weights=weights, options=options)[0]


def load_and_tell(
    name: str, *, pretrained: bool = False, weights: str | Path | None = None, options: dict[str, Any] | None = None
) -> tuple[nn.Module, list[str]]:
    """``load_model``, and the names of what a file of weights or a transformers checkpoint left as it was, untrained.

    Of timm's and torchvision's own weights nothing is told.
    """
    model, unfilled = _find(name, pretrained, options or {})
    return model, load_weights_(model, Path(weights)) if weights else unfilled


def brings_architecture(name: str) -> bool:
    """Whether a model of that name comes as it was built: from a directory, or from transformers."""
    return name.startswith("hf:") or Path(name).is_dir()


def load_weights_(model: nn.Module, path: Path) -> list[str]:
    """Fill ``model`` from a file of weights; returns the names of what the file does not have and stays as it was.

    That is a classifier that did not fit, and what a reduction learns (HVT's positions behind its poolings) where the
    file is of a model without any. Positions of a timm model are resampled to its image size. Anything else that does
    not fit is an error. The file is safetensors, or of ``torch.save`` and read as plain weights: nothing in it is
    executed.
    """
    found = _read_weights(path)
    unlearned = [name for name in model.state_dict() if name.startswith(f"{CHILD}.") and name not in found]
    tensors = _converted(found, model, path)
    own = model.state_dict()
    missing, unknown = sorted(own.keys() - tensors.keys()), sorted(tensors.keys() - own.keys())
    differing = [name for name in own if name in tensors and tensors[name].shape != own[name].shape]
    new = [name for name in (*differing, *missing) if is_classifier(name)]
    wrong = [name for name in (*differing, *missing, *unknown) if not is_classifier(name)]
    if wrong:
        raise ValueError(
            f"The weights in {path} do not fit this {type(model).__name__}: {len(wrong)} names are missing, unknown or "
            f"of another shape, such as {', '.join(wrong[:3])}."
        )
    kept = {name: tensor for name, tensor in tensors.items() if name in own and name not in new}
    model.load_state_dict(own | kept)
    return [*new, *unlearned]


def _converted(weights: dict[str, Tensor], model: nn.Module, path: Path) -> dict[str, Tensor]:
    if not isinstance(model, VisionTransformer):
        return weights
    try:
        return convert_weights(weights, model)
    except ValueError as error:
        raise ValueError(f"The weights in {path} do not fit this {type(model).__name__}: {error}") from error


def is_classifier(name: str) -> bool:
    """Whether a parameter or module of that name turns features into a prediction."""
    return name.split(".")[0] in CLASSIFIERS


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


def _find(name: str, pretrained: bool, options: dict[str, Any]) -> tuple[nn.Module, list[str]]:
    library, colon, rest = name.partition(":")
    if colon and library == "hf":
        return _from_transformers(rest, options)
    if colon and library == "torchvision":
        return _from_torchvision(rest, pretrained, options), []
    if (Path(name) / MANIFEST).is_file():
        return load(name), []
    if Path(name).is_dir():
        raise ValueError(f"The directory {name} has no {MANIFEST}. For a transformers checkpoint write hf:{name}.")
    if not timm.is_model(name):
        raise ValueError(_unknown("timm model", name, timm.list_models()))
    return _build(lambda: timm.create_model(name, pretrained=pretrained, **options), name), []


def _from_torchvision(name: str, pretrained: bool, options: dict[str, Any]) -> nn.Module:
    known = torchvision.models.list_models(module=torchvision.models)
    if name not in known:
        raise ValueError(_unknown("torchvision model", name, known))
    weights = "DEFAULT" if pretrained else None
    return _build(lambda: torchvision.models.get_model(name, weights=weights, **options), name)


def _from_transformers(name: str, options: dict[str, Any]) -> tuple[nn.Module, list[str]]:
    try:
        from transformers import AutoModel, AutoModelForImageClassification
    except ImportError as error:
        raise ValueError("hf: models need transformers: pip install foveate[hf]") from error
    labels = {"num_labels": options["num_classes"], "ignore_mismatched_sizes": True} if "num_classes" in options else {}
    told: dict[str, Any] = {"trust_remote_code": False, "output_loading_info": True}
    try:
        model, info = AutoModelForImageClassification.from_pretrained(name, **told, **labels)
    except ValueError:  # no classifier is known for this kind of model
        model, info = AutoModel.from_pretrained(name, **told)
    return model, [*info["missing_keys"], *(key for key, *_ in info["mismatched_keys"])]


def _build(create: Callable[[], nn.Module], name: str) -> nn.Module:
    """Call ``create``; what a library says about options a model does not take becomes an error of the user's."""
    try:
        return create()
    except (RuntimeError, TypeError, AssertionError) as error:
        raise ValueError(f"{name} cannot be built like this: {error}") from error


def _unknown(kind: str, name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(known), n=4)
    return f"There is no {kind} {name!r}." + (f" Did you mean {', '.join(close)}?" if close else "")
