"""Which models are supported, and why others are not: every ViT-like name of timm, and the classes of transformers.

A timm model is built without values and with two blocks, where its builder takes a depth: blocks of one model are alike
in all that decides. Where its class alone decides, it is not built at all.
"""

from __future__ import annotations

import inspect as python_inspect
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from typing import Any, Literal
from unittest import mock

import torch
from torch import nn

from foveate.adapters.family import UnsupportedModel
from foveate.adapters.registry import all_families, inspect

PLAIN = (
    *("beit", "deepseek_vit", "deit", "eva", "gemma4_vit", "naflexvit", "qwen3_vit", "vision_transformer"),
    *("vision_transformer_hybrid", "vision_transformer_relpos", "vitamin"),
)
"""Modules of timm with plain transformers; those with other transformers are in ``timm_refused``."""


@dataclass(frozen=True)
class ModelState:
    """Whether foveate supports a model."""

    name: str
    library: str
    group: str
    """Module of timm, or the family's title."""
    state: Literal["supported", "refused"]
    reason: str
    """The family's title of a supported model, or why it is refused."""


def survey(pattern: str | None = None) -> list[ModelState]:
    """The state of every ViT-like name of timm and of the classes of other libraries, by name.

    Args:
        pattern: only names that contain it, or match it if it has ``*``, in capitals or not; None for all.
    """
    return [*_timm_states(pattern), *_class_states(pattern)]


def vit_like_names() -> dict[str, str]:
    """Every ViT-like name of the installed timm, and its module."""
    import timm

    from foveate.adapters.timm_refused import REASONS

    return {name: module for module in (*PLAIN, *REASONS) for name in timm.list_models(module=module)}


def _timm_states(pattern: str | None) -> Iterator[ModelState]:
    for name, module in vit_like_names().items():
        if _fits(name, pattern):
            state, reason = _timm_state(name, module)
            yield ModelState(name, "timm", module, state, reason)


def _timm_state(name: str, module: str) -> tuple[Literal["supported", "refused"], str]:
    from foveate.adapters.timm_refused import REASONS

    try:
        family = inspect(_decided_by_class(name) or _without_values(name))
        family.require_reducible()
    except UnsupportedModel as error:
        return "refused", REASONS.get(module) or _short(str(error))
    return "supported", family.title


class _Found(Exception):
    def __init__(self, kind: Any) -> None:
        self.kind = kind


def _decided_by_class(name: str) -> nn.Module | None:
    """A blank object of the model's class if that is enough to refuse it; None if the model has to be built."""
    import timm

    from foveate.adapters.timm_refused import TimmRefused

    entry = timm.model_entrypoint(name)
    module = sys.modules[entry.__module__]

    def stop(kind: Any, *args: Any, **options: Any) -> None:
        raise _Found(kind)

    if not hasattr(module, "build_model_with_cfg") or module.__name__.rsplit(".", 1)[-1] in PLAIN:
        return None
    try:
        with mock.patch.object(module, "build_model_with_cfg", stop), torch.device("meta"):
            entry()
    except _Found as found:
        blank: Any = found.kind.__new__(found.kind) if python_inspect.isclass(found.kind) else None
        return blank if blank is not None and TimmRefused.matches(blank) else None
    return None


def _without_values(name: str) -> nn.Module:
    import timm

    with torch.device("meta"):
        try:
            return timm.create_model(name, depth=2)
        except (TypeError, AssertionError):  # no depth, or other options that go with it
            return timm.create_model(name)


def _class_states(pattern: str | None) -> Iterator[ModelState]:
    """The classes that families of transformers name, and torchvision's ViTs."""
    for family in all_families():
        for name in getattr(family, "known_classes", tuple)():
            if _fits(name, pattern):
                yield ModelState(name, family.library, family.title, "supported", family.title)
        for name, reason in getattr(family, "refused_classes", dict)().items():
            if _fits(name, pattern):
                yield ModelState(name, family.library, family.title, "refused", reason)


def _fits(name: str, pattern: str | None) -> bool:
    if pattern is None:
        return True
    name, pattern = name.lower(), pattern.lower()  # timm writes small letters, transformers does not
    return fnmatch(name, pattern) if "*" in pattern else pattern in name


def _short(message: str) -> str:
    """A refusal without the list of what is supported."""
    return message.split(" Supported: ")[0].rstrip(".")
