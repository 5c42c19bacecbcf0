"""The part of the loader that runs in worker processes: read, transform and batch images."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from foveate.data.images import BrokenImage, DataError, Sample
from foveate.data.labels import first_few
from foveate.data.order import random_states_kept, seed_everything, seed_from, shuffled
from foveate.data.source import ImageData
from foveate.data.stream import Encoded, StreamedData
from foveate.data.targets import TargetRules

Transform = Callable[..., Any]
"""A transform of an image, or of an image and its target; the target rules know how to call it."""
BUFFER = 1000
"""Images of a shard in the shuffle buffer, which holds them undecoded."""


@dataclass(frozen=True)
class Batch:
    """A batch for a training or evaluation step."""

    images: Tensor  # (b, C, H, W)
    targets: Any  # collated by the task; for classification (b,) integers, -1 if unknown
    names: tuple[str, ...]
    broken: tuple[BrokenImage, ...] = ()
    """Images that could not be read. They are not among the names."""

    def __len__(self) -> int:
        return len(self.names)


@dataclass(frozen=True)
class Failure:
    """An error in place of a batch; torch would wrap a worker's exception in its traceback."""

    words: str


def make_batch(rules: TargetRules, read: Sequence[tuple[str, Tensor, Any]], broken: Sequence[BrokenImage]) -> Batch:
    """Make a batch of (name, image, target) tuples; it is empty if every image was broken."""
    images = rules.stack([image for _, image, _ in read]) if read else torch.empty(0)
    targets = rules.collate([target for _, _, target in read])
    return Batch(images, targets, tuple(name for name, _, _ in read), tuple(broken))


def transformed(rules: TargetRules, transform: Transform, sample: Sample, *key: int) -> tuple[str, Tensor, Any]:
    """Name, image and target after the transform, with random numbers that depend only on ``key``."""
    seed_everything(*key)
    image, target = rules.transformed(transform, sample)
    return sample.name, image, target


@dataclass(frozen=True)
class ImageReader(Dataset[Any]):
    """Batches of images that can be read in any order; a key is (epoch, number) as in ``BatchOrder``."""

    data: ImageData
    rules: TargetRules
    transform: Transform
    seed: int
    replace: bool
    """Whether the next readable image replaces a broken one."""
    most_broken: float
    """Number of broken images above which the run stops, so that no replacement is searched."""

    def __getitems__(self, keys: list[tuple[int, int]]) -> Batch | Failure:
        """Read a whole batch, so that random states are restored only once."""
        try:
            return self._batch(keys)
        except DataError as error:
            return Failure(str(error))

    def _batch(self, keys: list[tuple[int, int]]) -> Batch:
        read, broken = [], []
        with random_states_kept():
            for epoch, number in keys:
                copy, index = divmod(number, len(self.data))
                found, sample, met = self._read(index)
                broken += met
                if sample is not None:
                    drawn = found + copy * len(self.data)  # copies of an image get different transforms
                    read.append(transformed(self.rules, self.transform, sample, self.seed, epoch, drawn))
        return make_batch(self.rules, read, broken)

    def _read(self, index: int) -> tuple[int, Sample | None, list[BrokenImage]]:
        """The image or the next readable one, with its number and the broken ones before it."""
        broken: dict[str, BrokenImage] = {}
        for step in range(len(self.data) if self.replace else 1):
            number = (index + step) % len(self.data)
            try:
                return number, self.data.read(number), list(broken.values())
            except BrokenImage as error:
                # without a traceback, which would keep its frames alive
                broken[error.name] = BrokenImage(error.name, error.reason)
                if self.replace and len(broken) > self.most_broken:
                    return number, None, list(broken.values())
        if self.replace:
            raise DataError(f"None of the {len(self.data)} images can be read. {next(iter(broken.values()))}")
        return index, None, list(broken.values())


def identity(batch: Batch | Failure) -> Batch | Failure:
    """Replace DataLoader's collation: the readers return whole batches."""
    return batch


