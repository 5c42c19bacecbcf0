"""Pictures of what a model keeps. ``foveate show`` finds each one by name.

A module in this package registers a picture with one function::

    @picture("tokens")
    def tokens(model, images, *, name="model", blocks=None):
        \"\"\"Which patches each token holds, block by block.\"\"\"

``model`` may be reduced or not, ``images`` are paths, ``name`` is the title above the picture. All other keyword
arguments are the picture's own: the command line passes an option to the pictures that take it. The listing shows the
first line of the docstring.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable

from PIL import Image

Picture = Callable[..., Image.Image]

_PICTURES: dict[str, Picture] = {}


def picture(name: str) -> Callable[[Picture], Picture]:
    """Register a drawing function under ``name``.

    Raises:
        ValueError: If the name is taken.
    """

    def decorate(draw: Picture) -> Picture:
        if name in _PICTURES:
            raise ValueError(f"A picture named {name!r} is already registered.")
        _PICTURES[name] = draw
        return draw

    return decorate


def all_pictures() -> dict[str, Picture]:
    """Return every picture by name. Imports the modules of this package, which register themselves."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    return dict(_PICTURES)
