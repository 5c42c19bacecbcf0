"""The comparison itself: candidates, one pass over the images, timings in turns, and the decision."""

from __future__ import annotations

import dataclasses
import hashlib
import time
from collections.abc import Iterable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from foveate.adapters import inspect
from foveate.api import cost
from foveate.evaluation.environment import describe_environment
from foveate.evaluation.memory import peak_memory
from foveate.evaluation.progress import Progress, silent
from foveate.methods.base import Method
from foveate.report.compare.candidates import (
    DEFAULT_BUDGETS,
    Candidate,
    Candidates,
    find_candidates,
    read_budgets,
    read_methods,
)
from foveate.report.compare.comparison import Comparison, Entry
from foveate.report.compare.fidelity import Fidelity, measure_fidelity
from foveate.report.compare.images import Images
from foveate.report.compare.maps import Maps, draw_maps
from foveate.report.compare.preparing import Reading, built_in, name_of, open_images, prepared
from foveate.report.compare.recommend import recommend, with_pareto
from foveate.report.compare.saving import Partial, check_writable
from foveate.report.compare.settings import DEFAULT_SECONDS, Settings, checked_settings
from foveate.report.compare.timing import Speed, measure_candidate
from foveate.tasks import find_task

SECONDS_BETWEEN_STORES = 1.0
ENTRY_METRICS = ("top1", "top5", "agreement", "kl")
"""Metrics that are fields of an entry; others are in its ``metrics``."""


def compare(
    model: nn.Module | None = None,
    data: Any = None,
    *,
    methods: Iterable[str | Method] | None = None,
    budgets: Sequence[float] = DEFAULT_BUDGETS,
    batch_size: int = 16,
    device: str | torch.device = "cpu",
    limit: int | None = None,
    seconds: float = DEFAULT_SECONDS,
    split: str | None = None,
    classes: Sequence[str] | None = None,
    checkpoints: Sequence[str | Path] = (),
    seed: int = 0,
    workers: int = 0,
    max_broken: float = 0.01,
    data_options: Mapping[str, Any] | None = None,
    task: str = "classification",
    name: str | None = None,
    note: str = "",
    progress: Progress | None = None,
    store: str | PathLike[str] | None = None,
    resume: bool = False,
) -> Comparison:
    """Measure every training-free method at every budget of MACs on ``model``, which is not touched.

    Ctrl-C returns what is measured so far, with ``complete`` False.

    Args:
        model: A model that predicts classes; without one, the built-in demonstration runs.
        data: A path or source text (docs/data.md), a tensor of images, or batches of images or of (images, labels),
            as the model reads them.
        methods: Names, ``name:option=value`` or instances; default: every training-free method.
        budgets: Shares of the unreduced MACs.
        batch_size: Images in a batch, also for timing.
        device: Where to run.
        limit: Images to look at, drawn from all by ``seed``; default: all.
        seconds: Time spent on timing each candidate.
        split: The part of the data; default: validation images, or all of data that are not divided.
        classes: The model's classes in its order, if the data name theirs.
        checkpoints: Folders of ``fv.save`` with reduced models, measured as they are.
        seed: Draws the images of ``limit``.
        workers: Processes that read images.
        max_broken: Share of unreadable images that is allowed.
        data_options: For ``open_data``.
        task: What the model predicts.
        name: The model's name in the report.
        note: What else the report is to say about the data.
        progress: Called while it works.
        store: A folder that keeps what is measured in partial.json; saving the finished comparison there removes it.
        resume: Go on from what ``store`` keeps.
    """
    settings = checked_settings(
        read_methods(methods), read_budgets(budgets), batch_size, device, limit, seconds, seed, checkpoints
    )
    demonstration = model is None
    if model is None:
        model, data, classes, name = built_in(data)
    whole, given = prepared(model, settings.device)
    judge = find_task(task).for_model(whole)
    if data is None:
        raise ValueError("A comparison needs images that the model knows: data, a folder for example.")
    reading = Reading(split, classes, workers, max_broken, data_options or {})
    images = open_images(data, whole, settings, judge, reading)
    images.note = " ".join(filter(None, (note, images.note)))
    found = find_candidates(whole, settings.methods, settings.budgets, settings.checkpoints, given)
    job = Job(whole, name or name_of(whole), found, images, settings, progress)
    return job.run(demonstration, None if store is None else Path(store), resume)


