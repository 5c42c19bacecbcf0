"""How far a reduced model is from the unreduced one, on images whose labels nobody needs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from os import PathLike
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity

from foveate import tasks
from foveate.adapters import copy_reducible
from foveate.data.loader import Loader
from foveate.data.preprocessing import Preprocessing
from foveate.data.source import ImageData, drawn_from
from foveate.evaluation.side_by_side import first_images
from foveate.reductions import Reduction
from foveate.tasks import Task, find_task
from foveate.tuning.constraints import Quality

FEWEST_IMAGES = 32
"""Fewer calibration images tell nothing about a share of decisions."""
BATCH = 25


class Judged(NamedTuple):
    """The distance of a reduced model from the unreduced one."""

    divergence: float
    """Mean KL divergence of predictions, or one minus the mean cosine of embeddings."""
    quality: float
    """Share of unchanged decisions or pixels, mean IoU with the unreduced model's masks, or mean cosine."""
    images: int
    what: str = "of decisions unchanged"
    """The quality in words."""
    distance: float = math.nan
    """Mean over images of the square root of their divergence: a search lowers it, as it tells better than the mean
    divergence, which a few images dominate, how many decisions stay on other images (docs/search.md)."""

    @property
    def standard_error(self) -> float:
        """Of a share of decisions; for the other qualities, an upper limit."""
        return math.sqrt(max(self.quality * (1 - self.quality), 0.25 / self.images) / self.images)


class Judge:
    """The outputs of the unreduced model on some images, to which others are compared."""

    def __init__(self, model: nn.Module, images: Tensor, task: Task, quality: Quality | None = None) -> None:
        """``quality`` chooses between several that a task has; None takes its first."""
        self.model, self.images, self.task = model, images, task
        self.quality = quality or qualities_of(task)[0]
        self.reference = [self._predicted(model, batch) for batch in images.split(BATCH)]

    def judge(self, reduction: Reduction, limit: int | None = None) -> Judged:
        """Compare a reduced copy of the model on the first ``limit`` images; the model itself does not change."""
        return self.compare(reduction.apply_(copy_reducible(self.model)), limit)

    def compare(self, reduced: nn.Module, limit: int | None = None) -> Judged:
        """Compare another model on the first ``limit`` images."""
        metrics, distances = self.task.metrics(), []
        for batch, reference in zip(self.images[:limit].split(BATCH), self.reference, strict=False):
            whole, predicted = reference[: len(batch)], self._predicted(reduced, batch)
            # nobody's labels; masks are compared with those of the unreduced model
            targets = whole.argmax(dim=1) if self.quality == "miou" else self.task.read_targets(None, len(batch))
            metrics.update(predicted, targets, whole)
            distances.append(self._distances(whole, predicted))
        found, distance = metrics.compute(), float(torch.cat(distances).mean())
        if self.quality == "cosine":
            return Judged(1 - found["cosine"], found["cosine"], metrics.images, self._in_words(), distance)
        return Judged(found["kl"], found[self.quality] / 100, metrics.images, self._in_words(), distance)

    def _distances(self, whole: Tensor, predicted: Tensor) -> Tensor:
        """The root of every image's divergence, (B,): of its prediction, mask or embedding (B, C, ...)."""
        if self.quality == "cosine":
            return (1 - cosine_similarity(whole, predicted, dim=-1)).clamp_min(0).sqrt()
        log_p, log_q = whole.log_softmax(dim=1), predicted.log_softmax(dim=1)
        places = (log_p.exp() * (log_p - log_q)).sum(dim=1)  # (B, ...): one place, or those of a mask
        return places.reshape(len(places), -1).mean(dim=1).clamp_min(0).sqrt()

    def _in_words(self) -> str:
        words = {"cosine": "cosine", "miou": "mIoU with the unreduced model's masks"}
        return words.get(self.quality, f"of {self.task.agreement_of} unchanged")

    @torch.inference_mode()
    def _predicted(self, model: nn.Module, images: Tensor) -> Any:
        reference = next(model.parameters())
        return self.task.predict(model, images.to(reference.device, reference.dtype))


QUALITIES_OF: dict[str, tuple[Quality, ...]] = {
    "classification": ("agreement",),
    "segmentation": ("agreement", "miou"),
    "embedding": ("cosine",),
}


def qualities_of(task: Task) -> tuple[Quality, ...]:
    """The qualities that need no labels, for a task."""
    return QUALITIES_OF[task.name]


def task_of(model: nn.Module) -> Task:
    """The task that the model's head is for; without a head, its embedding.

    Raises:
        ValueError: if predictions of this task cannot be compared without labels.
    """
    name = tasks.task_of(model)
    if name not in QUALITIES_OF:
        raise ValueError(
            f"This {type(model).__name__} is for {name}, whose predictions cannot be compared without labels, as those "
            "of classifiers, encoders and models for segmentation can. Compare budgets by foveate eval."
        )
    return find_task(name).for_model(model)


def read_images(
    model: nn.Module, images: Any, task: Task, wanted: int, seed: int, split: str | None, workers: int
) -> Tensor:
    """Up to ``wanted`` images as the model reads them, drawn at random from a source.

    Raises:
        ValueError: if there are fewer than twice ``FEWEST_IMAGES``: some choose, others judge.
    """
    found = images if isinstance(images, Tensor) else _from_source(model, images, task, wanted, seed, split, workers)
    if found.dim() != 4:
        raise ValueError(f"Images must be a tensor (N, channels, height, width) or a source, got {tuple(found.shape)}.")
    found = found[:wanted]
    if len(found) < 2 * FEWEST_IMAGES:
        raise ValueError(
            f"It takes at least {2 * FEWEST_IMAGES} images, some to choose and others to judge; got {len(found)}."
        )
    return found


def _from_source(
    model: nn.Module, source: str | PathLike[str], task: Task, wanted: int, seed: int, split: str | None, workers: int
) -> Tensor:
    opened = task.open_matching(str(source), split)
    data = drawn_from(opened.data, wanted, seed) if isinstance(opened.data, ImageData) else opened.data
    transform = opened.task.evaluation_transform(Preprocessing.of(model))
    loader = Loader(data, transform, BATCH, seed=seed, train=False, workers=workers, rules=opened.task)
    return torch.cat([pair.images for pair in first_images(loader.epoch(0), wanted)])


def divided(images: Tensor, calibration: int, validation: int) -> tuple[Tensor, Tensor]:
    """Images that choose, and others that judge; where there are too few, both get fewer in proportion."""
    share = min(1.0, len(images) / (calibration + validation))
    cut = min(round(share * calibration), len(images) - FEWEST_IMAGES)
    return images[: max(FEWEST_IMAGES, cut)], images[max(FEWEST_IMAGES, cut) :]


def interval(shares: Sequence[Judged]) -> str:
    """The qualities in words, each with its standard error."""
    return ", ".join(f"{100 * one.quality:.1f} +- {100 * one.standard_error:.1f} %" for one in shares)
