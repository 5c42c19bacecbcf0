"""Batches for training and evaluation, the same for any number of processes and workers."""

from __future__ import annotations

import atexit
import contextlib
import functools
import multiprocessing
import os
import signal
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader

from foveate.data.broken import BrokenCount
from foveate.data.images import DataError
from foveate.data.limits import REPEATS
from foveate.data.order import BatchOrder
from foveate.data.reading import Batch, Failure, ImageReader, StreamReader, Transform, identity
from foveate.data.source import ImageData
from foveate.data.stream import StreamedData
from foveate.data.targets import IntegerLabels, TargetRules


class _Keys:
    """The images that workers read, batch by batch, as keys (epoch, number)."""

    def __init__(self, order: BatchOrder) -> None:
        self.order = order
        self.number = self.start = 0

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        for share in self.order.epoch(self.number, self.start):
            yield [(self.number, number) for number in share]


class Loader:
    """Batches of ``data``, epoch by epoch.

    In training, the order of images depends on (seed, epoch), and random transforms depend on (seed, epoch, image), so
    that an epoch can start at any batch. In evaluation every image comes once, in order; processes may get unequal
    numbers. A broken image causes one warning. In training the next readable image replaces it, which keeps batches
    full; in evaluation it is left out.

    Args:
        data: images from ``open_data``.
        transform: applied to each image.
        batch_size: images per batch over all ``world`` processes, which together see the images that one would see.
        seed: seed of order and transforms.
        train: whether to shuffle and to keep batches full.
        workers: processes that read images; 0 reads in this process.
        rank: number of this process.
        world: number of processes.
        drop_last: drop an incomplete last batch; by default only in training.
        max_broken: share of broken images above which a `DataError` is raised; a few are always allowed, unless it is
            0 (`foveate.data.broken`).
        repeats: times that an image comes in a row in a training epoch, each time with another transform. An epoch has
            the same number of batches and as many times fewer images (repeated augmentation, as in DeiT).
        rules: how image and target are transformed together and collated, such as a task. By default targets are
            integer labels.
    """

    def __init__(
        self,
        data: ImageData | StreamedData,
        transform: Transform,
        batch_size: int,
        *,
        seed: int,
        train: bool,
        workers: int = 0,
        rank: int = 0,
        world: int = 1,
        drop_last: bool | None = None,
        max_broken: float = 0.01,
        repeats: int = 1,
        rules: TargetRules | None = None,
    ) -> None:
        _check_numbers(batch_size, workers, rank, world, max_broken)
        if repeats < 1:
            raise DataError(f"repeats must be at least 1, got {repeats}.")
        REPEATS.check(repeats, f"repeats is {repeats}")
        if train and batch_size % world:
            raise DataError(f"batch_size={batch_size} is over all processes and must be divisible by world={world}.")
        self.data, self.transform, self.batch_size = data, transform, batch_size
        self.rules = rules or IntegerLabels()
        self.seed, self.train, self.workers, self.rank, self.world = seed, train, workers, rank, world
        self.drop_last = train if drop_last is None else drop_last
        self.repeats = repeats if train else 1
        if isinstance(data, StreamedData):
            self._check_stream(data)
            total = data.length if train else None
        else:
            self._order = self._checked_order(len(data))
            total = len(data) if train else len(range(rank, len(data), world))
        consequence = "is replaced by another image" if train else "is left out"
        self._broken = BrokenCount(max_broken, total, consequence)
        self._running = object()
        self._keys: _Keys | None = None
        self._torch_loader: DataLoader[Batch | Failure] | None = None

    @property
    def broken(self) -> int:
        """Number of distinct broken images so far."""
        return len(self._broken.reasons)

    @property
    def broken_names(self) -> tuple[str, ...]:
        return tuple(self._broken.reasons)

    def __len__(self) -> int:
        """Number of batches in an epoch."""
        if isinstance(self.data, StreamedData):
            if not self.train:
                raise TypeError("The number of batches is not known when evaluating streamed shards.")
            assert self.data.length is not None
            return self.data.length // self.batch_size
        return len(self._order)

    def epoch(self, number: int, start: int = 0) -> Iterator[Batch]:
        """The batches of an epoch, from batch ``start`` on after a resume."""
        if number < 0 or start < 0:
            raise DataError(f"Epochs and batches count from 0, got epoch {number}, batch {start}.")
        if isinstance(self.data, StreamedData) and not self.train:
            if start:
                raise DataError(f"Evaluation of streamed shards must start at batch 0, got start={start}.")
        elif start > len(self):
            raise DataError(f"An epoch has {len(self)} batches, got start={start}.")
        self._running = this = object()
        return self._counted(number, start, this)

    def _counted(self, number: int, start: int, this: object) -> Iterator[Batch]:
        """The batches, with their broken images counted. Workers are shared, so only one epoch can run at a time."""
        self._check_running(number, this)
        self._broken.begin()
        with stop_signals_blocked():  # until workers know what to do with them
            batches = iter(self._batches(number, start))
        for batch in _from_workers(batches):
            if isinstance(batch, Failure):
                raise DataError(batch.words)
            self._broken.add(len(batch), batch.broken)
            if len(batch):
                yield batch
            self._check_running(number, this)
        self._broken.finish()

    def _check_running(self, number: int, this: object) -> None:
        if self._running is not this:
            raise RuntimeError(f"Another epoch of this loader has started; epoch {number} cannot continue.")

    def _batches(self, number: int, start: int) -> DataLoader[Batch | Failure]:
        # an own generator, because torch would draw from the caller's at the start of every epoch, also after a resume
        options: dict[str, Any] = {"generator": torch.Generator().manual_seed(0)}
        options |= {"worker_init_fn": functools.partial(ignore_stop_signals, exit_flag())}
        if isinstance(self.data, StreamedData):
            lanes = len(range(self.rank, len(self.data.shards), self.world))
            batches, share = len(self) if self.train else 0, max(1, self.batch_size // self.world)
            reader = StreamReader(
                self.data,
                self.rules,
                self.transform,
                self.seed,
                self.train,
                number,
                start,
                batches,
                share,
                self.rank,
                self.world,
                self.repeats,
            )
            options |= {"batch_size": None, "collate_fn": identity, "num_workers": min(self.workers, lanes)}
            return DataLoader(reader, **options)
        if self._torch_loader is None:
            self._keys = _Keys(self._order)
            most = self._broken.allowed(len(self.data))
            images = ImageReader(self.data, self.rules, self.transform, self.seed, self.train, most)
            options |= {"batch_sampler": self._keys, "collate_fn": identity, "num_workers": self.workers}
            self._torch_loader = DataLoader(images, persistent_workers=self.workers > 0, **options)
        assert self._keys is not None
        self._keys.number, self._keys.start = number, start
        return self._torch_loader

    def _checked_order(self, count: int) -> BatchOrder:
        order = BatchOrder(
            count, self.batch_size, self.seed, self.train, self.drop_last, self.rank, self.world, self.repeats
        )
        if not len(order):
            raise DataError(f"{count} images do not fill one batch of {self.batch_size}. Lower batch_size.")
        rest = count % self.batch_size
        if self.train and not self.drop_last and 0 < rest < self.world:
            raise DataError(f"The last batch has {rest} images for world={self.world} processes. Set drop_last=True.")
        return order

    def _check_stream(self, data: StreamedData) -> None:
        if len(data.shards) < self.world:
            raise DataError(
                f"{len(data.shards)} shards are too few for world={self.world} processes. Each needs at least one."
            )
        if self.train and data.length is None:
            raise DataError(
                "Training on streamed shards needs the number of images: open_data(..., length=...), or "
                "data.epoch_images of a run."
            )
        if self.train and not self.drop_last:
            raise DataError("Training on streamed shards has full batches only. Leave out drop_last=False.")
        if self.train and data.length is not None and data.length < self.batch_size:
            raise DataError(f"{data.length} images do not fill one batch of {self.batch_size}. Lower batch_size.")


@functools.cache
def exit_flag() -> Any:
    """A flag shared with workers, set when this process exits: Python then sends them SIGTERM and waits."""
    flag = multiprocessing.RawValue("b", 0)
    # exit handlers run in reverse order, so this one runs before multiprocessing's
    atexit.register(setattr, flag, "value", 1)
    return flag


STOP_SIGNALS = {signal.SIGINT, signal.SIGTERM}


@contextlib.contextmanager
def stop_signals_blocked() -> Iterator[None]:
    """Hold stop signals back, here and in processes that are started inside, where the system can do that."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _from_workers(batches: Iterator[Batch | Failure]) -> Iterator[Batch | Failure]:
    """The same batches; a worker that died is reported in our words."""
    try:
        yield from batches
    except RuntimeError as error:
        if "DataLoader worker" not in str(error):
            raise
        raise DataError(
            "A process that reads images died, perhaps because memory ran out. Use fewer workers or smaller batches."
        ) from error


def ignore_stop_signals(exiting: Any, worker: int) -> None:
    """Leave it to the main process what a stop means, for signals that reach the whole group: schedulers', Ctrl-C.

    The main process may want to finish its step and save. SIGTERM ends the worker only once the process is ``exiting``.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda number, _: os._exit(128 + number) if exiting.value else None)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)


def _check_numbers(batch_size: int, workers: int, rank: int, world: int, max_broken: float) -> None:
    if batch_size < 1:
        raise DataError(f"batch_size must be at least 1, got {batch_size}.")
    if workers < 0:
        raise DataError(f"workers must be at least 0, got {workers}.")
    if not 0 <= rank < world:
        raise DataError(f"rank must be between 0 and world - 1, got rank={rank}, world={world}.")
    if not 0 <= max_broken <= 1:
        raise DataError(f"max_broken must be a share in [0, 1], got {max_broken}. For 5 % write 0.05.")
