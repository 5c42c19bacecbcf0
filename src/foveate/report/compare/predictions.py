"""Predictions of the chosen setting beside those of the unreduced model, for tasks that predict places."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from PIL import Image

from foveate.data.preprocessing import Preprocessing
from foveate.drawing.inputs import evaluating
from foveate.drawing.pixels import to_pil_image
from foveate.report.compare.candidates import Candidate
from foveate.report.compare.comparison import Entry
from foveate.report.compare.images import Images
from foveate.report.compare.question import is_baseline

PICTURES = 4


@dataclass(frozen=True)
class PredictedPictures:
    """A few images, each with the prediction of the unreduced model and of one setting."""

    setting: str
    rows: tuple[tuple[str, tuple[Image.Image, Image.Image]], ...]
    """Name, and the two pictures."""


def draw_predictions(
    candidates: Sequence[Candidate], entries: Sequence[Entry], chosen: int | None, images: Images
) -> PredictedPictures | None:
    """Draw the predictions of the recommended setting, or of the one that agrees most; None if the task draws none."""
    place = chosen if chosen else _closest(entries)
    shown = images.shown(PICTURES) if images.task.predicts_places and place is not None else None
    if shown is None or place is None:
        return None
    model, other = candidates[0].model, candidates[place].model
    reference = next(model.parameters())
    batch = shown.images.to(reference.device, reference.dtype)
    pixels = Preprocessing.of(model).pixels(batch.float()).round().clamp(0, 255).to(torch.uint8).cpu()
    columns = [_drawn(one, batch, pixels, images.task) for one in (model, other)]
    rows = zip(shown.names, zip(*columns, strict=True), strict=True)
    return PredictedPictures(entries[place].title, tuple((name, (left, right)) for name, (left, right) in rows))


def _drawn(model: Any, batch: Any, pixels: Any, task: Any) -> list[Image.Image]:
    with evaluating(model), torch.no_grad():
        predicted = task.predict(model, batch)
    return [task.draw(to_pil_image(image), one) for image, one in zip(pixels, predicted, strict=True)]


def _closest(entries: Sequence[Entry]) -> int | None:
    """The reduced setting with the most unchanged decisions, baselines aside; None if there is none."""
    reduced = [n for n, entry in enumerate(entries) if n and not is_baseline(entry) and entry.agreement is not None]
    return max(reduced, key=lambda number: entries[number].agreement, default=None)
