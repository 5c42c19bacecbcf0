"""The images of a comparison: from a source text, a tensor, or batches of the caller."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from functools import partial
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
    """A sample of the images, for token maps and masks."""

    images: Tensor  # (B, C, H, W) as the model reads them
    names: tuple[str, ...]
    captions: tuple[str, ...]  # their targets in words; empty if unknown
    masks: tuple[NDArray[np.bool_] | None, ...]  # where the object is, at the size of the stored image


class Images(ABC):
    """Images in batches that can start anywhere, so that an interrupted run can be resumed."""

    source: str
    task: Task
    split: str | None = None
    has_targets: bool = False
    note: str = ""
    """Why there are no targets, for the report; empty if there are."""
    broken: int = 0
    total: int | None = None
    """Number of images; None if it is not known in advance."""

    @abstractmethod
    def batches(self, seen: int = 0, broken: int = 0) -> Iterator[Pair]:
        """Yield images and targets; the targets are unknown if ``has_targets`` is False.

        Args:
            seen: Images to skip, because an earlier run has measured them in whole batches.
            broken: Unreadable images among those, which ``seen`` does not count.
        """

    @abstractmethod
    def sample(self, number: int) -> list[Pair]:
        """Return the first ``number`` images in batches; nothing if they can be read only once."""

    @abstractmethod
    def shown(self, number: int) -> Shown | None:
        """Return up to ``number`` images, spread over the data if they can be read in any order."""

    def fingerprint(self) -> str | None:
        """Return a value that differs for other images or targets, judged by names; None if that is unknown."""
        return None


class FromSource(Images):
    """Images of a folder, a CSV file, shards or a dataset, preprocessed for the model."""

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
        self._open = partial(
            Loader,
            self.data,
            transform,
            batch_size,
            seed=seed,
            train=False,
            workers=workers,
            max_broken=max_broken,
            rules=task,
        )
        self._loader: Loader = self._open()

    @property
    def broken(self) -> int:  # type: ignore[override]
        return self._loader.broken

    def batches(self, seen: int = 0, broken: int = 0) -> Iterator[Pair]:
        if isinstance(self.data, ImageData):  # a batch with only broken images was skipped too
            yield from map(self._pair, self._loader.epoch(0, -(-(seen + broken) // self._loader.batch_size)))
        else:
            yield from _after(first_images(map(self._pair, self._loader.epoch(0)), self.limit), seen)

    def sample(self, number: int) -> list[Pair]:
        own = self._open()  # its broken images are counted in the pass over all
        return list(first_images(map(self._pair, own.epoch(0)), min(number, self.limit or number)))

    def _pair(self, batch: Batch) -> Pair:
        return Pair(batch.images, batch.targets if self.has_targets else self.task.unknown_like(batch.targets))

    def shown(self, number: int) -> Shown | None:
        if not isinstance(self.data, ImageData):
            return _first(self.batches(), number, self.task)
        found = []
        for index in spread(len(self.data), number):
            try:
                found.append((self.data.read(index), object_mask(self.data.pictures, index)))
            except BrokenImage:
                continue  # the pass over all images warns of it
        if not found:
            return None
        samples = [sample for sample, _ in found]
        images = [self.task.transformed(self.transform, sample)[0] for sample in samples]
        # images that keep their ratio may differ in size: those of the first one's
        alike = [number for number, image in enumerate(images) if image.shape == images[0].shape]
        found, samples = [found[number] for number in alike], [samples[number] for number in alike]
        names = tuple(Path(sample.name).name for sample in samples)
        captions = tuple(self.task.caption(sample.target) for sample in samples)
        return Shown(torch.stack([images[i] for i in alike]), names, captions, tuple(mask for _, mask in found))

    def fingerprint(self) -> str:
        known = hashlib.blake2b(repr((self.has_targets, self.data.classes)).encode(), digest_size=8)
        if isinstance(self.data, ImageData):
            for index in range(len(self.data)):
                known.update(self.data.pictures.name(index).encode() + b"\0")
            known.update(b"" if self.data.labels is None else np.asarray(self.data.labels).tobytes())
        return known.hexdigest()


class FromBatches(Images):
    """Batches of the caller: tensors of images, or pairs of images and targets."""

    def __init__(
        self, batches: Iterable[Any], limit: int | None, task: Task, check_size: Callable[[torch.Size], object]
    ) -> None:
        self.source, self._batches, self.limit, self.task = "images given as tensors", batches, limit, task
        self._check_size = check_size
        self._first: list[Pair] = []
        self._targets_fit = True
        self.note = "The images have no labels, so accuracy cannot be measured."

    def batches(self, seen: int = 0, broken: int = 0) -> Iterator[Pair]:
        for pair in _after(first_images(map(self._pair, self._batches), self.limit), seen):
            if not self._first:
                self._first.append(pair)
            yield pair

    def sample(self, number: int) -> list[Pair]:
        if isinstance(self._batches, Iterator):
            return []
        return list(first_images(map(self._pair, self._batches), min(number, self.limit or number)))

    def shown(self, number: int) -> Shown | None:
        return _first(iter(self._first), number, self.task)

    def _pair(self, batch: Any) -> Pair:
        images, given = batch if isinstance(batch, tuple | list) and len(batch) == 2 else (batch, None)
        if not isinstance(images, Tensor) or images.dim() != 4:
            raise ValueError(
                "A batch must be images (B, C, H, W), or a pair of images and targets, e.g. labels (B,); got "
                f"{type(images).__name__}{f' of shape {tuple(images.shape)}' if isinstance(images, Tensor) else ''}."
            )
        self._check_size(images.shape[1:])
        targets = self.task.read_targets(given, len(images))
        why = "" if given is None else self.task.why_unusable(targets)
        if why:  # permanently: earlier targets may have been wrong too
            self._targets_fit, self.has_targets, self.note = False, False, f"Accuracy is left out: {why}."
            targets = self.task.unknown_like(targets)
        elif given is not None and self._targets_fit and self.task.any_known(targets):
            self.has_targets, self.note = True, ""
        return Pair(images, targets)


def from_tensors(
    data: Any, batch_size: int, limit: int | None, task: Task, check_size: Callable[[torch.Size], object]
) -> FromBatches:
    """Return images from a tensor, which is split into batches, or from an iterable of batches.

    ``check_size`` raises a ValueError if the model does not take images of a shape (C, H, W).

    Raises:
        ValueError: If the tensor is not (N, C, H, W) with images.
        TypeError: If ``data`` is neither.
    """
    if isinstance(data, Tensor):
        if data.dim() != 4 or not len(data):
            raise ValueError(
                f"A tensor of images must be (N, C, H, W) with N of at least 1, got shape {tuple(data.shape)}."
            )
        return FromBatches(data.split(batch_size), limit, task, check_size)
    if not isinstance(data, Iterable):
        raise TypeError(
            "data must be a path or source text, a tensor of images, or batches of (images, targets); got "
            f"{type(data).__name__}."
        )
    return FromBatches(data, limit, task, check_size)


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


def spread(count: int, number: int) -> list[int]:
    """Return up to ``number`` of ``count`` positions, evenly spaced."""
    return [i * count // min(number, count) for i in range(min(number, count))]
