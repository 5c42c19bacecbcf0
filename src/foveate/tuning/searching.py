"""``fv.search``: from a constraint and unlabeled images to a ``Reduction``.

1. A table for each method: how much the output diverges if one block alone reduces its tokens (``sensitivity``).
2. From the table and a cost that adds up over blocks, dynamic programming finds counts for any budget (``allocation``).
3. Counts are measured and changed at random where that helps (``refining``).
4. Finalists are judged by images that chose nothing, and timed if the constraint is on time.

A bound on quality becomes the smallest budget whose counts keep it; a bound on cost is the budget itself.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from os import PathLike
from typing import Any

from torch import Tensor, nn

from foveate.adapters import copy_unreduced, inspect
from foveate.api import cost
from foveate.evaluation.bars import shown_progress
from foveate.evaluation.progress import Progress
from foveate.evaluation.speed import measure_speed
from foveate.evaluation.timing import check_positive, check_progress, check_seconds, check_workers
from foveate.methods.base import Method, Site
from foveate.methods.options import method_text, parse
from foveate.methods.validation import check_type, shown
from foveate.reductions import Reduction
from foveate.schedules import Keep
from foveate.tuning.allocation import cheapest_within
from foveate.tuning.constraints import Constraints, UnmetConstraint
from foveate.tuning.expenses import Expense, Macs, Seconds
from foveate.tuning.found import Finalist, Found
from foveate.tuning.judging import Judge, Judged, halves, read_images, task_of
from foveate.tuning.known import Known, RememberingJudge
from foveate.tuning.refining import refined
from foveate.tuning.sensitivity import levels_of, sensitivities

METHODS = ("Ward", "ToMe", "TokenPooling", "EViT")
"""Methods that are searched by default; those that keep the most without training."""
TABLE_IMAGES = 64
"""Images for a table of sensitivities: differences between blocks are tenfold, so few are enough."""
BISECTIONS = 7
MARGIN = 0.5
"""Standard errors that a quality must exceed its bound by where settings are chosen, as the best of many is lucky."""


def search(
    model: nn.Module,
    images: Tensor | str | PathLike[str],
    *,
    agreement: float | None = None,
    cosine: float | None = None,
    latency_ms: float | None = None,
    speedup: float | None = None,
    macs: float | None = None,
    methods: Sequence[Method | str] = METHODS,
    calibration: int = 256,
    validation: int = 256,
    trials: int = 40,
    batch_size: int = 1,
    split: str | None = None,
    workers: int = 0,
    seed: int = 0,
    seconds: float = 10.0,
    measurements: str | PathLike[str] | None = None,
    progress: Progress | None = None,
) -> Found:
    """Find the reduction of ``model`` that meets a constraint best, without labels. The model does not change.

    Give one bound on quality, one on cost, or one of each. For a bound on quality it finds the cheapest reduction that
    keeps it; for a bound on cost, the reduction that keeps the most quality.

    Args:
        model: an unreduced, trained model.
        images: a source of images, or a tensor (N, channels, height, width) as the model reads them.
        agreement: smallest share of decisions that stay as they were, such as 0.99.
        cosine: smallest mean cosine to the unreduced embedding, for models without a classifier.
        latency_ms: longest time of a batch on this machine, in milliseconds.
        speedup: smallest speed-up on this machine.
        macs: largest share of the unreduced multiply-accumulates.
        methods: methods to search, or their names.
        calibration: images that choose; at most half of those that there are.
        validation: other images that judge.
        trials: random changes of the counts of each finalist.
        batch_size: images in a batch, for latency_ms and speedup.
        split: split of the source.
        workers: processes that read images.
        seed: of the images and the changes.
        seconds: time to measure the speed of each finalist.
        measurements: a file that keeps every measurement. A search that finds it there goes on from it, and one with
            another constraint on the same images begins with its tables.
        progress: called as the search goes on. Default: a bar, if a terminal or a notebook shows it.

    Returns:
        The reduction with everything that shows why it was chosen. Interrupted by Ctrl-C, the best so far.

    Raises:
        UnmetConstraint: if nothing that was searched meets the constraint; the message names the nearest.
        ValueError: if constraints contradict each other, or there are too few images.
    """
    constraints = Constraints(agreement, cosine, latency_ms, speedup, macs)
    check_positive(calibration=calibration, validation=validation, batch_size=batch_size, trials=trials)
    check_progress(progress)
    check_seconds(seconds)
    check_workers(workers)
    check_type(str | None, "text", split=split)
    check_type(int, "a whole number", seed=seed)
    chosen = _methods(methods)
    whole = _unreduced(model)
    task = task_of(whole)
    _check_quality(constraints, inspect(whole).num_classes is not None)
    fitting = [m for m in chosen if inspect(whole).has_cls or not m.needs_class_token]
    if not fitting:
        raise ValueError("None of the methods can reduce this model; they need a class token.")
    pool = read_images(whole, images, task, calibration + validation, seed, split, workers)
    choosing, judging = halves(pool, calibration)
    known = None if measurements is None else Known(measurements, whole, choosing)
    judge = RememberingJudge(whole, choosing, task, known)
    started = time.monotonic()
    with shown_progress(progress) as told:
        run = _Search(whole, constraints, fitting, judge, trials, batch_size, seed, told)
        try:
            run.run()
        finally:
            if known is not None:
                known.write()
        run.finish(Judge(whole, judging, task), seconds)
    return run.found(time.monotonic() - started)


def _methods(given: Sequence[Method | str]) -> list[Method]:
    if isinstance(given, Method | str):
        return [_method(given)]
    check_type(list | tuple, "a list of methods or their names", methods=given)
    return [_method(one) for one in given]


def _method(given: Method | str) -> Method:
    method = parse(given) if isinstance(given, str) else given
    if not isinstance(method, Method):
        raise TypeError(f"methods must be methods or their names, got {shown(given)}.")
    if method.site is Site.KV or not method.training_free or type(method).own_counts is not Method.own_counts:
        raise ValueError(f"{method.name} cannot be searched: it needs training, keeps all tokens or fixes its counts.")
    return method


def _unreduced(model: nn.Module) -> nn.Module:
    family = inspect(model)
    family.require_reducible()
    if not family.reduction.is_identity:
        raise ValueError("search takes an unreduced model. Call restore_(model) first.")
    return copy_unreduced(model).eval()


def _check_quality(constraints: Constraints, classifies: bool) -> None:
    if constraints.agreement is not None and not classifies:
        raise ValueError("agreement is a share of decisions, but this model predicts no classes. Use cosine.")
    if constraints.cosine is not None and classifies:
        raise ValueError("cosine is for embeddings, but this model predicts classes. Use agreement.")


@dataclass
class _Search:
    """The state of a search."""

    model: nn.Module
    constraints: Constraints
    methods: Sequence[Method]
    judge: Judge
    trials: int
    batch_size: int
    seed: int
    progress: Progress
    tables: dict[str, list[list[float]]] = field(default_factory=dict)
    trials_done: list[tuple[Reduction, Judged]] = field(default_factory=list)
    finalists: list[Finalist] = field(default_factory=list)
    complete: bool = False

    def __post_init__(self) -> None:
        self.shape = inspect(self.model).shape()
        self.exact = not self.shape.head_reads_patches and self.shape.num_prefix > 0
        self.levels = levels_of(self.shape.num_patches)
        self.expense: Expense = Macs(self.shape, self.exact)

    def run(self) -> None:
        """Search until done or interrupted."""
        try:
            if self.constraints.needs_times:
                self.progress("times of blocks", 0, None)
                self.expense = Seconds(self.model, self.methods, self.batch_size, self.exact)
                self.progress("times of blocks", 1, 1)
            for method in self.methods:
                table = sensitivities(self.judge, method, self.exact, TABLE_IMAGES, self.progress)
                self.tables[method_text(method)] = table
            if self.constraints.expense is not None:
                self._for_budget(self._budget())
            else:
                self._for_quality()
            self.complete = True
        except KeyboardInterrupt:
            if not self.trials_done:
                raise

    def _budget(self) -> float:
        """The largest cost that the constraint allows, in units of ``expense``."""
        bounds, whole = self.constraints, self.expense.whole()
        if bounds.macs is not None:
            return bounds.macs * whole
        return bounds.latency_ms / 1000 if bounds.latency_ms is not None else whole / (bounds.speedup or 1.0)

    def _allocated(self, method: Method, budget: float) -> tuple[int, ...] | None:
        found = cheapest_within(
            self.levels,
            self.tables[method_text(method)],
            cache(partial(self.expense.of_block, method)),
            budget - self.expense.fixed(),
            lambda before, after: after >= method.fewest(before),
        )
        return None if found is None else found.counts

    def _by_default(self, method: Method, budget: float) -> tuple[int, ...] | None:
        """The method's own default counts (docs/schedules.md) for a budget; None if they cannot meet it."""
        weak, strong, found = 0.0, 1.0, None
        for _ in range(30):
            strength = (weak + strong) / 2
            counts = method.spread(strength, self.shape.depth, self.shape.num_patches)
            if self.expense.total(method, counts, self.shape.num_patches) > budget:
                weak = strength
            else:
                strong, found = strength, counts
        return found

    def _for_budget(self, budget: float) -> None:
        """Counts of every method for a budget, from its table and by default; the best two are refined."""
        begun = []
        for number, method in enumerate(self.methods):
            starts = dict.fromkeys((self._allocated(method, budget), self._by_default(method, budget)))
            measured = [(self._measured(method, one).divergence, number, one) for one in starts if one is not None]
            begun += sorted(measured)[:1]
        if not begun:
            raise UnmetConstraint(f"No method reaches {self.constraints} on this model.")
        for _, index, counts in sorted(begun)[:2]:
            self._refine(self.methods[index], counts, budget)

    def _for_quality(self) -> None:
        """The smallest budget of each method whose counts keep the quality, then finer counts there."""
        whole = self.expense.whole()
        ends = []
        for method in self.methods:
            share = self._smallest_share(method)
            if share is not None:
                ends.append((share, self.methods.index(method)))
        for share, index in sorted(ends)[:2]:
            method = self.methods[index]
            for step in (1.0, 0.97, 0.94, 0.91):  # refined counts may keep the quality at a smaller budget
                counts = self._allocated(method, share * step * whole)
                if counts is None or not self._keeps(self._refine(method, counts, share * step * whole)):
                    break

    def _smallest_share(self, method: Method) -> float | None:
        """By bisection; None if even a small reduction changes too much."""
        low, high, found = 0.05, 0.98, None
        for done in range(BISECTIONS):
            middle = (low + high) / 2
            counts = self._allocated(method, middle * self.expense.whole())
            if counts is not None and self._keeps(self._measured(method, counts)):
                high = found = middle
            else:
                low = middle
            self.progress(f"budget of {method.name}", done + 1, BISECTIONS)
        return found

    def _keeps(self, judged: Judged) -> bool:
        bound = self.constraints.agreement if self.constraints.agreement is not None else self.constraints.cosine
        assert bound is not None
        return judged.quality >= min(1.0, bound + MARGIN * judged.standard_error)

    def _measured(self, method: Method, counts: tuple[int, ...]) -> Judged:
        reduction = Reduction(method, Keep(list(counts)), exact_last_block=self.exact)
        judged = self.judge.judge(reduction)
        self.trials_done.append((reduction, judged))
        return judged

    def _refine(self, method: Method, counts: tuple[int, ...], budget: float) -> Judged:
        patches = self.shape.num_patches
        best, _ = refined(
            counts,
            patches,
            method,
            lambda tried: self.expense.total(method, tried, patches),
            budget,
            lambda tried: self.judge.judge(self._reduction(method, tried)).divergence,
            self.trials,
            self.seed,
            lambda done, lowest: self.progress(
                f"refining {method.name}", done, self.trials, f"divergence {lowest:.4f}"
            ),
            lambda tried: self.judge.judge(self._reduction(method, tried), TABLE_IMAGES).divergence,
        )
        return self._measured(method, best)

    def _reduction(self, method: Method, counts: tuple[int, ...]) -> Reduction:
        return Reduction(method, Keep(list(counts)), exact_last_block=self.exact)

    def finish(self, judge: Judge, seconds: float) -> None:
        """Judge the most promising settings by other images, and time them if the constraint is on time."""
        whole, promising = cost(self.model).macs, self._promising()
        for done, (reduction, calibrated) in enumerate(promising):
            self.progress("finalists", done, len(promising))
            macs = inspect(reduction.apply_(copy_unreduced(self.model))).cost().macs / whole
            speed = predicted = None
            if self.constraints.needs_times:
                method, counts = reduction.method, reduction.plan(self.shape).counts
                assert method is not None
                predicted = self.expense.whole() / self.expense.total(method, counts, self.shape.num_patches)
                timed = measure_speed(self.model, reduction, batch_size=self.batch_size, seconds=seconds)
                speed = timed.speed_up
            self.finalists.append(Finalist(reduction, macs, calibrated, judge.judge(reduction), predicted, speed))
        self.progress("finalists", len(promising), len(promising))

    def _promising(self) -> list[tuple[Reduction, Judged]]:
        """The two best, and for a bound on quality gentler ones to fall back on."""
        if self.constraints.quality is None or self.constraints.expense is not None:
            return sorted(self.trials_done, key=lambda one: one[1].divergence)[:2]
        keeping = [one for one in self.trials_done if self._keeps(one[1])]
        by_cost = sorted(keeping, key=lambda one: self._cost(one[0]))
        return by_cost[:4] or sorted(self.trials_done, key=lambda one: -one[1].quality)[:1]

    def _cost(self, reduction: Reduction) -> float:
        assert reduction.method is not None
        return self.expense.total(reduction.method, reduction.plan(self.shape).counts, self.shape.num_patches)

    def found(self, seconds: float) -> Found:
        """The first finalist that meets the constraint.

        Raises:
            UnmetConstraint: if none does and the search was complete.
        """
        meeting = [one for one in self.finalists if self._meets(one)]
        best = (meeting or self.finalists)[0]
        details: dict[str, Any] = {
            "seed": self.seed,
            "seconds": round(seconds, 1),
            "calibration_images": len(self.judge.images),
            "levels": list(self.levels),
            "sensitivities": self.tables,
            "measured": [
                {"reduction": r.text, "quality": j.quality, "divergence": j.divergence} for r, j in self.trials_done
            ],
        }
        order = (best, *(one for one in self.finalists if one is not best))
        result = Found(best.reduction, self.constraints, best, order, bool(meeting), self.complete, details)
        if not meeting and self.complete:
            raise UnmetConstraint(f"Nothing that was searched meets {self.constraints}. The nearest: {result}.")
        return result

    def _meets(self, one: Finalist) -> bool:
        bounds = self.constraints
        quality = bounds.agreement if bounds.agreement is not None else bounds.cosine
        if quality is not None and one.judged.quality < quality - one.judged.standard_error:
            return False
        if bounds.macs is not None:
            return one.macs <= bounds.macs * 1.005
        return one.speedup is None or self._fast_enough(one.speedup)

    def _fast_enough(self, speedup: float) -> bool:
        if self.constraints.speedup is not None:
            return speedup >= 0.95 * self.constraints.speedup
        longest = self.constraints.latency_ms
        return longest is None or self.expense.whole() / speedup <= 1.05 * longest / 1000
