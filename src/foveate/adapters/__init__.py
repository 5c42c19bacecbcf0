"""The only code that reaches into models of timm, transformers and torchvision."""

from __future__ import annotations

import importlib
import sys

from torch import nn

from foveate.adapters.base import (
    CHILD,
    Adapter,
    Keeper,
    Reduced,
    Reduction,
    UnitQK,
    UnsupportedModel,
    reduced_class,
    reduction_of,
)
from foveate.adapters.class_token import drop_class_token
from foveate.adapters.dense import Trace, spread, spread_to_patches
from foveate.adapters.engine import Encoded, Step, encode, recording
from foveate.adapters.timm_backbone import BACKBONE
from foveate.adapters.timm_vit import TIMM
from foveate.adapters.torchvision_vit import TORCHVISION
from foveate.adapters.unit_qk import UnitScales

__all__ = [
    "CHILD",
    "Adapter",
    "Encoded",
    "Keeper",
    "Reduced",
    "Reduction",
    "Step",
    "Trace",
    "UnitQK",
    "UnitScales",
    "UnsupportedModel",
    "all_adapters",
    "drop_class_token",
    "encode",
    "find_adapter",
    "find_keeper",
    "keeper_for",
    "recording",
    "reduced_class",
    "reduction_of",
    "spread",
    "spread_to_patches",
]


def all_adapters() -> tuple[Adapter, ...]:
    """Every adapter whose library is there. transformers is asked for only where someone imported it."""
    if "transformers" not in sys.modules:
        return TIMM, TORCHVISION
    from foveate.adapters.hf_vit import HF

    return TIMM, HF, TORCHVISION


def keeper_for(library: str) -> Keeper:
    """The keeper of models of ``library``, which is imported where need be."""
    if library == "transformers":
        importlib.import_module("transformers")
    for keeper in (*all_adapters(), BACKBONE):
        if keeper.library == library:
            return keeper
    raise ValueError(f"foveate has no adapter for the library {library!r}.")


def find_keeper(model: nn.Module) -> Keeper:
    """Who knows ``model``: its adapter, or, for a backbone that cannot be reduced, its keeper."""
    return BACKBONE if isinstance(model, nn.Module) and BACKBONE.matches(model) else find_adapter(model)


def find_adapter(model: nn.Module) -> Adapter:
    """The adapter that understands ``model``; ``UnsupportedModel`` where there is none."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"A model is a torch.nn.Module; got {type(model).__name__}: {model!r:.80}.")
    if isinstance(model, Reduced):
        return model._foveate_adapter
    for adapter in all_adapters():
        if adapter.matches(model):
            adapter.check(model)
            return adapter
    if BACKBONE.matches(model):
        raise UnsupportedModel(f"{type(model).__name__} decides itself which tokens it attends to; it is not reduced.")
    found = f"{type(model).__module__}.{type(model).__qualname__}"
    raise UnsupportedModel(f"foveate does not know {found}. Supported: {_families()}.{_hint(model)}")


def _families() -> str:
    return "; ".join((TIMM.family, "transformers ViT, DeiT, DINOv2, CLIP vision, SigLIP vision", TORCHVISION.family))


def _hint(model: nn.Module) -> str:
    """Point at a part of ``model`` that could be reduced instead."""
    for name, child in model.named_modules():
        if name and any(adapter.matches(child) for adapter in all_adapters()):
            return f" Its part {name!r} ({type(child).__name__}) may be reduced by itself: reduce_(model.{name}, ...)."
    return ""
