"""The comparison itself: candidates, one pass over the images, timings in turns, and the decision."""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import time
from collections.abc import Iterable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from foveate.adapters import find_adapter, reduction_of
from foveate.api import cost, restore_
from foveate.data.preprocessing import Preprocessing
from foveate.methods.base import Method
from foveate.report.compare.candidates import (
    DEFAULT_BUDGETS,
    Candidate,
    Candidates,
    find_candidates,
    given_candidate,
    read_budgets,
    read_methods,
    twin_of,
    with_shared_weights,
)
from foveate.report.compare.comparison import Comparison, Entry
from foveate.report.compare.fidelity import Fidelity, Sums, measure_fidelity
from foveate.report.compare.images import FromSource, Images, from_tensors, open_source
from foveate.report.compare.maps import Maps, draw_maps
from foveate.report.compare.recommend import recommend, with_pareto
from foveate.report.compare.saving import Partial, check_writable
from foveate.report.compare.settings import DEFAULT_SECONDS, Progress, Settings, checked_settings
from foveate.report.compare.timing import Speed, measure_candidate, peak_memory
from foveate.report.environment import describe_environment
from foveate.train.classifier import predicted_classes

SECONDS_BETWEEN_STORES = 1.0
DEMONSTRATION_DATA = "scenes:"
"""The built-in images, for those who bring no model."""


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
    name: str | None = None,
    note: str = "",
    progress: Progress | None = None,
    store: str | PathLike[str] | None = None,
    resume: bool = False,
) -> Comparison:
    """Measure every training-free method at every budget of MACs on ``model``, which is not touched.

    ``data``: a path or source text (docs/data.md), a tensor of images, or batches of images or of (images, labels), as
    the model reads them. Without a model, the built-in demonstration runs. ``methods`` are names, ``name:option=value``
    or instances; ``checkpoints`` are folders of ``fv.save`` with reduced models, measured as they are. ``limit``
    images are drawn from all by ``seed``; ``seconds`` are spent on timing each candidate. ``classes`` names the
    model's classes in its order, where the data name theirs. ``store`` is a folder that keeps what is measured in
    partial.json, so that ``resume`` can go on; saving the finished comparison there removes it. Ctrl-C returns what is
    measured so far, with ``complete`` False.
    """
    settings = checked_settings(
        read_methods(methods), read_budgets(budgets), batch_size, device, limit, seconds, seed, checkpoints
    )
    demonstration = model is None
    if model is None:
        model, data, classes, name = _demonstration(data)
    whole, given = _prepared(model, settings.device)
    predicted = predicted_classes(whole)
    if predicted is None:
        raise ValueError(
            f"This {type(whole).__name__} predicts no classes, so that there are no decisions to compare. Give a model "
            "with a classifier."
        )
    if data is None:
        raise ValueError("A comparison needs images that the model knows: data, a folder for example.")
    reading = Reading(split, classes, workers, max_broken, data_options or {})
    images = _images(data, whole, settings, predicted, reading)
    images.note = " ".join(filter(None, (note, images.note)))
    found = find_candidates(whole, settings.methods, settings.budgets, settings.checkpoints, given)
    job = Job(whole, name or _name_of(whole), found, images, settings, progress)
    return job.run(demonstration, None if store is None else Path(store), resume)


