"""The images a comparison looks at: a source by its short text, a tensor, or batches that the caller made."""

from __future__ import annotations

import dataclasses
import hashlib
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from foveate.data import Batch, BrokenImage, DataError, ImageData, Loader, StreamedData, open_data
from foveate.data.source import Pictures
from foveate.data.splits import Undivided

DEFAULT_SPLITS = ("val", "all")
"""Tried one after the other: validation images, or all of data that are not divided."""


class Shown(NamedTuple):
    """A few images that stand for all, for pictures and masks."""

    images: Tensor  # (B, C, H, W) as the model reads them
    names: tuple[str, ...]
    labels: tuple[int, ...]  # -1 where there is none
    masks: tuple[NDArray[np.bool_] | None, ...]  # where the object is, at the size of the stored image


class Images(ABC):
    """Images in batches, from any place on, so that a run can go on where it was interrupted."""

    source: str
    split: str | None = None
    labelled: bool = False
    note: str = ""
    """Why there are no labels, for people; empty where there are."""
    broken: int = 0
    classes: tuple[str, ...] | None = None
    total: int | None = None
    """How many images there are; None where only the end tells."""

    @abstractmethod
    def batches(self, seen: int = 0, broken: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """(images, labels); a label is -1 where there is none.

        The first ``seen`` images, with ``broken`` ones among them that do not count, have been looked at in whole
        batches, and are passed over.
        """

    @abstractmethod
    def shown(self, number: int) -> Shown | None:
        """Up to ``number`` of them, from all over the data where these can be read in any order."""

    def class_name(self, label: int) -> str | None:
        """What a label means; None where that is not known."""
        return self.classes[label] if self.classes is not None and 0 <= label < len(self.classes) else None

    def fingerprint(self) -> str | None:
        """Differs where other images or labels would be measured, as far as names tell; None where nothing does."""
        return None


class FromSource(Images):
    """Images of a folder, a CSV file, shards or a data set, read and prepared as the model wants them."""

    def __init__(
        self,
        data: ImageData | StreamedData,
        source: str,
        transform: Callable[[Image.Image], Tensor],
        batch_size: int,
        *,
        limit: int | None,
        seed: int,
        note: str = "",
        workers: int = 0,
        max_broken: float = 0.01,
    ) -> None:
        self.data = sample_of(data, limit, seed) if isinstance(data, ImageData) else data
        self.source, self.split, self.transform, self.limit = source, data.split, transform, limit
        self.note, self.labelled, self.classes = note, not note, data.classes
        self.total = len(self.data) if isinstance(self.data, ImageData) else limit
        self._loader = Loader(
            self.data, transform, batch_size, seed=seed, train=False, workers=workers, max_broken=max_broken
        )

    @property
    def broken(self) -> int:  # type: ignore[override]
        return self._loader.broken

    def batches(self, seen: int = 0, broken: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        if isinstance(self.data, ImageData):  # a batch whose images were all broken was passed too
            yield from map(self._pair, self._loader.epoch(0, -(-(seen + broken) // self._loader.batch_size)))
        else:
            yield from _after(_limited(map(self._pair, self._loader.epoch(0)), self.limit), seen)

    def _pair(self, batch: Batch) -> tuple[Tensor, Tensor]:
        return batch.images, batch.labels if self.labelled else torch.full_like(batch.labels, -1)

    def shown(self, number: int) -> Shown | None:
        if not isinstance(self.data, ImageData):
            return _first(self.batches(), number)
        found = []
        for index in _spread(len(self.data), number):
            try:
                found.append((self.data.read(index), _mask(self.data.pictures, index)))
            except BrokenImage:
                continue  # the pass over all images warns of it
        if not found:
            return None
        samples = [sample for sample, _ in found]
        images = torch.stack([self.transform(sample.image) for sample in samples])
        names = tuple(Path(sample.name).name for sample in samples)
        labels = tuple(sample.label for sample in samples)
        return Shown(images, names, labels, tuple(mask for _, mask in found))

    def fingerprint(self) -> str:
        known = hashlib.blake2b(repr((self.labelled, self.classes)).encode(), digest_size=8)
        if isinstance(self.data, ImageData):
            for index in range(len(self.data)):
                known.update(self.data.pictures.name(index).encode() + b"\0")
            known.update(b"" if self.data.labels is None else np.asarray(self.data.labels).tobytes())
        return known.hexdigest()


class FromBatches(Images):
    """Batches that the caller made: tensors of images, or pairs of images and labels."""

    def __init__(self, batches: Iterable[Any], limit: int | None, num_classes: int | None) -> None:
        self.source, self._given, self.limit, self.num_classes = "images given as tensors", batches, limit, num_classes
        self._first: list[tuple[Tensor, Tensor]] = []
        self._fitting = True
        self.note = "The images came without labels, so accuracy cannot be measured."

    def batches(self, seen: int = 0, broken: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        for images, labels in _after(_limited(map(self._pair, self._given), self.limit), seen):
            if not self._first:
                self._first.append((images, labels))
            yield images, labels

    def shown(self, number: int) -> Shown | None:
        return _first(iter(self._first), number)

    def _pair(self, batch: Any) -> tuple[Tensor, Tensor]:
        images, labels = batch if isinstance(batch, tuple | list) and len(batch) == 2 else (batch, None)
        if not isinstance(images, Tensor) or images.dim() != 4:
            raise ValueError(
                "Batches are tensors of images (B, C, H, W), or pairs of those and labels (B,); got "
                f"{type(images).__name__}{f' of shape {tuple(images.shape)}' if isinstance(images, Tensor) else ''}."
            )
        if labels is None:
            return images, torch.full((len(images),), -1)
        labels = torch.as_tensor(labels).reshape(-1).long()
        if self.num_classes is not None and int(labels.max()) >= self.num_classes:
            self._fitting, self.labelled = False, False  # for good: earlier labels may be others' numbers too
            self.note = (
                f"Accuracy is left out: a label is {int(labels.max())}, the model predicts {self.num_classes} classes."
            )
        elif self._fitting and bool((labels >= 0).any()):
            self.labelled, self.note = True, ""
        return images, labels


def open_source(
    source: str, split: str | None, predicted: int, classes: Sequence[str] | None = None, **options: Any
) -> tuple[ImageData | StreamedData, str]:
    """The data, and why their labels cannot be used: empty where they mean what the model's classes mean."""
    note = ""
    try:
        data = _open(source, split, classes=classes, allow_empty_classes=True, **options)
    except DataError as error:
        if classes is None:
            raise
        data = _open(source, split, allow_empty_classes=True, **options)
        return data, f"Accuracy is left out: {error}"
    if isinstance(data, ImageData) and data.labels is None:
        note = f"{source} has no labels, so accuracy cannot be measured."
    elif classes is None and data.classes is not None and len(data.classes) != predicted:
        note = (
            f"Accuracy is left out: {source} has {len(data.classes)} classes by name and the model predicts "
            f"{predicted}, so which is which is not known. Name the model's classes in its order to get it."
        )
    elif data.num_classes is not None and data.num_classes > predicted:
        note = f"Accuracy is left out: {source} has {data.num_classes} classes and the model predicts {predicted}."
    return data, note


def _open(source: str, split: str | None, **options: Any) -> ImageData | StreamedData:
    if split is not None:
        return open_data(source, split, **options)
    try:
        return open_data(source, DEFAULT_SPLITS[0], **options)
    except Undivided:  # anything else that is wrong is to be said, not hidden behind a second try
        return open_data(source, DEFAULT_SPLITS[1], **options)


def from_tensors(data: Any, batch_size: int, limit: int | None, num_classes: int | None) -> FromBatches:
    """A tensor of images, cut into batches, or an iterable of batches as it is."""
    if isinstance(data, Tensor):
        if data.dim() != 4 or not len(data):
            raise ValueError(f"A tensor of images is (N, C, H, W), N above 0; got shape {tuple(data.shape)}.")
        return FromBatches(data.split(batch_size), limit, num_classes)
    if not isinstance(data, Iterable):
        raise TypeError(
            "data is a path or source text, a tensor of images, or batches of (images, labels); got "
            f"{type(data).__name__}."
        )
    return FromBatches(data, limit, num_classes)


@dataclass(frozen=True)
class _Chosen:
    """Some of the pictures."""

    pictures: Pictures
    numbers: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.numbers)

    def name(self, index: int) -> str:
        return self.pictures.name(self.numbers[index])

    def open(self, index: int) -> Image.Image:
        return self.pictures.open(self.numbers[index])

    def mask(self, index: int) -> NDArray[np.bool_] | None:
        return _mask(self.pictures, self.numbers[index])


def sample_of(data: ImageData, limit: int | None, seed: int) -> ImageData:
    """``limit`` of the images, drawn from all: the first ones of a folder would be of a few classes only."""
    if limit is None or limit >= len(data):
        return data
    numbers = tuple(sorted(random.Random(seed).sample(range(len(data)), limit)))
    labels = None if data.labels is None else data.labels[list(numbers)]
    return dataclasses.replace(data, pictures=_Chosen(data.pictures, numbers), labels=labels)


def _mask(pictures: Any, index: int) -> NDArray[np.bool_] | None:
    """Where the object is, for pictures that know it."""
    return pictures.mask(index) if hasattr(pictures, "mask") else None


def _limited(batches: Iterable[tuple[Tensor, Tensor]], limit: int | None) -> Iterator[tuple[Tensor, Tensor]]:
    seen = 0
    for images, labels in batches:
        left = len(images) if limit is None else min(len(images), limit - seen)
        seen += left
        yield images[:left], labels[:left]
        if limit is not None and seen >= limit:
            return


def _after(batches: Iterator[tuple[Tensor, Tensor]], seen: int) -> Iterator[tuple[Tensor, Tensor]]:
    passed = 0
    for images, labels in batches:
        if passed >= seen:
            yield images, labels
        passed += len(images)


def _first(batches: Iterator[tuple[Tensor, Tensor]], number: int) -> Shown | None:
    for images, labels in batches:
        images, labels = images[:number].cpu(), labels[:number]
        names = tuple(f"image {i + 1}" for i in range(len(images)))
        return Shown(images, names, tuple(labels.tolist()), (None,) * len(images))
    return None


def _spread(count: int, number: int) -> list[int]:
    """Up to ``number`` of ``count`` positions, evenly spaced."""
    return [i * count // min(number, count) for i in range(min(number, count))]
