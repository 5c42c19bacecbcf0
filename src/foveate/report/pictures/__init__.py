"""Pictures of what a model keeps, each a function that ``foveate show`` finds by name.

A module in this package registers a picture with one function::

    @picture("tokens")
    def tokens(model: nn.Module, request: PictureRequest) -> Image.Image:
        \"\"\"Which patches each token holds, block by block.\"\"\"

``model`` is reduced as the caller asked, or untouched where nothing was asked. The docstring's first line is what
the listing says.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from PIL import Image
from torch import nn


@dataclass(frozen=True)
class PictureRequest:
    """What to draw, apart from the model."""

    images: Sequence[Path]
    name: str = "model"
    """What the model is called above the picture."""
    blocks: Sequence[int] | None = None
    """Blocks to show; None leaves the choice to the picture."""
    channels: int = 6
    """Channels to show of each block."""
    stage: int = 3
    """Stage to show, from 1, of a model that has stages."""


Picture = Callable[[nn.Module, PictureRequest], Image.Image]

_PICTURES: dict[str, Picture] = {}


def picture(name: str) -> Callable[[Picture], Picture]:
    """Make a drawing function known by ``name``."""

    def decorate(draw: Picture) -> Picture:
        if name in _PICTURES:
            raise ValueError(f"Two pictures are called {name!r}.")
        _PICTURES[name] = draw
        return draw

    return decorate


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """``model`` in evaluation mode, without dropout; every module gets its own mode back."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


def all_pictures() -> dict[str, Picture]:
    """Every picture by name. Imports the modules of this package, which register themselves."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    return dict(_PICTURES)