class Reading(NamedTuple):
    """How data are opened and read."""

    split: str | None
    classes: Sequence[str] | None
    workers: int
    max_broken: float
    options: Mapping[str, Any]


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
        self.progress = progress or (lambda phase, done, total: None)
        self.fidelity = Fidelity({candidate.key: Sums() for candidate in found.all})
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
            self._take_up()
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
        size = find_adapter(self.whole).image_size(self.whole)
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

    def _take_up(self) -> None:
        if self.images.fingerprint() is None:
            raise ValueError(
                "A run on images given as tensors or batches cannot be resumed: nothing tells whether they are the "
                "same. Give a folder or another source by its name."
            )
        measured = None if self.partial is None else self.partial.read()
        if measured is None:
            return
        self.fidelity = Fidelity.from_dict(measured["fidelity"])
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
        sums, spent = self.fidelity.sums[candidate.key], cost(candidate.model)
        return Entry(
            method=candidate.method,
            label=candidate.label,
            kind=candidate.kind,
            budget=candidate.budget,
            counts=candidate.counts,
            exact_last_block=candidate.exact_last_block,
            macs=spent.macs,
            mac_ratio=spent.macs / cost(self.whole).macs,
            params=spent.params,
            top1=sums.top1 if self.images.labelled else None,
            top5=sums.top5 if self.images.labelled else None,
            agreement=sums.agreement,
            kl=sums.kl,
            **self._speed_fields(candidate),
            on_object=self.maps.on_object.get(candidate.key),
            pareto=False,
            python=candidate.python,
        )

    def _speed_fields(self, candidate: Candidate) -> dict[str, Any]:
        """Ratios are as measured; images per second are ratios of one rate, so that a slow minute favours nobody."""
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
        adapter, spent = find_adapter(self.whole), cost(self.whole)
        size = adapter.image_size(self.whole)
        return {
            "name": self.name,
            "params": spent.params,
            "macs": spent.macs,
            "image_size": list(size),
            "grid": list(adapter.grid(self.whole, *size[1:])),
            "blocks": len(adapter.blocks(self.whole)),
            "prefix": adapter.num_prefix(self.whole),
            "num_classes": predicted_classes(self.whole),
        }

    def _data(self) -> dict[str, Any]:
        return {
            "source": self.images.source,
            "split": self.images.split,
            "images": self.fidelity.images,
            "labelled": self.images.labelled,
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


def _prepared(model: nn.Module, device: torch.device) -> tuple[nn.Module, list[Candidate]]:
    """The unreduced model, ready to run, and the given one as a candidate where it was reduced already."""
    find_adapter(model)  # a model that is refused is refused here
    reduction = reduction_of(model)
    if reduction is not None and reduction.unit_qk is not None:
        raise ValueError(
            "This model attends over unit queries and keys (unit_qk), which no other candidate would: a comparison "
            "would be with a model that nobody trained. Measure it with foveate speed and foveate eval."
        )
    at_home = next(model.parameters()).device == device
    own = (with_shared_weights if at_home else copy.deepcopy)(model).eval().to(device)
    if reduction_of(own) is None:
        return own, []
    return restore_(twin_of(own)), [given_candidate(own)]


def _images(data: Any, model: nn.Module, settings: Settings, predicted: int, reading: Reading) -> Images:
    if not isinstance(data, str | PathLike):
        return from_tensors(data, settings.batch_size, settings.limit, predicted)
    opened, note = open_source(str(data), reading.split, predicted, reading.classes, **reading.options)
    return FromSource(
        opened,
        str(data),
        Preprocessing.of(model).evaluation(),
        settings.batch_size,
        limit=settings.limit,
        seed=settings.seed,
        note=note,
        workers=reading.workers,
        max_broken=reading.max_broken,
    )


def _demonstration(data: Any) -> tuple[nn.Module, str, Sequence[str], str]:
    """The built-in model, the built-in scenes, what the one tells apart in the other, and a name."""
    from foveate.models.demo import demo_classes, demo_model

    source = DEMONSTRATION_DATA if data is None else data
    if not isinstance(source, str) or not source.startswith(DEMONSTRATION_DATA):
        raise ValueError(
            f"Images were given and no model. The built-in demonstration knows {DEMONSTRATION_DATA} alone."
        )
    return demo_model(), source, demo_classes(), "built-in demonstration model"


def _name_of(model: Any) -> str:
    known = getattr(model, "pretrained_cfg", None) or {}
    return str(known.get("architecture") or type(model).__name__)


def _speed(stored: dict[str, Any]) -> Speed:
    first, third = stored["speed_up_quartiles"]
    return Speed(**{**stored, "speed_up_quartiles": (first, third)})
