"""The comparison: candidates, one pass over the images, interleaved timing, and the recommendation."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import nn

from foveate.adapters import inspect
from foveate.api import cost
from foveate.evaluation.bars import shown_progress
from foveate.evaluation.environment import describe_environment
from foveate.evaluation.memory import peak_memory
from foveate.evaluation.plain_data import read_dataclass
from foveate.evaluation.progress import Progress
from foveate.evaluation.timing import check_progress, checked_device
from foveate.methods.base import Method
from foveate.methods.validation import check_type, shown, shown_error
from foveate.report.compare.candidates import (
    Candidate,
    Candidates,
    read_budgets,
    read_methods,
)
from foveate.report.compare.comparison import Comparison, Entry, Recommendation
from foveate.report.compare.fidelity import Fidelity, measure_fidelity
from foveate.report.compare.identity import described, identity_of, weights_fingerprint
from foveate.report.compare.images import Images
from foveate.report.compare.maps import Maps, draw_maps
from foveate.report.compare.predictions import draw_predictions
from foveate.report.compare.preparing import (
    Reading,
    all_candidates,
    built_in,
    check_places,
    check_reading,
    checked_data,
    name_of,
    open_images,
    prepared,
)
from foveate.report.compare.recommend import recommend, with_pareto
from foveate.report.compare.runtimes import RuntimeStage, as_text, check_task, read_request
from foveate.report.compare.saving import Partial
from foveate.report.compare.served import InRuntime, read_stored
from foveate.report.compare.settings import DEFAULT_SECONDS, Settings, read_checkpoints
from foveate.report.compare.timing import Speed, measure_candidate, noise_for
from foveate.tasks import find_task, task_of
from foveate.tuning.constraints import Constraints

UNTRAINED = "The model's weights are random, so its decisions mean nothing: only the speeds do."
SECONDS_BETWEEN_STORES = 1.0
ENTRY_METRICS = ("top1", "top5", "agreement", "kl")
"""Metrics that are fields of an entry; all others are in its ``metrics``."""


def compare(
    model: nn.Module | Callable[[], nn.Module] | None = None,
    data: Any = None,
    *,
    methods: Iterable[str | Method] | None = None,
    budgets: Sequence[float] | None = None,
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
    task: str | None = None,
    task_options: Mapping[str, Any] | None = None,
    name: str | None = None,
    trained: bool = True,
    agreement: float | None = None,
    latency_ms: float | None = None,
    speedup: float | None = None,
    progress: Progress | None = None,
    store: str | PathLike[str] | None = None,
    resume: bool = False,
    runtimes: Sequence[str] = (),
    precisions: Sequence[str] = ("fp32",),
    calibration: Any = None,
) -> Comparison:
    """Measure every training-free method at every MAC budget on ``model``, which does not change.

    Ctrl-C returns what was measured so far, with ``complete`` set to False.

    Args:
        model: A model that predicts classes, of images or of pixels, or a function that loads one, called once all
            else has been checked: also the data, if ``task`` is given. Default: the built-in demonstration.
        data: A path or source text (docs/data.md), a tensor of images, or batches of images or of (images, labels),
            preprocessed for the model.
        methods: Names, ``name:option=value`` or instances. Default: every training-free method, and smaller images.
        budgets: Shares of the unreduced MACs. Default: 0.8, 0.65, 0.5, then smaller ones until decisions break.
        batch_size: Images in a batch, also for timing.
        device: Where to run.
        limit: Number of images to use, drawn at random with ``seed``. Default: all.
        seconds: Time spent on timing each candidate.
        split: The split of the data. Default: the validation images, or everything if the data have no splits.
        classes: The names of the model's classes in its order, for data with named classes.
        checkpoints: Folders of ``fv.save`` with reduced models, which are measured too.
        seed: Seed for drawing ``limit`` images.
        workers: Processes that read images.
        max_broken: Share of unreadable images that is allowed.
        data_options: Passed to ``open_data``.
        task: What the model predicts. Default: what its head is for.
        task_options: Options of the task, such as ``{"ignore": 11}`` of segmentation.
        name: The model's name in the report.
        trained: Whether the model is trained. If not, only speeds mean something, and nothing is recommended.
        agreement: Recommend the fastest setting that keeps this share of decisions, instead of by the usual rule.
        latency_ms: Recommend by the longest time of a batch, in milliseconds.
        speedup: Recommend by the smallest speed-up.
        progress: Called during the work. Default: a bar, if a terminal or a notebook shows it.
        store: A folder for intermediate results (partial.json); saving the finished comparison there removes them.
        resume: Resume from the intermediate results in ``store``.
        runtimes: Also measure in these: ``compile``, ``onnxruntime``, ``openvino``, or ``all`` that are installed.
        precisions: Their precisions: ``fp32``, ``bf16``, ``int8``.
        calibration: Images that int8 is calibrated on, which should not be among ``data``.

    Returns:
        All measurements and the recommendation.

    Raises:
        ValueError: If the model, the data or a setting cannot be used.
        TypeError: If a method or ``data`` has the wrong type.
    """
    if model is not None and (not callable(model) or isinstance(model, type)):  # a module is callable too
        raise TypeError(f"model must be a model, or a function that loads one, got {shown(model)}.")
    check_progress(progress)
    check_type(str | None, "text", split=split, name=name, task=task)
    check_type(bool, "True or False", trained=trained, resume=resume)
    check_type(Mapping | None, "values by name", data_options=data_options, task_options=task_options)
    check_reading(workers, max_broken, classes)
    given_bounds = {"agreement": agreement, "latency_ms": latency_ms, "speedup": speedup}
    asked = Constraints(**given_bounds) if any(bound is not None for bound in given_bounds.values()) else None
    chosen, shares, folders = read_methods(methods), read_budgets(budgets), read_checkpoints(checkpoints)
    served = read_request(runtimes, precisions, calibration)
    place = checked_device(device)
    calibration = as_text(calibration)
    settings = Settings(
        tuple(chosen), shares, batch_size, place, limit, seconds, seed, folders, served, calibration, budgets is None
    )
    demonstration = model is None
    data = checked_data(data, demonstration)
    # the task of a model that is not loaded yet may not be known
    kind = find_task(task or "classification") if task or demonstration else None
    kind = find_task(task_of(model)) if kind is None and isinstance(model, nn.Module) else kind
    reading = Reading(split, classes, workers, max_broken, data_options or {}).with_task(kind, task_options)
    check_places(None if isinstance(model, nn.Module) else data, kind, reading, settings, store)
    if model is None:
        model, classes, name = built_in()
        reading = reading._replace(classes=classes)
    unreduced, given = prepared(model if isinstance(model, nn.Module) else model(), settings.device)
    if kind is None:
        kind = find_task(task_of(unreduced))
        reading = reading.with_task(kind, task_options)
    check_task(served, kind.name)
    judge = kind.for_model(unreduced, **reading.own)
    images = open_images(data, unreduced, settings, judge, reading)
    images.note = " ".join(filter(None, ("" if trained else UNTRAINED, images.note)))
    with shown_progress(progress) as told:
        found = all_candidates(unreduced, settings, given, images, told)
        job = Job(unreduced, name or name_of(unreduced), found, images, settings, told, trained, asked)
        return job.run(demonstration, None if store is None else Path(store), resume)


class Job:
    """A running comparison."""

    def __init__(
        self,
        unreduced: nn.Module,
        name: str,
        found: Candidates,
        images: Images,
        settings: Settings,
        progress: Progress,
        trained: bool = True,
        asked: Constraints | None = None,
    ) -> None:
        self.trained, self.asked = trained, asked
        self.unreduced, self.name, self.found, self.images, self.settings = unreduced, name, found, images, settings
        self.progress = progress
        self.fidelity = Fidelity({candidate.key: images.task.metrics() for candidate in found.all})
        self.speeds: dict[str, Speed] = {}
        self.in_runtimes: dict[str, list[InRuntime]] = {}
        self.maps = Maps()
        self.earlier_broken = 0
        self.partial: Partial | None = None
        self.stored_at = 0.0
        self.environment = describe_environment(settings.device, next(unreduced.parameters()).dtype)

    def run(self, demonstration: bool, store: Path | None, resume: bool) -> Comparison:
        """Measure everything; an interruption keeps what was measured."""
        if store is not None:
            self.partial = Partial(store, self._identity())
        if resume:
            self._resume()
        complete = False
        try:
            self._measure_fidelity()
            self._measure_speed()
            self._measure_in_runtimes()
            complete = True
        except KeyboardInterrupt:
            if not self.fidelity.images:
                raise
            self._store()
        except ValueError:
            if self.partial is not None and not resume:
                self.partial.discard()  # a resumed run keeps its file: it may continue with other options
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
        batch = noise_for(self.unreduced, self.settings.batch_size)
        for number, candidate in enumerate(candidates):
            self.progress("speed and memory", number, len(candidates))
            if candidate.key not in self.speeds:
                self.speeds[candidate.key] = measure_candidate(
                    self.unreduced, candidate, batch, self.settings.seconds, self.environment
                )
                self._store()
        self.progress("speed and memory", len(candidates), len(candidates))

    def _measure_in_runtimes(self) -> None:
        settings = self.settings
        if settings.runtimes:
            stage = RuntimeStage(self.unreduced, settings.runtimes, settings.calibration, self.images, settings.seconds)
            noise = noise_for(self.unreduced, settings.batch_size)
            stage.measure_all(self.found.all, self.in_runtimes, noise, self.progress, self._store)
            self.found = dataclasses.replace(self.found, refused=(*self.found.refused, *stage.refused))

    def _draw(self) -> None:
        try:
            self.maps = draw_maps(self.found.all, self.images, self.unreduced, self.progress)
        except KeyboardInterrupt:
            self.maps = Maps()  # the measurements matter more than the maps

    def _identity(self) -> dict[str, Any]:
        """Return what must be the same in a resumed run."""
        return {
            "model": {"name": self.name, "weights": weights_fingerprint(self.unreduced)},
            "data": {"source": self.images.source, "split": self.images.split, "images": self.images.fingerprint()},
            "candidates": [identity_of(candidate) for candidate in self.found.all],
            "environment": str(self.environment),
            **self.settings.as_dict(),
        }

    def _store(self) -> None:
        if self.partial is not None:
            speeds = {key: dataclasses.asdict(speed) for key, speed in self.speeds.items()}
            served = {key: [dataclasses.asdict(one) for one in found] for key, found in self.in_runtimes.items()}
            self.partial.write({"fidelity": self.fidelity.as_dict(), "speeds": speeds, "runtimes": served})
        self.stored_at = time.monotonic()

    def _resume(self) -> None:
        if self.images.fingerprint() is None:
            raise ValueError(
                "A run on tensors or batches cannot be resumed, because nothing shows whether the images are the "
                "same. Pass a folder or another source by name."
            )
        measured = None if self.partial is None else self.partial.read()
        if measured is None:
            return
        try:
            fidelity = Fidelity.from_dict(measured["fidelity"], self.images.task)
            speeds = {key: read_dataclass(Speed, stored, key) for key, stored in measured["speeds"].items()}
            stored = measured.get("runtimes", {}).items()
            served = {key: read_stored(found, len(self.found.all)) for key, found in stored}
            for candidate in self.found.all:
                fidelity.metrics[candidate.key].compute()
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            raise ValueError(
                f"The file of the interrupted run is damaged: {type(error).__name__}: {shown_error(error)}. "
                "Leave out --resume to begin anew."
            ) from error
        self.fidelity, self.speeds, self.earlier_broken = fidelity, speeds, fidelity.broken
        self.in_runtimes = served

    def _result(self, demonstration: bool, complete: bool) -> Comparison:
        entries = with_pareto([self._entry(candidate) for candidate in self.found.all])
        recommendation = self._recommendation(entries)
        return Comparison(
            model=described(self.unreduced, self.name),
            data=self._data(),
            options=self.settings.as_dict() | ({} if self.asked is None else {"asked": self.asked.as_dict()}),
            environment=dataclasses.asdict(self.environment) | {"drift": self._drift()},
            demonstration=demonstration,
            complete=complete,
            entries=entries,
            refused=self.found.refused,
            recommendation=recommendation,
            runtimes=tuple(one for found in self.in_runtimes.values() for one in found),
            gallery=self.maps.gallery,
            predictions=draw_predictions(self.found.all, entries, recommendation.entry, self.images),
        )

    def _recommendation(self, entries: tuple[Entry, ...]) -> Recommendation:
        if not self.trained:
            return Recommendation(None, UNTRAINED, "")
        batch_size, of = self.settings.batch_size, self.images.task.agreement_of
        return recommend(entries, self.fidelity.images, self._drift(), self.asked, batch_size, of)

    def _entry(self, candidate: Candidate) -> Entry:
        figures, costs = self._figures(candidate), cost(candidate.model)
        known: dict[str, Any] = {name: figures.get(name) for name in ENTRY_METRICS}
        return Entry(
            method=candidate.method,
            label=candidate.label,
            kind=candidate.kind,
            budget=candidate.budget,
            counts=candidate.counts,
            exact_last_block=candidate.reduction.exact_last_block,
            macs=costs.macs,
            mac_ratio=costs.macs / cost(self.unreduced).macs,
            params=costs.params,
            **known,
            **self._speed_fields(candidate),
            on_object=self.maps.on_object.get(candidate.key),
            pareto=False,
            python=candidate.python,
            metrics={name: value for name, value in figures.items() if name not in ENTRY_METRICS},
        )

    def _figures(self, candidate: Candidate) -> dict[str, Any]:
        """Return the task's metrics, without those that need targets if there are no valid ones."""
        task, found = self.images.task, self.fidelity.metrics[candidate.key].compute()
        names = {*task.comparisons, *(task.figures if self.images.has_targets else ())}
        return {name: value for name, value in found.items() if name in names}

    def _speed_fields(self, candidate: Candidate) -> dict[str, Any]:
        """Return measured ratios; images per second are ratios of one rate, so a slow minute favors no candidate."""
        names = ("images_per_second", "speed_up", "speed_up_quartiles", "efficiency", "overhead", "memory_mib")
        if not self.speeds:
            return dict.fromkeys(names)
        rate = median(speed.unreduced_per_second for speed in self.speeds.values())
        if candidate is self.found.all[0]:
            noise = noise_for(self.unreduced, self.settings.batch_size)
            memory = peak_memory(inspect(self.unreduced).image_model, noise)
            return dict(zip(names, (rate, 1.0, (1.0, 1.0), None, None, memory), strict=True))
        speed = self.speeds.get(candidate.key)
        if speed is None:
            return dict.fromkeys(names)
        overhead = None if speed.efficiency is None else max(0.0, 1 - speed.efficiency)
        found = dataclasses.asdict(speed) | {"images_per_second": rate * speed.speed_up, "overhead": overhead}
        return {name: found[name] for name in names}

    def _drift(self) -> float:
        """Return the best divided by the worst speed of the unreduced model, over the timings of all candidates."""
        rates = [speed.unreduced_per_second for speed in self.speeds.values()]
        return max(rates) / min(rates) if rates else 1.0

    def _data(self) -> dict[str, Any]:
        return {
            "source": self.images.source,
            "split": self.images.split,
            "images": self.fidelity.images,
            "labeled": self.images.has_targets,
            "agreement_of": self.images.task.agreement_of,
            "note": self.images.note,
            "broken": self.fidelity.broken,
        }
