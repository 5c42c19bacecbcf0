"""``fv.search``: from a constraint and unlabeled images to a ``Reduction``.

1. A table for each method: how much the output diverges if one block alone reduces its tokens (``sensitivity``).
2. From the table and a cost that adds up over blocks, dynamic programming finds counts for any budget (``allocation``).
3. From the same tables, the best mixture of two methods; it goes on if it promises to be better than each alone
   (``mixing``).
4. Counts are measured and changed at random where that helps (``refining``).
5. Finalists are judged by images that chose nothing, and timed if the constraint is on time.

A bound on quality becomes the smallest budget whose counts keep it; a bound on cost is the budget itself.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from os import PathLike

from torch import Tensor, nn

from foveate.adapters import copy_unreduced, inspect
from foveate.evaluation.bars import shown_progress
from foveate.evaluation.progress import Progress
from foveate.evaluation.timing import check_positive, check_progress, check_seconds, check_workers
from foveate.methods.base import Method, Site
from foveate.methods.options import parse
from foveate.methods.validation import check_type, shown
from foveate.tasks import Task
from foveate.tuning.constraints import Constraints, Goal, check_goal
from foveate.tuning.found import Found
from foveate.tuning.judging import Judge, divided, qualities_of, read_images, task_of
from foveate.tuning.known import Known, RememberingJudge
from foveate.tuning.strategy import Strategy

METHODS = ("Ward", "ToMe", "TokenPooling", "EViT")
"""Methods that are searched by default; those that keep the most without training."""


def search(
    model: nn.Module,
    images: Tensor | str | PathLike[str],
    *,
    agreement: float | None = None,
    miou: float | None = None,
    cosine: float | None = None,
    latency_ms: float | None = None,
    speedup: float | None = None,
    macs: float | None = None,
    memory_mib: float | None = None,
    optimize: Goal = "macs",
    methods: Sequence[Method | str] = METHODS,
    mixtures: bool = True,
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
    keeps it, by what ``optimize`` names; for a bound on cost, the reduction that keeps the most quality.

    Args:
        model: an unreduced, trained model.
        images: a source of images, or a tensor (N, channels, height, width) as the model reads them.
        agreement: smallest share of decisions that stay as they were, such as 0.99; in segmentation, of pixels.
        miou: smallest mean IoU of masks with those of the unreduced model, for segmentation.
        cosine: smallest mean cosine to the unreduced embedding, for models without a classifier.
        latency_ms: longest time of a batch on this machine, in milliseconds.
        speedup: smallest speed-up on this machine.
        macs: largest share of the unreduced multiply-accumulates; of a dense model, of its encoder's.
        memory_mib: largest peak of a pass beyond weights and images, in MiB.
        optimize: what to make small for a bound on quality: ``macs``, ``latency`` on this machine or ``memory``.
        methods: methods to search, or their names.
        mixtures: also try the best mixture of two of them (``Mixture``), if what was measured of each predicts it to be
            better than each alone. For a bound on memory there is no such prediction.
        calibration: images that choose.
        validation: other images that judge. If there are fewer in all, both get their share.
        trials: random changes of the counts of each finalist.
        batch_size: images in a batch, for times and memory.
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
    constraints = Constraints(agreement, miou, cosine, latency_ms, speedup, macs, memory_mib)
    check_goal(optimize, constraints)
    check_positive(calibration=calibration, validation=validation, batch_size=batch_size, trials=trials)
    check_progress(progress)
    check_seconds(seconds)
    check_workers(workers)
    check_type(str | None, "text", split=split)
    check_type(int, "a whole number", seed=seed)
    check_type(bool, "True or False", mixtures=mixtures)
    chosen = _methods(methods)
    whole = _unreduced(model)
    task = task_of(whole)
    _check_quality(constraints, task)
    fitting = [m for m in chosen if inspect(whole).has_cls or not m.needs_class_token]
    if not fitting:
        raise ValueError("None of the methods can reduce this model; they need a class token.")
    pool = read_images(whole, images, task, calibration + validation, seed, split, workers)
    choosing, judging = divided(pool, calibration, validation)
    quality = constraints.quality or qualities_of(task)[0]
    known = None if measurements is None else Known(measurements, whole, choosing, quality)
    judge = RememberingJudge(whole, choosing, task, quality, known)
    started = time.monotonic()
    with shown_progress(progress) as told:
        run = Strategy(whole, constraints, optimize, fitting, judge, trials, batch_size, seed, told, mixtures)
        try:
            run.run()
        finally:
            if known is not None:
                known.write()
        run.finish(Judge(whole, judging, task, quality), seconds)
        return run.found(started, seconds)


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


def _check_quality(constraints: Constraints, task: Task) -> None:
    known = qualities_of(task)
    if constraints.quality is not None and constraints.quality not in known:
        kind = {"classification": "predicts classes", "segmentation": "predicts masks"}.get(task.name, "has no head")
        raise ValueError(f"{constraints.quality} does not fit: this model {kind}. Use {' or '.join(known)}.")
