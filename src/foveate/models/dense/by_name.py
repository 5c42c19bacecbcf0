"""Dense models by name: ``ENCODER+HEAD``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor, nn

from foveate.adapters import Built, UnsupportedModel, inspect, library_for
from foveate.methods.validation import shown
from foveate.models.dense.head import find_head
from foveate.models.dense.model import DenseModel, dense_model

Fill = Callable[[nn.Module, dict[str, Tensor], Path], list[str]]


class HeadOptions(NamedTuple):
    """The part of a dense model's options that is not the encoder's."""

    num_classes: int | None
    image_size: tuple[int, int] | None
    head: dict[str, Any]


def split_name(name: str) -> tuple[str, str]:
    """The encoder and the head in ``ENCODER+HEAD``; an empty head if ``name`` is that of an ordinary model.

    Raises:
        ValueError: if there is no such head.
    """
    encoder, plus, head = str(name).rpartition("+")
    if not plus or Path(name).exists():
        return str(name), ""
    if not encoder:
        raise ValueError(f"{name} names no encoder. Write ENCODER+HEAD, such as clustr_small+semantic-fpn.")
    return encoder, find_head(head).name


def encoder_options(encoder: str, options: dict[str, Any]) -> tuple[dict[str, Any], HeadOptions]:
    """Divide the options of ``ENCODER+HEAD``: those for the encoder's library, and the rest."""
    inner = dict(options)
    own = HeadOptions(
        inner.pop("num_classes", None), _checked_size(inner.pop("image_size", None)), inner.pop("head", {})
    )
    if not isinstance(own.head, dict):
        raise ValueError(f"head must hold options by name, such as {{'blocks': [5, 11]}}; got {shown(own.head)}.")
    library, name = library_for(encoder)
    if Path(encoder).is_dir() or library.brings_architecture:
        return inner, own
    if library.prefix == "":  # timm
        inner = {"num_classes": 0} | inner
        if own.image_size is not None and _is_built_for_a_size(name):
            inner.setdefault("img_size", own.image_size)
    elif own.image_size is not None:
        inner |= library.size_options((None, *own.image_size))
    return inner, own


def _checked_size(size: Any) -> tuple[int, int] | None:
    if isinstance(size, int) and not isinstance(size, bool):
        size = (size, size)
    if size is None:
        return None
    if not isinstance(size, list | tuple) or len(size) != 2 or not all(type(s) is int and s > 0 for s in size):
        raise ValueError(f"image_size must be height and width in pixels, got {shown(size)}.")
    return int(size[0]), int(size[1])


def _is_built_for_a_size(name: str) -> bool:
    """Whether a timm model is built for one image size, as those with positions are; convolutional ones are not."""
    from timm.models import get_pretrained_cfg, is_model

    known = get_pretrained_cfg(name, allow_unregistered=True) if is_model(name) else None
    return bool(known is not None and known.fixed_input_size)


def assemble(built: Built, name: str, head: str, inner: dict[str, Any], own: HeadOptions) -> Built:
    """The dense model, and the names of its parameters without trained weights."""
    encoder = without_classifier(built.model)
    model = dense_model(
        encoder,
        head,
        own.num_classes,
        image_size=own.image_size,
        encoder_name="" if Path(name).is_dir() else library_for(name)[1],
        encoder_options=inner,
        **_checked_head_options(head, own.head),
    )
    left = {parameter for parameter, _ in encoder.named_parameters()}
    untrained = [f"encoder.{parameter}" for parameter in built.untrained if parameter in left]
    return Built(model, (*untrained, *head_parameters(model)))


def _checked_head_options(head: str, options: dict[str, Any]) -> dict[str, Any]:
    known = find_head(head).option_names()
    for name in options:
        if name not in known:
            raise ValueError(f"{head} has no option {name!r}. It takes {', '.join(known) or 'none'}.")
    return options


def head_parameters(model: DenseModel) -> list[str]:
    """Names of the parameters of the head, within the model."""
    return [f"head.{name}" for name, _ in model.head.named_parameters()]


def without_classifier(model: Any) -> nn.Module:
    """``model`` without the layers that a dense head replaces, where its library can drop them."""
    if callable(getattr(model, "reset_classifier", None)):
        if getattr(model, "num_classes", 0):
            model.reset_classifier(0)
        return model
    base = getattr(model, "base_model", None)  # transformers: the model inside one with a classifier
    if isinstance(base, nn.Module) and base is not model:
        try:
            inspect(base)
        except UnsupportedModel:
            return model
        return base
    return model


def load_encoder_weights_(model: DenseModel, found: dict[str, Tensor], path: Path, fill: Fill) -> list[str]:
    """Load the weights of an encoder alone, ``found`` in ``path``; returns the parameters without trained weights."""
    encoder: Any = model.encoder
    try:
        inspect(encoder)
    except UnsupportedModel:
        _fill_pyramid_(encoder, found, path)
        return head_parameters(model)
    left = set(encoder.state_dict())
    untrained = [f"encoder.{name}" for name in fill(encoder, found, path) if name in left]
    return [*untrained, *head_parameters(model)]


def _fill_pyramid_(encoder: Any, found: dict[str, Tensor], path: Path) -> None:
    """Fill a timm pyramid that foveate does not know; a classifier in the file is left out."""
    classifier = str((getattr(encoder, "pretrained_cfg", None) or {}).get("classifier") or "head")
    own = encoder.state_dict()
    given = {name: tensor for name, tensor in found.items() if name in own or not name.startswith(f"{classifier}.")}
    wrong = [
        n for n in sorted(own.keys() | given.keys()) if n not in own or n not in given or own[n].shape != given[n].shape
    ]
    if wrong:
        raise ValueError(
            f"The weights in {path} do not fit this {type(encoder).__name__}: {len(wrong)} names are missing, unknown "
            f"or have another shape, such as {', '.join(wrong[:3])}."
        )
    encoder.load_state_dict(given)