@dataclass(frozen=True)
class StreamReader(IterableDataset[Batch | Failure]):
    """Batches from shards that are read from beginning to end.

    Each process takes every world-th shard and each of its workers a part of those, its *lane*. Batches come from the
    lanes in turn. In training a lane that runs out starts again, so that all processes have the same number of batches.
    """

    data: StreamedData
    rules: TargetRules
    transform: Transform
    seed: int
    train: bool
    epoch: int
    start: int
    batches: int
    """Batches of a training epoch; not used in evaluation, where lanes simply end."""
    batch_size: int
    """Images per batch in this process."""
    rank: int
    world: int
    repeats: int = 1

    def __iter__(self) -> Iterator[Batch | Failure]:
        try:
            yield from self._batches()
        except DataError as error:
            yield Failure(str(error))

    def _batches(self) -> Iterator[Batch]:
        info = get_worker_info()
        worker, lanes = (0, 1) if info is None else (info.id, info.num_workers)
        lane = (worker + self.start) % lanes  # DataLoader asks worker 0 first, also if the first batch is not batch 0
        passed = len(range(lane, self.start, lanes))
        last = len(range(lane, self.batches, lanes)) if self.train else None
        for raw in itertools.islice(self._raw_batches(lane, lanes), passed, last):
            yield self._decoded(raw)

    def _raw_batches(self, lane: int, lanes: int) -> Iterator[list[tuple[int, Encoded]]]:
        images = self._images(lane, lanes)
        while batch := list(itertools.islice(images, self.batch_size)):
            yield batch

    def _images(self, lane: int, lanes: int) -> Iterator[tuple[int, Encoded]]:
        """Images with a unique number, from which their random numbers derive."""
        count = len(self.data.shards)
        order = shuffled(count, self.seed, self.epoch) if self.train else list(range(count))
        own = order[self.rank :: self.world][lane::lanes]
        for turn in itertools.count() if self.train else (0,):
            empty = True
            for shard in own:
                key = seed_from(self.seed, self.epoch, turn, shard)
                images = self.data.samples(shard)
                for position, image in enumerate(mixed(images, key) if self.train else images):
                    empty = False
                    number = seed_from(key, position)
                    yield from ((number + copy, image) for copy in range(self.repeats))
            if empty:
                raise DataError(f"The shards {first_few(self.data.shards[shard] for shard in own)} have no images.")

    def _decoded(self, raw: list[tuple[int, Encoded]]) -> Batch:
        """Decode a batch; in training the next readable image of the batch replaces a broken one."""
        read: list[tuple[int, Sample] | None] = []
        broken = []
        for number, encoded in raw:
            try:
                read.append((number, encoded.read()))
            except BrokenImage as error:
                broken.append(BrokenImage(error.name, error.reason))
                read.append(None)
        if self.train:
            read = [_next_readable(read, place) for place in range(len(read))]
        whole = [pair for pair in read if pair is not None]
        with random_states_kept():
            ready = [transformed(self.rules, self.transform, sample, number) for number, sample in whole]
        return make_batch(self.rules, ready, broken)


def _next_readable(read: list[tuple[int, Sample] | None], place: int) -> tuple[int, Sample]:
    for pair in (*read[place:], *read[:place]):
        if pair is not None:
            return pair
    raise DataError(f"None of the {len(read)} images of a batch can be read.")


def mixed(images: Iterator[Any], key: int) -> Iterator[Any]:
    """Shuffle images with a buffer of `BUFFER`, in an order that depends on ``key``."""
    generator = torch.Generator().manual_seed(key)
    held: list[Any] = []
    for image in images:
        held.append(image)
        if len(held) >= BUFFER:
            place = int(torch.randint(len(held), (1,), generator=generator))
            held[place], held[-1] = held[-1], held[place]
            yield held.pop()
    for place in torch.randperm(len(held), generator=generator).tolist():
        yield held[place]
