"""The base of dense heads, and their registry: ``ENCODER+HEAD`` names a model, such as ``clustr_small+upernet``."""

from __future__ import annotations

import inspect
import itertools
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

from torch import Tensor, nn

from foveate.methods.validation import check_sizes
from foveate.registries import Registry


class Levels(NamedTuple):
    """The feature maps that an encoder gives, from fine to coarse."""

    channels: tuple[int, ...]
    strides: tuple[int, ...]
    """Pixels from one feature to the next."""


class Head(nn.Module, ABC):
    """What turns the feature maps of an encoder into a dense prediction.

    Subclasses take ``levels`` and ``num_classes``, then options of their own by keyword, which they pass to this
    constructor: ``fv.save`` writes them, and ``rebuilt`` makes a head with the same ones.
    """

    name: ClassVar[str]
    """Set by ``@register_head``."""
    task: ClassVar[str]
    """The task that it is for, as in ``foveate.tasks``."""
    default_classes: ClassVar[int]
    """Classes of the paper's data, where a caller names no number."""
    blocks: Sequence[int] = (-1,)
    """Blocks of a plain ViT whose features it reads, counted from 0 or from the end."""

    def __init__(self, levels: Levels, num_classes: int, **options: Any) -> None:
        super().__init__()
        check_sizes(num_classes=num_classes)
        self.levels, self.num_classes, self.options = levels, num_classes, options

    @abstractmethod
    def forward(self, maps: list[Tensor], size: tuple[int, int], *args: Any, **given: Any) -> Any:
        """Predict from feature maps (B, C, h, w), one for each of ``levels``.

        Args:
            maps: the features, from fine to coarse.
            size: height and width of the images.
            args: none; subclasses name their own arguments.
            given: what a caller passed to the model besides the images, such as ``targets``. Heads for segmentation
                take ``upsample``: False leaves logits at the finest stride.
        """

    def counted(self, maps: list[Tensor], size: tuple[int, int]) -> Any:
        """Run the layers that ``fv.cost`` counts; a head whose work depends on what an image shows fixes it here."""
        return self(maps, size)

    @classmethod
    def option_names(cls) -> list[str]:
        """Names of the options that this head takes."""
        return [name for name in inspect.signature(cls).parameters if name not in ("levels", "num_classes")]

    def rebuilt(self, num_classes: int | None = None) -> Head:
        """A new head with the same options, for other classes if ``num_classes`` is given."""
        return type(self)(self.levels, num_classes or self.num_classes, **self.options)


register_head: Registry[type[Head]] = Registry("dense head", "foveate.models.dense")
"""Class decorator that registers a head by name."""
find_head = register_head.find
head_names = register_head.names


def require_pyramid(head: str, levels: Levels, least: int = 2) -> None:
    """Raise a ValueError unless strides double from level to level, and there are at least ``least`` levels."""
    strides = levels.strides
    doubling = all(coarse == 2 * fine for fine, coarse in itertools.pairwise(strides))
    if len(strides) < least or not doubling:
        raise ValueError(
            f"{head} needs at least {least} feature maps whose strides double, such as 4, 8, 16, 32; this encoder "
            f"gives {', '.join(map(str, strides))}. Use linear or simple-pyramid, or a pyramid such as clustr_small."
        )
