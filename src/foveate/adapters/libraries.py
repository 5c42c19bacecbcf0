"""How each library builds a model by name: plain timm names, ``hf:NAME-OR-PATH``, ``torchvision:NAME``."""

from __future__ import annotations

import difflib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, NamedTuple

from torch import nn

from foveate.methods.validation import shown_error

ImageSize = tuple[int | None, int, int]
"""Channels (None: as in the model), height, width."""


class Built(NamedTuple):
    """A model, and the names of its parameters without trained weights."""

    model: nn.Module
    untrained: tuple[str, ...]


class Library(ABC):
    """A library that builds models by name."""

    prefix: ClassVar[str] = ""
    """Prefix of its names, with the colon."""
    brings_architecture: ClassVar[bool] = False
    """Whether a name stands for a complete model that options cannot change."""
    always_trained: ClassVar[bool] = False
    """Whether models always come with trained weights."""

    @abstractmethod
    def build(self, name: str, pretrained: bool, options: dict[str, Any]) -> Built:
        """Build the model called ``name`` (without the prefix); ``options`` go to the library."""

    def size_options(self, image_size: ImageSize) -> dict[str, Any]:
        """``options`` that set the image size; empty if the library has none."""
        return {}

    def class_options(self, num_classes: int, pretrained: bool) -> dict[str, Any]:
        """``options`` that set the number of classes; empty if the classifier is replaced afterwards."""
        return {"num_classes": num_classes}


class TimmLibrary(Library):
    def build(self, name: str, pretrained: bool, options: dict[str, Any]) -> Built:
        import timm

        if not timm.is_model(name):
            raise ValueError(unknown_name("timm model", name, timm.list_models(), ", and no folder of that name"))
        model = _create(lambda: timm.create_model(name, pretrained=pretrained, **options), name)
        if not pretrained:
            return Built(model, _all_names(model))
        known = getattr(model, "pretrained_cfg", None) or {}
        own = getattr(model, "num_classes", None)
        if own and known.get("num_classes") not in (None, own):  # timm does not load a classifier that does not fit
            heads = known.get("classifier") or ()
            names = (heads,) if isinstance(heads, str) else tuple(heads)
            return Built(model, tuple(n for n, _ in model.named_parameters() if n.startswith(names)))
        return Built(model, ())

    def size_options(self, image_size: ImageSize) -> dict[str, Any]:
        channels, height, width = image_size
        return {"img_size": (height, width)} | ({} if channels is None else {"in_chans": channels})


class TorchvisionLibrary(Library):
    prefix = "torchvision:"

    def build(self, name: str, pretrained: bool, options: dict[str, Any]) -> Built:
        import torchvision

        known = torchvision.models.list_models(module=torchvision.models)
        if name not in known:
            raise ValueError(unknown_name("torchvision model", name, known))
        weights = "DEFAULT" if pretrained else None
        model = _create(lambda: torchvision.models.get_model(name, weights=weights, **options), name)
        return Built(model, () if pretrained else _all_names(model))

    def size_options(self, image_size: ImageSize) -> dict[str, Any]:
        _, height, width = image_size
        if height != width:
            raise ValueError(f"torchvision builds models for square images only, got {height}x{width}.")
        return {"image_size": height}

    def class_options(self, num_classes: int, pretrained: bool) -> dict[str, Any]:
        return {}  # its weights fix the head, which a number of classes would contradict


class TransformersLibrary(Library):
    prefix = "hf:"
    brings_architecture = True
    always_trained = True

    def build(self, name: str, pretrained: bool, options: dict[str, Any]) -> Built:
        try:
            from transformers import AutoConfig, AutoModel, AutoModelForImageClassification
        except ImportError as error:
            raise ValueError("hf: models need transformers: pip install foveate[hf]") from error
        classes = options.get("num_classes")
        labels = {} if classes is None else {"num_labels": classes, "ignore_mismatched_sizes": True}
        how: dict[str, Any] = {"trust_remote_code": False, "output_loading_info": True}
        try:
            stored = AutoConfig.from_pretrained(name, trust_remote_code=False).architectures or []
            plain = classes is None and stored and not any("Classification" in kind for kind in stored)
            try:
                kind = AutoModel if plain else AutoModelForImageClassification  # no classifier that nobody trained
                model, info = kind.from_pretrained(name, **how, **labels)
            except ValueError:  # transformers has no classifier for this kind of model
                model, info = AutoModel.from_pretrained(name, **how)
        except Exception as error:  # a damaged or missing checkpoint raises many kinds
            raise ValueError(f"hf:{name} cannot be loaded: {type(error).__name__}: {shown_error(error)}") from error
        return Built(model, tuple(sorted({*info["missing_keys"], *(key for key, *_ in info["mismatched_keys"])})))


TIMM, TORCHVISION, TRANSFORMERS = TimmLibrary(), TorchvisionLibrary(), TransformersLibrary()
LIBRARIES: tuple[Library, ...] = (TRANSFORMERS, TORCHVISION, TIMM)


def library_for(name: str) -> tuple[Library, str]:
    """The library that a name belongs to, and the name without its prefix; a name without a prefix is timm's."""
    for library in LIBRARIES:
        if name.startswith(library.prefix):
            return library, name.removeprefix(library.prefix)
    raise AssertionError("timm's prefix is empty")


def unknown_name(kind: str, name: str, known: Iterable[str], also: str = "") -> str:
    """Error message for an unknown name, with close matches; ``also`` ends its first sentence."""
    close = difflib.get_close_matches(name, list(known), n=4)
    return f"There is no {kind} {name!r}{also}." + (f" Did you mean {', '.join(close)}?" if close else "")


def _create(create: Callable[[], nn.Module], name: str) -> nn.Module:
    """Call ``create`` and turn a library's errors about unsupported options into a ``ValueError``."""
    try:
        return create()
    except Exception as error:  # a library raises anything for options that it cannot build
        reason = f"{type(error).__name__}: {shown_error(error)}"
        raise ValueError(f"{name} cannot be built with these options: {reason}") from error


def _all_names(model: nn.Module) -> tuple[str, ...]:
    return tuple(name for name, _ in model.named_parameters())
