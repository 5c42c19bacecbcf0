"""The images a comparison looks at: a source by its short text, a tensor, or batches that the caller made."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from foveate.data import Batch, BrokenImage, ImageData, Loader, StreamedData
from foveate.data.source import drawn_from, object_mask
from foveate.evaluation.side_by_side import Pair, first_images
from foveate.tasks import Task


class Shown(NamedTuple):
    """A few images that stand for all, for pictures and masks."""

    images: Tensor  # (B, C, H, W) as the model reads them
    names: tuple[str, ...]
    captions: tuple[str, ...]  # their targets in words, empty if there are none
    masks: tuple[NDArray[np.bool_] | None, ...]  # where the object is, at the size of the stored image


class Images(ABC):
    """Images in batches, from any place on, so that a run can go on where it was interrupted."""

    source: str
    task: Task
    split: str | None = None
    has_targets: bool = False
    note: str = ""
    """Why there are no targets, for people; empty if there are."""
    broken: int = 0
    total: int | None = None
    """How many images there are; None where only the end tells."""

    @abstractmethod
    def batches(self, seen: int = 0, broken: int = 0) -> Iterator[Pair]:
        """Images and targets, unknown ones if ``has_targets`` is False.

        The first ``seen`` images, with ``broken`` ones among them that do not count, have been looked at in whole
        batches, and are passed over.
        """

    @abstractmethod
    def shown(self, number: int) -> Shown | None:
        """Up to ``number`` of them, from all over the data where these can be read in any order."""

    def fingerprint(self) -> str | None:
        """Differs if other images or targets would be measured, as far as names tell; None if nothing does."""
        return None


class FromSource(Images):
    """Images of a folder, a CSV file, shards or a data set, read and prepared as the model wants them."""

    def __init__(
        self,
        data: ImageData | StreamedData,
        source: str,
        task: Task,
        transform: Any,
        batch_size: int,
        *,
        limit: int | None,
        seed: int,
        note: str = "",
        workers: int = 0,
        max_broken: float = 0.01,
    ) -> None:
        self.data = drawn_from(data, limit, seed) if isinstance(data, ImageData) else data
        self.source, self.split, self.task, self.transform, self.limit = source, data.split, task, transform, limit
        self.note, self.has_targets = note, not note
        self.total = len(self.data) if isinstance(self.data, ImageData) else limit
        self._loader = Loader(
            self.data, transform, batch_size, seed=seed, train=False, workers=workers, max_broken=max_broken, rules=task
        )

    @property
    def broken(self) -> int:  # type: ignore[override]
        return self._loader.broken

    def batches(self, seen: int = 0, broken: int = 0) -> Iterator[Pair]:
        if isinstance(self.data, ImageData):  # a batch whose images were all broken was passed too
            yield from map(self._pair, self._loader.epoch(0, -(-(seen + broken) // self._loader.batch_size)))
        else:
            yield from _after(first_images(map(self._pair, self._loader.epoch(0)), self.limit), seen)

    def _pair(self, batch: Batch) -> Pair:
        return Pair(batch.images, batch.targets if self.has_targets else self.task.unknown_like(batch.targets))

    def shown(self, number: int) -> Shown | None:
        if not isinstance(self.data, ImageData):
            return _first(self.batches(), number, self.task)
        found = []
        for index in _spread(len(self.data), number):
            try:
                found.append((self.data.read(index), object_mask(self.data.pictures, index)))
            except BrokenImage:
                continue  # the pass over all images warns of it
        if not found:
            return None
        samples = [sample for sample, _ in found]
        images = torch.stack([self.task.transformed(self.transform, sample)[0] for sample in samples])
        names = tuple(Path(sample.name).name for sample in samples)
        captions = tuple(self.task.caption(sample.target) for sample in samples)
        return Shown(images, names, captions, tuple(mask for _, mask in found))

    def fingerprint(self) -> str:
        known = hashlib.blake2b(repr((self.has_targets, self.data.classes)).encode(), digest_size=8)
        if isinstance(self.data, ImageData):
            for index in range(len(self.data)):
                known.update(self.data.pictures.name(index).encode() + b"\0")
            known.update(b"" if self.data.labels is None else np.asarray(self.data.labels).tobytes())
        return known.hexdigest()


class FromBatches(Images):
    """Batches that the caller made: tensors of images, or pairs of images and targets."""

    def __init__(self, batches: Iterable[Any], limit: int | None, task: Task) -> None:
        self.source, self._given, self.limit, self.task = "images given as tensors", batches, limit, task
        self._first: list[Pair] = []
        self._fitting = True
        self.note = "The images came without labels, so accuracy cannot be measured."

    def batches(self, seen: int = 0, broken: int = 0) -> Iterator[Pair]:
        for pair in _after(first_images(map(self._pair, self._given), self.limit), seen):
            if not self._first:
                self._first.append(pair)
            yield pair

    def shown(self, number: int) -> Shown | None:
        return _first(iter(self._first), number, self.task)

    def _pair(self, batch: Any) -> Pair:
        images, given = batch if isinstance(batch, tuple | list) and len(batch) == 2 else (batch, None)
        if not isinstance(images, Tensor) or images.dim() != 4:
            raise ValueError(
                "Batches are tensors of images (B, C, H, W), or pairs of those and targets, such as labels (B,); got "
                f"{type(images).__name__}{f' of shape {tuple(images.shape)}' if isinstance(images, Tensor) else ''}."
            )
        targets = self.task.read_targets(given, len(images))
        why = "" if given is None else self.task.why_unusable(targets)
        if why:  # for good: earlier targets may have meant something else too
            self._fitting, self.has_targets, self.note = False, False, f"Accuracy is left out: {why}."
            targets = self.task.unknown_like(targets)
        elif given is not None and self._fitting and self.task.any_known(targets):
            self.has_targets, self.note = True, ""
        return Pair(images, targets)


def from_tensors(data: Any, batch_size: int, limit: int | None, task: Task) -> FromBatches:
    """A tensor of images, cut into batches, or an iterable of batches as it is."""
    if isinstance(data, Tensor):
        if data.dim() != 4 or not len(data):
            raise ValueError(f"A tensor of images is (N, C, H, W), N above 0; got shape {tuple(data.shape)}.")
        return FromBatches(data.split(batch_size), limit, task)
    if not isinstance(data, Iterable):
        raise TypeError(
            "data is a path or source text, a tensor of images, or batches of (images, targets); got "
            f"{type(data).__name__}."
        )
    return FromBatches(data, limit, task)


def _after(batches: Iterator[Pair], seen: int) -> Iterator[Pair]:
    passed = 0
    for pair in batches:
        if passed >= seen:
            yield pair
        passed += len(pair.images)


def _first(batches: Iterator[Pair], number: int, task: Task) -> Shown | None:
    for images, targets in batches:
        images = images[:number].cpu()
        names = tuple(f"image {i + 1}" for i in range(len(images)))
        captions = tuple(task.caption(targets[i]) for i in range(len(images)))
        return Shown(images, names, captions, (None,) * len(images))
    return None


def _spread(count: int, number: int) -> list[int]:
    """Up to ``number`` of ``count`` positions, evenly spaced."""
    return [i * count // min(number, count) for i in range(min(number, count))]
