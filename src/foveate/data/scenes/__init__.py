"""Scenes: images drawn by foveate, for demonstrations and tests without other images.

``scenes:`` shows one object of ten kinds, ``scenes:counting`` many small objects to count, ``scenes:objects`` one to
five with boxes, masks and keypoints. A scene depends only on (seed, split, index), can be drawn at any resolution, and
has masks, so that one can measure how many of a model's tokens lie on what the label is about.
"""

from __future__ import annotations

from foveate.data.images import DataError
from foveate.data.labels import Request
from foveate.data.scenes.counting import NUMBERS, CountingScenes, counting_scene
from foveate.data.scenes.kinds import COUNTS, KINDS, SIZE, SMALLEST, Scene, Scenes, scene
from foveate.data.scenes.objects import ObjectScenes
from foveate.data.source import ImageData
from foveate.data.splits import choose_split

__all__ = [
    "COUNTS",
    "KINDS",
    "NUMBERS",
    "SIZE",
    "SMALLEST",
    "CountingScenes",
    "Scene",
    "Scenes",
    "counting_scene",
    "open_scenes",
    "scene",
]

OPTIONS = ("count", "size", "seed")
SPECIAL: dict[str, type[Scenes | ObjectScenes]] = {"objects": ObjectScenes, "counting": CountingScenes}
"""Other scenes, by the word that comes first."""


def open_scenes(text: str, request: Request) -> ImageData:
    """Open scenes with the options in ``text``: ``objects,count=500,size=96,seed=1``, each of them optional."""
    first, _, rest = text.partition(",")
    kind = SPECIAL.get(first.strip(), Scenes)
    given = [_option(part) for part in (text if kind is Scenes else rest).split(",") if part.strip()]
    options = dict(given)
    if len(options) < len(given):
        raise DataError(f"scenes:{text} sets an option twice. Set it once.")
    split = choose_split(request.split, kind.counts, kind.source)
    return kind(split, **{"count": kind.counts[split], **options}).as_data(request)


def _option(text: str) -> tuple[str, int]:
    name, _, value = (part.strip() for part in text.partition("="))
    if name not in OPTIONS:
        raise DataError(f"scenes: has no option {name!r}. Write scenes:count=500,size=96,seed=1, or a part of it.")
    try:
        return name, int(value)
    except ValueError:
        raise DataError(f"scenes: {name} takes a whole number; got {value!r}.") from None
