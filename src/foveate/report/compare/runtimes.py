"""The candidates of a comparison in other runtimes: decisions, speed, and what to serve."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from typing import Any

import torch
from torch import Tensor, nn

from foveate.adapters import inspect
from foveate.data.preprocessing import Preprocessing
from foveate.deploy.quantize import CALIBRATION_IMAGES
from foveate.deploy.runtimes import EAGER, Ready, Runtime, prepare, read_runtimes
from foveate.deploy.samples import sample
from foveate.deploy.speed import Variant, run_twice, summarized, time_in_turns
from foveate.evaluation.progress import Progress
from foveate.evaluation.side_by_side import evaluate
from foveate.methods.validation import shown_error
from foveate.report.compare.candidates import Candidate, free_slice_of
from foveate.report.compare.comparison import Refused
from foveate.report.compare.images import Images
from foveate.report.compare.question import SMALLER_IMAGES
from foveate.report.compare.served import InRuntime

LATENCY_BATCH = 1
"""Measured beside the comparison's own batch size."""
PHASE = "other runtimes"


def as_text(calibration: Any) -> Any:
    """A source as text, so that it can be compared with that of a resumed run; a tensor stays."""
    return str(calibration) if isinstance(calibration, PathLike) else calibration


def read_request(names: Sequence[str], precisions: Sequence[str], calibration: Any) -> tuple[Runtime, ...]:
    """The runtimes to measure in; none unless any are named.

    Raises:
        ValueError: if a name is unknown, a runtime is not installed, or int8 has no images to calibrate on.
    """
    if not names:
        return ()
    found, _ = read_runtimes(names, precisions)
    if calibration is None and any(runtime.precision == "int8" for runtime in found):
        raise ValueError(
            "int8 is calibrated on images that do not judge it. Name some with --calibration SOURCE (calibration=...)."
        )
    return tuple(runtime for runtime in found if runtime != EAGER)


def check_task(runtimes: Sequence[Runtime], task: str) -> None:
    """Raise a ValueError if runtimes are asked for and ``task`` is not the one whose decisions are compared there."""
    if runtimes and task != "classification":
        raise ValueError(
            f"Other runtimes are compared by the classes they predict, and this is {task}. Leave out the runtimes."
        )


class RuntimeStage:
    """Measures candidate after candidate in all runtimes, in turns with the unreduced model."""

    def __init__(
        self, unreduced: nn.Module, runtimes: Sequence[Runtime], calibration: Any, images: Images, seconds: float
    ) -> None:
        self.unreduced, self.runtimes, self.images, self.seconds = unreduced, runtimes, images, seconds
        channels = inspect(unreduced).image_size[0]
        preprocessing = Preprocessing.of(unreduced)
        self.examples = sample(calibration, preprocessing, None, CALIBRATION_IMAGES, channels)
        self.base: dict[Variant, Ready] = {}
        self.refused: list[Refused] = []

    def measure_all(
        self,
        candidates: Sequence[Candidate],
        found: dict[str, list[InRuntime]],
        noise: Tensor,
        progress: Progress,
        store: Callable[[], None],
    ) -> None:
        """Add what is missing to ``found``, by the candidates' keys.

        Args:
            candidates: the unreduced model first.
            found: measurements so far.
            noise: a batch of random images: speeds do not depend on the content.
            progress: called before each candidate.
            store: called after each candidate.
        """
        batches = [noise[:size] for size in dict.fromkeys((LATENCY_BATCH, len(noise)))]
        for number, candidate in enumerate(candidates):
            progress(PHASE, number, len(candidates))
            if candidate.key in found or candidate.method == SMALLER_IMAGES:
                continue
            try:
                found[candidate.key] = self.measure(number, candidate, batches)
            except ValueError as error:
                self.refused.append(_refused(candidate, error))
            store()
        progress(PHASE, len(candidates), len(candidates))

    def measure(self, number: int, candidate: Candidate, batches: Sequence[Tensor]) -> list[InRuntime]:
        """Measure one candidate.

        Args:
            number: its index among the entries; 0 is the unreduced model.
            candidate: the candidate.
            batches: one batch of images for each batch size.

        Raises:
            ValueError: if it cannot be exported.
        """
        if not self.base:
            self.base = {
                Variant(0, runtime): self._ready(self.unreduced, runtime) for runtime in (EAGER, *self.runtimes)
            }
        variants = dict(self.base)
        free = free_slice_of(candidate) if number else None
        for runtime in self.runtimes if number else ():
            variants[Variant(1, runtime)] = self._ready(candidate.model, runtime)
            if free is not None:
                variants[Variant(1, runtime, sliced=True)] = self._ready(free, runtime)
        own = {variant: ready for variant, ready in variants.items() if variant.reduction == bool(number)}
        agreements = self._agreements({v.runtime: ready for v, ready in own.items() if not v.sliced})
        found = []
        for images in batches:
            timers = {variant: run_twice(ready.for_batch(len(images)), images) for variant, ready in variants.items()}
            timed = time_in_turns(timers, None, self.seconds * len(self.runtimes))
            reductions = [inspect(self.unreduced).reduction, candidate.reduction]
            for result in summarized(reductions, variants, timed, len(images), torch.get_num_threads()):
                if result.runtime != EAGER and result.reduction is reductions[bool(number)]:
                    shared: dict[str, Any] = {"entry": number, "agreement": agreements[result.runtime]}
                    shared |= {"runtime": result.runtime.name, "precision": result.runtime.precision}
                    names = [f.name for f in dataclasses.fields(InRuntime) if f.name not in shared]
                    found.append(InRuntime(**shared, **{name: getattr(result, name) for name in names}))
        return found

    def _ready(self, model: nn.Module, runtime: Runtime) -> Ready:
        return prepare(inspect(model).image_model, runtime, self.examples)

    def _agreements(self, ready: Mapping[Runtime, Ready]) -> dict[Runtime, float]:
        """Percent of decisions equal to the unreduced model's in eager PyTorch, over all images."""
        models = {"unreduced": self.unreduced} | {r.title: _Running(one) for r, one in ready.items() if r != EAGER}
        batches = self.images.batches(0, 0)
        found = evaluate(models, batches, self.images.task, torch.device("cpu"), dtype=torch.float32, compare=True)
        return {r: found.metrics[r.title].compute()["agreement"] for r in ready if r != EAGER}


class _Running(nn.Module):
    """A model in a runtime, called like a module."""

    def __init__(self, ready: Ready) -> None:
        super().__init__()
        self.ready = ready

    def forward(self, images: Tensor) -> Tensor:
        return self.ready.run(images)


def _refused(candidate: Candidate, error: ValueError) -> Refused:
    """Why a candidate was not measured in other runtimes."""
    reason = f"Not measured in other runtimes: {shown_error(error)}"
    return Refused(candidate.method, candidate.label, candidate.budget, reason)
