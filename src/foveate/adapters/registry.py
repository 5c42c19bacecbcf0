"""All families, and the family of a model.

Files in this folder that start with a library's name hold its families. They are imported once the library is.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections.abc import Mapping
from keyword import iskeyword
from typing import Any, TypeVar

from torch import nn

from foveate.adapters.family import Family, UnsupportedModel
from foveate.adapters.inside import admit_
from foveate.adapters.reduced import CHILD, Reduced, Reducer, check_whole, copy_root, detach_, reduced_class
from foveate.methods.learned import MaskTrainedMethod
from foveate.methods.options import methods_in
from foveate.methods.validation import shown, shown_error
from foveate.reductions import Reduction

FILES = {"timm": "timm_", "transformers": "hf_", "torchvision": "torchvision_"}
"""How the names of each library's files start."""

F = TypeVar("F", bound=type[Family])
_FAMILIES: list[type[Family]] = []
_IMPORTED: set[str] = set()


def register_family(family: F) -> F:
    """Class decorator that registers a family. Later families are tried first, so they can be more specific."""
    _FAMILIES.insert(0, family)
    return family


def all_families() -> tuple[type[Family], ...]:
    """Every family whose library has been imported; no model can belong to any other."""
    for library, beginning in FILES.items():
        if library in sys.modules and library not in _IMPORTED:
            _IMPORTED.add(library)
            for module in pkgutil.iter_modules(sys.modules[__package__].__path__):
                if module.name.startswith(beginning):
                    importlib.import_module(f"{__package__}.{module.name}")
    return tuple(_FAMILIES)


def inspect(model: nn.Module) -> Family:
    """Describe ``model``: its family, bound to it.

    Print it to see tokens, grid, what the head reads, and whether the model can be reduced. Its attributes answer the
    same questions in code: ``grid``, ``num_prefix``, ``has_cls``, ``image_size``, ``num_classes``, ``reduction``.

    Raises:
        UnsupportedModel: if no family supports the model. The message names what was found and what is supported.
        TypeError: if it is not a ``torch.nn.Module``.
    """
    _check_module(model)
    if isinstance(model, Reduced):
        return model._family
    for family in all_families():
        if family.matches(model):
            bound = family(model)
            bound.check()
            if not bound.refusal and not len(bound.blocks):
                raise UnsupportedModel(f"This {type(model).__name__} has no blocks, so no tokens can be reduced.")
            return bound
    found = f"{type(model).__module__}.{type(model).__qualname__}"
    raise UnsupportedModel(f"foveate does not support {found}. Supported: {supported_titles()}.{_hint(model)}")


def rebuild(architecture: Mapping[str, Any]) -> nn.Module:
    """The untrained, unreduced model that a family described; its library is imported."""
    if not isinstance(architecture, Mapping) or not isinstance(architecture.get("library"), str):
        raise ValueError(
            f"The saved model's architecture must be a table that names a library, got {shown(architecture)}."
        )
    library = architecture["library"]
    if library in FILES:
        importlib.import_module(library)
    for family in all_families():
        if family.can_rebuild(architecture):
            try:
                return family.rebuild(architecture)
            except UnsupportedModel:
                raise
            except Exception as error:  # a library raises anything for options that it cannot build
                raise ValueError(
                    f"The saved model cannot be built from its architecture {shown(dict(architecture))}: "
                    f"{type(error).__name__}: {shown_error(error)}"
                ) from error
    if library in {family.library for family in all_families()}:
        raise UnsupportedModel(f"The saved model is a {architecture.get('class')!r}, which foveate does not know.")
    raise ValueError(f"foveate has no family for the library {library!r}.")


