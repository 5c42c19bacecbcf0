"""A whole run: open the images, divide them into parts, write what is missing, and account for every image."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import torch

from foveate.data import DataError, ImageData, open_data
from foveate.data.source import drawn_from
from foveate.evaluation.progress import Progress, silent
from foveate.evaluation.timing import check_positive, check_progress
from foveate.files import exclusive_lock, remove_left_over
from foveate.methods.validation import check_type, shown
from foveate.scale.batches import fitting_batch
from foveate.scale.local import run_local
from foveate.scale.manifest import (
    MANIFEST,
    Job,
    check_folder,
    check_same_job,
    describe_job,
    describe_result,
    finished_parts,
    job_id,
    read_job,
    write_manifest,
)
from foveate.scale.parts import Parts, keys_digest, part_size
from foveate.scale.predictor import Predictor
from foveate.scale.ray_data import Cluster, check_ray, connected, run_ray
from foveate.scale.runnable import Runnable
from foveate.scale.tables import Written, arrow
from foveate.scale.writing import PartWriter

ENGINES = ("local", "ray")
READERS = 4
"""Threads that read images in each process of an accelerator."""
PHASE = "images"
Engine = Callable[[PartWriter, list[int], int, Callable[[int], None]], Iterator[Written]]


@dataclass(frozen=True)
class Summary:
    """What a run wrote."""

    folder: Path
    images: int
    """Rows of all files."""
    broken: int
    files: int
    written: int
    """Rows that this run wrote; the others were there from before a resume."""
    seconds: float
    processes: int

    @property
    def per_second(self) -> float:
        return self.written / max(self.seconds, 1e-9)


def write_predictions(
    predictor: Predictor,
    data: str | Path,
    out: str | Path,
    *,
    split: str = "all",
    limit: int | None = None,
    seed: int = 0,
    engine: str = "local",
    processes: int | None = None,
    address: str | None = None,
    part_images: int | None = None,
    resume: bool = False,
    progress: Progress | None = None,
    **source: Any,
) -> Summary:
    """Run ``predictor`` over all images of ``data`` and write Parquet files and a manifest to ``out``.

    Every image becomes one row, in order: its key, what was predicted, and the reason if it could not be read. A run
    that was killed at any moment goes on with ``resume=True``; each image is then still in the output exactly once.

    Args:
        predictor: What to compute.
        data: Images as for ``open_data`` (docs/data.md); labels are not read.
        out: A new or an empty folder, or that of the run to resume.
        split: The split to open. Default: all images.
        limit: Number of images, drawn with ``seed``.
        seed: Seed for ``limit``.
        engine: ``"local"``: processes on this machine; ``"ray"``: actors of Ray Data.
        processes: Number of processes or actors. Default: one for each core, or for each accelerator.
        address: Address of a Ray cluster. Default: a local one is started.
        part_images: Images in a file. Default: by the number of images.
        resume: Go on with the run in ``out``, if there is one.
        progress: Called with the number of images so far, their speed and the time left.
        source: Options of ``open_data``, such as ``key_column``.

    Returns:
        What was written.

    Raises:
        ValueError: If an argument, the model or the folder cannot be used, or the run in ``out`` is another one.
        DataError: If the images cannot be opened, or a key repeats.
        FolderInUse: If another process writes to ``out``.
        CannotWrite: If the disk is full. Files that were complete stay.
    """
    folder = Path(out)
    _check(predictor, engine, address, resume, progress)
    check_positive(processes=processes, part_images=part_images, limit=limit)
    arrow()
    check_folder(folder, resume)
    images = open_data(data, split, labels=False, **source)
    if isinstance(images, ImageData):
        images = drawn_from(images, limit, seed)
    elif limit is not None:
        raise DataError(f"{data} is a stream, of which no images are drawn. Leave out --limit, or name fewer shards.")
    job = describe_job(predictor, data=str(data), split=split, images=_count(images), keys=keys_digest(images))
    if engine == "ray" or processes != 1:
        predictor.check_picklable()
    runnable = replace(predictor, device="cpu").runnable  # before any process starts: whether it can be used at all
    folder.mkdir(parents=True, exist_ok=True)
    with exclusive_lock(folder, "foveate predict"), _machine(engine, address, processes) as machine:
        count = processes or _default_processes(predictor.device, machine)
        job = _with_sizes(job, folder, predictor, runnable, count, machine.memory // count, part_images)
        share = max(1, min(torch.get_num_threads(), machine.cores // count))
        threads = predictor.threads or (None if engine == "local" and count == 1 else share)
        own = replace(predictor, batch_size=job["batch_size"], threads=threads)
        readers = 0 if _on_cpu(predictor) else READERS
        writer = PartWriter(own, Parts(images, job["part_images"]), folder.absolute(), job_id(job), readers)
        return _run(writer, job, run_ray if engine == "ray" else run_local, count, progress or silent)


def _with_sizes(
    job: Job, folder: Path, predictor: Predictor, runnable: Runnable, count: int, memory: int, part_images: int | None
) -> Job:
    """The job with the sizes of batches and parts: as given, as the run in ``folder`` has them, or chosen now.

    Raises:
        ValueError: if the run in ``folder`` is another one.
    """
    found = read_job(folder) if (folder / MANIFEST).is_file() else {}
    batch = predictor.batch_size or found.get("batch_size") or fitting_batch(runnable, _on_cpu(predictor), memory)
    size = part_images or found.get("part_images") or part_size(job["images"], count, batch)
    job = job | {"batch_size": batch, "part_images": size}
    if found:
        check_same_job(found, job, folder)
    return job


def _run(writer: PartWriter, job: Job, engine: Engine, processes: int, progress: Progress) -> Summary:
    folder, parts = writer.folder, writer.parts
    remove_left_over(folder)
    write_manifest(folder, job)
    finished = finished_parts(folder, writer.job, map(parts.count, range(len(parts))))
    before = sum(written.rows for written in finished.values())
    todo = [part for part in range(len(parts)) if part not in finished]
    clock = _Clock(progress, before, parts.images)
    for written in engine(writer, todo, processes, clock) if todo else ():
        finished[written.part] = written
    _check_complete(parts, finished)
    result = describe_result(folder, finished.values())
    write_manifest(folder, job, result)
    counts = result["counts"]
    new = counts["images"] - before
    return Summary(folder, counts["images"], counts["broken"], counts["files"], new, clock.seconds, processes)


def _check_complete(parts: Parts, finished: dict[int, Written]) -> None:
    """Every image is accounted for, whatever the engine did."""
    for part in range(len(parts)):
        expected = parts.count(part)
        if part not in finished or expected not in (None, finished[part].rows):
            raise RuntimeError(f"Part {part} is missing or has other rows than its {expected} images.")


class _Clock:
    """Reports images so far, images per second and the time left."""

    def __init__(self, progress: Progress, before: int, total: int | None) -> None:
        self.progress, self.before, self.total = progress, before, total
        self._began = time.monotonic()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    def __call__(self, images: int) -> None:
        rate = images / max(self.seconds, 1e-9)
        note = f"{rate:.1f} img/s"
        if self.total is not None and images:
            note += f", {_duration(max(self.total - self.before - images, 0) / rate)} left"
        self.progress(PHASE, self.before + images, self.total, note)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"


def _check(predictor: Any, engine: str, address: str | None, resume: bool, progress: Any) -> None:
    check_type(Predictor, "a Predictor", predictor=predictor)
    check_type(bool, "True or False", resume=resume)
    check_progress(progress)
    if engine not in ENGINES:
        raise ValueError(f"engine must be one of {', '.join(ENGINES)}; got {shown(engine)}.")
    if address is not None and engine != "ray":
        raise ValueError(f"address={shown(address)} is of a Ray cluster. Set engine='ray' (--engine ray).")
    if engine == "ray":
        check_ray(address)


def _count(images: Any) -> int | None:
    return len(images) if isinstance(images, ImageData) else images.length


def _on_cpu(predictor: Predictor) -> bool:
    return predictor.device.startswith("cpu")


def _default_processes(device: str, machine: Cluster) -> int:
    if device.startswith("cpu"):
        return max(1, machine.cores)
    return 1 if ":" in device else max(1, torch.accelerator.device_count())


def _machine(engine: str, address: str | None, processes: int | None) -> AbstractContextManager[Cluster]:
    """What the engine runs on: a Ray cluster, or this machine."""
    if engine == "ray":
        return connected(address, processes)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return nullcontext(Cluster(cores, int(psutil.virtual_memory().available)))