class Job:
    """One comparison on its way."""

    def __init__(
        self,
        whole: nn.Module,
        name: str,
        found: Candidates,
        images: Images,
        settings: Settings,
        progress: Progress | None,
    ) -> None:
        self.whole, self.name, self.found, self.images, self.settings = whole, name, found, images, settings
        self.progress = progress or silent
        self.fidelity = Fidelity.of_nothing([candidate.key for candidate in found.all], images.task)
        self.speeds: dict[str, Speed] = {}
        self.maps = Maps()
        self.earlier_broken = 0
        self.partial: Partial | None = None
        self.stored_at = 0.0
        self.environment = describe_environment(settings.device, next(whole.parameters()).dtype)

    def run(self, demonstration: bool, store: Path | None, resume: bool) -> Comparison:
        """Measure all there is to measure; an interruption keeps what is there."""
        if store is not None:
            check_writable(store)
            self.partial = Partial(store, self._identity())
        if resume:
            self._resume()
        complete = False
        try:
            self._measure_fidelity()
            self._measure_speed()
            complete = True
        except KeyboardInterrupt:
            if not self.fidelity.images:
                raise
            self._store()
        except ValueError:
            if self.partial is not None and not resume:
                self.partial.discard()  # what a resumed run brought stays: it may go on with other options
            raise
        self._draw()
        return self._result(demonstration, complete)

    def _measure_fidelity(self) -> None:
        models = {candidate.key: candidate.model for candidate in self.found.all}
        if self.fidelity.finished:
            return

        def after_batch(so_far: Fidelity) -> None:
            so_far.broken = self.earlier_broken + self.images.broken
            self.progress("decisions", so_far.images, self.images.total)
            if time.monotonic() - self.stored_at > SECONDS_BETWEEN_STORES:
                self._store()

        measure_fidelity(models, self.images, self.settings.device, self.fidelity, after_batch)
        self.fidelity.broken = self.earlier_broken + self.images.broken
        self._store()

    def _measure_speed(self) -> None:
        candidates = self.found.all[1:]
        batch = self._noise()
        for number, candidate in enumerate(candidates):
            self.progress("speed and memory", number, len(candidates))
            if candidate.key not in self.speeds:
                self.speeds[candidate.key] = measure_candidate(
                    self.whole, candidate, batch, self.settings.seconds, self.environment
                )
                self._store()
        self.progress("speed and memory", len(candidates), len(candidates))

    def _draw(self) -> None:
        try:
            self.maps = draw_maps(self.found.all, self.images, self.whole, self.progress)
        except KeyboardInterrupt:
            self.maps = Maps()  # the figures matter more than the pictures of them

    def _noise(self) -> Tensor:
        """Images to time with: counts do not depend on what they show."""
        size = inspect(self.whole).image_size
        noise = torch.randn(self.settings.batch_size, *size, generator=torch.Generator().manual_seed(0))
        reference = next(self.whole.parameters())
        return noise.to(reference.device, reference.dtype)

    def _identity(self) -> dict[str, Any]:
        """What must be the same where a run goes on."""
        return {
            "model": {"name": self.name, "weights": weights_fingerprint(self.whole)},
            "data": {"source": self.images.source, "split": self.images.split, "images": self.images.fingerprint()},
            "candidates": [_identity_of(candidate) for candidate in self.found.all],
            "environment": str(self.environment),
            **self.settings.as_dict(),
        }

    def _store(self) -> None:
        if self.partial is not None:
            speeds = {key: dataclasses.asdict(speed) for key, speed in self.speeds.items()}
            self.partial.write({"fidelity": self.fidelity.as_dict(), "speeds": speeds})
        self.stored_at = time.monotonic()

    def _resume(self) -> None:
        if self.images.fingerprint() is None:
            raise ValueError(
                "A run on images given as tensors or batches cannot be resumed: nothing tells whether they are the "
                "same. Give a folder or another source by its name."
            )
        measured = None if self.partial is None else self.partial.read()
        if measured is None:
            return
        self.fidelity = Fidelity.from_dict(measured["fidelity"], self.images.task)
        self.earlier_broken = self.fidelity.broken
        self.speeds = {key: _speed(stored) for key, stored in measured["speeds"].items()}

    def _result(self, demonstration: bool, complete: bool) -> Comparison:
        entries = with_pareto([self._entry(candidate) for candidate in self.found.all])
        return Comparison(
            model=self._model(),
            data=self._data(),
            options=self.settings.as_dict(),
            environment=dataclasses.asdict(self.environment),
            demonstration=demonstration,
            complete=complete,
            entries=entries,
            refused=self.found.refused,
            recommendation=recommend(entries, self.fidelity.images, self._drift()),
            gallery=self.maps.gallery,
        )

    def _entry(self, candidate: Candidate) -> Entry:
        figures, spent = self._figures(candidate), cost(candidate.model)
        known: dict[str, Any] = {name: figures.get(name) for name in ENTRY_METRICS}
        return Entry(
            method=candidate.method,
            label=candidate.label,
            kind=candidate.kind,
            budget=candidate.budget,
            counts=candidate.counts,
            exact_last_block=candidate.reduction.exact_last_block,
            macs=spent.macs,
            mac_ratio=spent.macs / cost(self.whole).macs,
            params=spent.params,
            **known,
            **self._speed_fields(candidate),
            on_object=self.maps.on_object.get(candidate.key),
            pareto=False,
            python=candidate.python,
            metrics={name: value for name, value in figures.items() if name not in ENTRY_METRICS},
        )

    def _figures(self, candidate: Candidate) -> dict[str, Any]:
        """What the task's metrics came to, without those that need targets where these mean nothing."""
        task, found = self.images.task, self.fidelity.metrics(candidate.key).compute()
        names = {*task.comparisons, *(task.figures if self.images.has_targets else ())}
        return {name: value for name, value in found.items() if name in names}

    def _speed_fields(self, candidate: Candidate) -> dict[str, Any]:
        """Ratios are as measured; images per second are ratios of one rate, so that a slow minute favors none."""
        names = ("images_per_second", "speed_up", "speed_up_quartiles", "efficiency", "overhead", "memory_mib")
        if not self.speeds:
            return dict.fromkeys(names)
        rate = median(speed.unreduced_per_second for speed in self.speeds.values())
        if candidate is self.found.all[0]:
            memory = peak_memory(self.whole, self._noise())
            return dict(zip(names, (rate, 1.0, (1.0, 1.0), None, None, memory), strict=True))
        speed = self.speeds.get(candidate.key)
        if speed is None:
            return dict.fromkeys(names)
        overhead = None if speed.efficiency is None else max(0.0, 1 - speed.efficiency)
        values = (
            rate * speed.speed_up,
            speed.speed_up,
            speed.speed_up_quartiles,
            speed.efficiency,
            overhead,
            speed.memory_mib,
        )
        return dict(zip(names, values, strict=True))

    def _drift(self) -> float:
        """The unreduced model's speed at its best over that at its worst; both were timed beside a candidate."""
        rates = [speed.unreduced_per_second for speed in self.speeds.values()]
        return max(rates) / min(rates) if rates else 1.0

    def _model(self) -> dict[str, Any]:
        family, spent = inspect(self.whole), cost(self.whole)
        return {
            "name": self.name,
            "params": spent.params,
            "macs": spent.macs,
            "image_size": list(family.image_size),
            "grid": list(family.grid),
            "blocks": len(family.blocks),
            "prefix": family.num_prefix,
            "num_classes": family.num_classes,
        }

    def _data(self) -> dict[str, Any]:
        return {
            "source": self.images.source,
            "split": self.images.split,
            "images": self.fidelity.images,
            "labelled": self.images.has_targets,
            "note": self.images.note,
            "broken": self.fidelity.broken,
        }


def _identity_of(candidate: Candidate) -> list[Any]:
    """Others share the weights of the unreduced model."""
    own = weights_fingerprint(candidate.model) if candidate.kind == "learned" else ""
    return [candidate.key, list(candidate.counts), own]


def weights_fingerprint(model: nn.Module) -> str:
    """Differs where any weight does."""
    digest = hashlib.blake2b(digest_size=8)
    for name, tensor in model.state_dict().items():
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _speed(stored: dict[str, Any]) -> Speed:
    first, third = stored["speed_up_quartiles"]
    return Speed(**{**stored, "speed_up_quartiles": (first, third)})