def attach_(model: Any, reduction: Reduction) -> Any:
    """Apply ``reduction`` to ``model`` in place. After any error the model is unchanged."""
    family = inspect(model)
    reduction = family.inside(reduction)
    if family.path:
        attach_(model.get_submodule(family.path), reduction)
        return model
    if isinstance(model, Reduced):
        raise ValueError(
            f"This model is already reduced by {model.foveate.method!r}, {model.foveate.schedule!r}. "
            "Call restore_(model) first."
        )
    family.require_reducible()
    check_whole(model, "Reduce it before fully_shard")
    if hasattr(model, CHILD):
        raise ValueError(
            f"The model already has an attribute {CHILD!r}, which foveate needs for its own module. Rename it."
        )
    parts = [] if reduction.method is None else methods_in(reduction.method)
    if not family.has_cls and (ranking := [part for part in parts if part.needs_class_token]):
        raise ValueError(
            f"{ranking[-1].name} ranks by class-token attention; this model has no class token. "
            "Use ToMe, or TopK, which then ranks by the attention a token receives."
        )
    shape = family.shape()
    if reduction.exact_last_block and shape.head_reads_patches:
        raise ValueError("exact_last_block needs a head that reads only prefix tokens; this one reads patch tokens.")
    if reduction.exact_last_block and not shape.num_prefix:
        raise ValueError("exact_last_block needs a prefix token (class token); this model has none.")
    _check_options(family, reduction)
    reducer = Reducer(reduction, shape)
    reference = next(model.parameters())
    model.add_module(CHILD, reducer.to(reference.device, reference.dtype).train(model.training))
    model.__class__ = reduced_class(type(family), type(model))
    admit_(family.blocks)
    return model


def reduced_part(model: nn.Module) -> Any:
    """``model`` if it is reduced itself, or the reduced encoder inside it; None if there is none."""
    _check_module(model)
    if isinstance(model, Reduced):
        return model
    family = next((family for family in all_families() if family.matches(model)), None)
    path = "" if family is None else family(model).path
    return reduced_part(model.get_submodule(path)) if path else None  # an encoder may have one inside, too


def reducer_of(model: nn.Module) -> Reducer | None:
    """The child module of a reduced model, or of the reduced encoder inside it; None if ``model`` is not reduced."""
    part = reduced_part(model)
    return None if part is None else part.foveate


def copy_reducible(model: Any) -> Any:
    """A second model over the same modules, which can be reduced and restored without changing ``model``."""
    return copy_root(model, inspect(model).path)


def copy_unreduced(model: Any) -> Any:
    """A second, unreduced model over the modules of ``model``."""
    copied = copy_reducible(model)
    if (part := reduced_part(copied)) is not None:
        detach_(part, shared=True)
    return copied


def _check_options(family: Family, reduction: Reduction) -> None:
    """Raise ``ValueError`` for options that have no meaning for this model or method."""
    if reduction.positions == "mean" and not family.positions_between_patches:
        raise ValueError(
            f"positions='mean' needs blocks that compute positions from coordinates, as rotary ones do; {family.title} "
            "has none. Leave it out."
        )
    if reduction.output == "grid-attention" and isinstance(reduction.method, MaskTrainedMethod):
        raise ValueError(
            f"{reduction.method.name} masks tokens in training, which output='grid-attention' cannot follow. "
            "Use output='grid'."
        )


def _check_module(model: object) -> None:
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}: {shown(model, 80)}.")


def supported_titles() -> str:
    """The families whose models can be reduced, for messages."""
    known = [family.title for family in reversed(all_families()) if family.mixin is not None]
    others = [f"families of {library}" for library in FILES if library not in sys.modules]
    return "; ".join([*known, *others])


def _hint(model: nn.Module) -> str:
    """Suggest a part of ``model`` that could be reduced instead."""
    for name, child in model.named_modules():
        if name and any(family.mixin is not None and family.matches(child) for family in all_families()):
            return f" Its part {name!r} ({type(child).__name__}) may be supported: reduce_({_path(name)}, ...)."
    return ""


def _path(name: str) -> str:
    """Python code for a part: ``model.encoder[0]``, also if its name is a number or not a Python name."""
    if not all(part.isdecimal() or (part.isidentifier() and not iskeyword(part)) for part in name.split(".")):
        return f"model.get_submodule({name!r})"
    return "model" + "".join(f"[{part}]" if part.isdecimal() else f".{part}" for part in name.split("."))
