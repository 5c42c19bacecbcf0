"""Scenes of one split by number, whatever they show. They are drawn on demand; nothing is stored."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from PIL import Image

from foveate.data.images import DataError
from foveate.data.labels import Request
from foveate.data.scenes.draws import Draws
from foveate.data.source import ImageData
from foveate.data.splits import choose_split


@dataclass(frozen=True)
class DrawnScenes(ABC):
    """The scenes of one split, by number."""

    split: str
    count: int
    size: int
    seed: int

    source: ClassVar[str]
    """What a user writes: ``scenes:`` or ``scenes:objects``."""
    counts: ClassVar[Mapping[str, int]]
    """Splits and their default number of scenes."""
    smallest: ClassVar[int]
    """Smallest side in pixels at which kinds can be told apart."""
    stream: ClassVar[tuple[int, ...]] = ()
    """Keeps the random numbers apart from those of other kinds of scenes."""

    @abstractmethod
    def draw(self, index: int) -> Any:
        """Draw a scene; its ``image`` is the picture."""

    @abstractmethod
    def as_data(self, request: Request | None = None) -> ImageData:
        """The scenes as data for a ``Loader``."""

    def __post_init__(self) -> None:
        self.check(self.size, self.seed)
        choose_split(self.split, self.counts, self.source)
        if self.count < 1:
            raise DataError(f"{self.source} count must be at least 1, got {self.count}.")

    @classmethod
    def check(cls, size: int, seed: int) -> None:
        """Raise ``DataError`` for a size or a seed that cannot be drawn."""
        if size < cls.smallest:
            raise DataError(f"{cls.source} size, the side in pixels, must be at least {cls.smallest}, got {size}.")
        if seed < 0:
            raise DataError(f"{cls.source} seed must be at least 0, got {seed}.")

    @classmethod
    def draws_of(cls, index: int, split: str, size: int, seed: int) -> Draws:
        """The random numbers of one scene.

        Raises:
            DataError: if an argument is out of range or there is no such split.
        """
        cls.check(size, seed)
        if index < 0:
            raise DataError(f"Scenes count from 0, got index={index}.")
        names = tuple(cls.counts)
        return Draws(seed, names.index(choose_split(split, names, cls.source)), index, *cls.stream)

    def __len__(self) -> int:
        return self.count

    def name(self, index: int) -> str:
        comma = "" if self.source.endswith(":") else ","
        return f"{self.source}{comma}size={self.size},seed={self.seed}/{self.split}[{index}]"

    def open(self, index: int) -> Image.Image:
        return self.scene(index).image

    def scene(self, index: int) -> Any:
        """The scene with this number, with its labels and masks."""
        if not 0 <= index < self.count:
            raise IndexError(f"There are {self.count} scenes, got index {index}.")
        return self.draw(index)
