"""The engine ``local``: processes on this machine, from Python's own pool."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from functools import partial
from multiprocessing.connection import wait as wait_for_end
from typing import Any

import torch

from foveate.scale.tables import Written
from foveate.scale.writing import PartWriter

DEATHS = 3
"""Processes that may die in a row, without a part finished in between, before the run gives up."""
SECONDS = 0.5
"""Between two reports of progress."""
Report = Callable[[int], None]


class WorkerDied(RuntimeError):
    """Processes died again and again. What was finished is kept."""

    users_error = True


def run_local(writer: PartWriter, parts: list[int], processes: int, report: Report) -> Iterator[Written]:
    """Write parts on ``processes`` processes; yields each when it is finished, in any order.

    ``report`` gets the number of images since the beginning, those of unfinished parts included. With one process the
    work is done in this one.

    Raises:
        WorkerDied: if processes are killed repeatedly, for example because memory ran out.
    """
    if processes == 1:
        yield from _run_here(writer, parts, report)
        return
    left, deaths, images = dict.fromkeys(parts), 0, 0
    while left:
        try:
            for written in _run_pool(writer, list(left), processes, partial(_add, report, images)):
                del left[written.part]
                deaths, images = 0, images + written.rows
                yield written
        except BrokenProcessPool as error:
            deaths += 1
            if deaths > DEATHS:
                raise WorkerDied(
                    f"A process died {deaths} times in a row, perhaps because memory ran out. Use fewer --processes or "
                    "a smaller --batch-size, and go on with --resume."
                ) from error


def _add(report: Report, before: int, new: int) -> None:
    report(before + new)


def _run_here(writer: PartWriter, parts: list[int], report: Report) -> Iterator[Written]:
    images = 0

    def count(new: int) -> None:
        nonlocal images
        images += new
        report(images)

    for part in parts:
        yield writer(part, count)


def _run_pool(writer: PartWriter, parts: list[int], processes: int, report: Report) -> Iterator[Written]:
    context = multiprocessing.get_context("spawn")  # threads of torch do not survive a fork
    counter, numbers = context.Value("q", 0), context.Value("i", 0)
    pool = ProcessPoolExecutor(min(processes, len(parts)), context, _begin, (writer, counter, numbers))
    waiting: set[Future[Written]] = set()
    coming = iter(parts)
    try:
        while True:
            while len(waiting) < 2 * processes and (part := next(coming, None)) is not None:
                waiting.add(pool.submit(_work, part))
            if not waiting:
                return
            done, waiting = wait(waiting, SECONDS, FIRST_COMPLETED)
            report(counter.value)
            for future in done:
                yield future.result()
    finally:
        _end(pool)


def _end(pool: ProcessPoolExecutor) -> None:
    """End the processes now: after an error or Ctrl-C, nobody waits for the parts they are at."""
    running = list((pool._processes or {}).values())
    pool.shutdown(wait=False, cancel_futures=True)
    for process in running:
        with contextlib.suppress(OSError, ValueError):
            process.terminate()


# -- in a process of the pool

_STATE: dict[str, Any] = {}


def _begin(writer: PartWriter, counter: Any, numbers: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the main process decides
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with numbers.get_lock():
        number = numbers.value
        numbers.value += 1
    _STATE.update(writer=_on_device(writer, number), counter=counter)


def _end_with_parent() -> None:
    """End with the main process, also if that was killed: nobody would collect what this one writes."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait_for_end([parent.sentinel])
    os._exit(1)


def _on_device(writer: PartWriter, number: int) -> PartWriter:
    """Processes take the accelerators of this machine in turn, unless one was named."""
    device = torch.device(writer.predictor.device)
    if device.type == "cpu" or device.index is not None:
        return writer
    name = f"{device.type}:{number % max(torch.accelerator.device_count(), 1)}"
    return replace(writer, predictor=replace(writer.predictor, device=name))


def _work(part: int) -> Written:
    counter = _STATE["counter"]

    def count(images: int) -> None:
        with counter.get_lock():
            counter.value += images

    return _STATE["writer"](part, count)
