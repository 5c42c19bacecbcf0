"""Token maps of a few images for the page, and the share of tokens on the object."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from foveate.adapters import inspect
from foveate.data.preprocessing import Preprocessing
from foveate.drawing.pixels import to_pil_image
from foveate.evaluation.progress import Progress
from foveate.report.compare.candidates import Candidate, reduces
from foveate.report.compare.images import Images, Shown, spread
from foveate.report.compare.on_object import covered_patches, share_on_object

PICTURES = 6
MASKED_PICTURES = 24
"""Images over which the share on the object is averaged."""


@dataclass(frozen=True)
class Maps:
    """Additions to a report that the recommendation does not depend on."""

    gallery: Any = None
    on_object: dict[str, float] = field(default_factory=dict)


def draw_maps(candidates: Sequence[Candidate], images: Images, model: nn.Module, progress: Progress) -> Maps:
    """Draw token maps of every candidate that reduces, and measure shares on the object if masks exist."""
    shown = images.shown(MASKED_PICTURES)
    if shown is None:
        return Maps()
    reference = next(model.parameters())
    shown = shown._replace(images=shown.images.to(reference.device, reference.dtype))
    progress("token maps", 0, None)
    return Maps(_gallery(candidates, shown, model), _on_object(candidates, shown, model))


def _gallery(candidates: Sequence[Candidate], shown: Shown, model: nn.Module) -> Any:
    from foveate.report.page import collect_gallery  # a comparison without a page does not need it

    reduced = [candidate for candidate in candidates if reduces(candidate.model)]
    models = {c.label if c.budget is None else f"{c.label} {c.budget:g}": c.model for c in reduced}
    numbers = spread(len(shown.names), PICTURES)
    names, captions = ([texts[number] for number in numbers] for texts in (shown.names, shown.captions))
    batch = shown.images[numbers]
    pixels = Preprocessing.of(model).pixels(batch.float()).round().clamp(0, 255).to(torch.uint8).cpu()
    pictures = [to_pil_image(image) for image in pixels]
    return collect_gallery(models, batch, pictures, names, captions if all(captions) else None)


def _on_object(candidates: Sequence[Candidate], shown: Shown, model: nn.Module) -> dict[str, float]:
    masks = [mask for mask in shown.masks if mask is not None]
    if len(masks) < len(shown.names):
        return {}
    grid = inspect(model).grid_for(*shown.images.shape[-2:])
    covered = covered_patches(masks, Preprocessing.of(model), grid)
    same_grid = [c for c in candidates if inspect(c.model).grid == inspect(model).grid]
    return {c.key: share_on_object(c.model, shown.images, covered) for c in same_grid}
