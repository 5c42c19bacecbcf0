"""Which token holds each patch of a few pictures, block by block, compact enough to embed in a page."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn

import foveate as fv
from foveate.adapters import Trace
from foveate.drawing.inputs import evaluating
from foveate.drawing.tokens import TokenMap

LARGEST_SIDE = 336  # a page with a dozen pictures stays below a megabyte
DROPPED = -1


@dataclass(frozen=True)
class Stage:
    """What one block changed.

    A token is named by the first patch it holds, so a token that does not change keeps its name.
    """

    block: int
    left: int
    """Tokens after the block, or keys inside it if ``keys`` is set."""
    keys: bool
    """Whether only keys were reduced: the tokens, and so the next stage, stay the same."""
    moved: tuple[tuple[int, ...], ...]
    """Groups (token, patch, patch, ...) of patches that changed their token; token -1 means dropped."""


@dataclass(frozen=True)
class Walk:
    """The stages of one picture in one model."""

    stages: tuple[Stage, ...]
    fuses: bool
    """Whether a token of several patches holds what a selection did not keep: fused, not merged."""
    overlaps: bool
    """Whether a patch belongs to several tokens; it is shown in the one where its weight is largest."""


@dataclass(frozen=True)
class GalleryModel:
    """One reduced model, with a walk for each picture."""

    label: str
    grid: tuple[int, int]
    blocks: int
    ends: bool
    """Whether no patch token leaves the last block (``exact_last_block``)."""
    walks: tuple[Walk, ...]


@dataclass(frozen=True)
class GalleryPicture:
    """One picture, cropped as the models see it."""

    name: str
    label: str | None
    width: int
    height: int
    source: str
    """The picture itself, as a data URL."""


@dataclass(frozen=True)
class Gallery:
    """Pictures, models, and which token each patch of each picture is in after each block."""

    pictures: tuple[GalleryPicture, ...]
    models: tuple[GalleryModel, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return asdict(self)


def collect_gallery(
    models: Mapping[str, nn.Module],
    images: Tensor,
    pictures: Sequence[Image.Image],
    names: Sequence[str],
    labels: Sequence[str] | None = None,
) -> Gallery:
    """Trace images through reduced models.

    Args:
        models: Reduced models by label. They run in evaluation mode; their mode is restored.
        images: (B, 3, H, W), normalized as the models read them.
        pictures: The same images for display: the model's crop, at any size with the same aspect ratio.
        names: A name for each image.
        labels: A class for each image, shown next to its name.

    Raises:
        ValueError: If there is not one picture, name and label for each image, or a picture has another aspect ratio.
    """
    _check_lengths(len(images), pictures=pictures, names=names, labels=labels)
    height, width = images.shape[-2:]
    for name, picture in zip(names, pictures, strict=True):
        if abs(picture.width * height - picture.height * width) > max(picture.size):  # a pixel of rounding
            raise ValueError(
                f"{name} is {picture.width} x {picture.height} pixels, but the model sees {width} x {height}. "
                "Pass the crop that the model sees, e.g. from Preprocessing.of(model).crop(picture)."
            )
    below: Sequence[str | None] = [None] * len(names) if labels is None else labels
    shown = zip(names, below, pictures, strict=True)
    return Gallery(
        tuple(_gallery_picture(name, label, picture) for name, label, picture in shown),
        tuple(_gallery_model(label, model, images) for label, model in models.items()),
    )


def _check_lengths(expected: int, **given: Sequence[object] | None) -> None:
    for what, values in given.items():
        if values is not None and len(values) != expected:
            raise ValueError(f"There are {expected} images but {len(values)} {what}. Pass one for each image.")


def _gallery_picture(name: str, label: str | None, picture: Image.Image) -> GalleryPicture:
    small = picture.convert("RGB")
    small.thumbnail((LARGEST_SIDE, LARGEST_SIDE), Image.Resampling.LANCZOS)
    held = io.BytesIO()
    small.save(held, "JPEG", quality=85, optimize=True)
    source = "data:image/jpeg;base64," + base64.b64encode(held.getvalue()).decode("ascii")
    return GalleryPicture(name, label, small.width, small.height, source)


def _gallery_model(label: str, model: nn.Module, images: Tensor) -> GalleryModel:
    with evaluating(model):
        trace = fv.trace(model, images.to(next(model.parameters())))
    stages = list(_stages(trace))
    walks = tuple(_walk(trace, image, [of_images[image] for of_images in stages]) for image in range(trace.batch))
    leave = next((step.num_out for step in reversed(trace.steps) if step is not None), trace.grid[0] * trace.grid[1])
    return GalleryModel(label, trace.grid, len(trace), trace.counts[-1] != leave, walks)


def _walk(trace: Trace, image: int, stages: list[Stage]) -> Walk:
    keyed = [stage.block for stage in stages if stage.keys]
    held = TokenMap.of(trace, keyed[-1] if keyed else -1, image)
    return Walk(tuple(stages), held.fuses, held.overlaps)


def _stages(trace: Trace) -> Iterator[list[Stage]]:
    """Yield what each block changed, image by image, for the blocks that change something."""
    patches = trace.grid[0] * trace.grid[1]
    before = torch.arange(patches).expand(trace.batch, -1)
    for block, (step, keys) in enumerate(zip(trace.steps, trace.key_steps, strict=True)):
        if keys is not None:
            as_tokens = replace(trace, steps=(*trace.steps[:block], keys))
            seen = named_by_first_patch(as_tokens.owner(block).cpu())
            yield _differences(before, seen, block, keys.num_out, keys=True)
        if step is not None:
            after = named_by_first_patch(trace.owner(block).cpu())
            if step.num_out != step.num_in or not torch.equal(before, after):
                yield _differences(before, after, block, step.num_out, keys=False)
            before = after


def _differences(before: Tensor, after: Tensor, block: int, left: int, *, keys: bool) -> list[Stage]:
    return [Stage(block, left, keys, _moved(old, new)) for old, new in zip(before, after, strict=True)]


def _moved(before: Tensor, after: Tensor) -> tuple[tuple[int, ...], ...]:
    groups: dict[int, list[int]] = {}
    for patch in (before != after).nonzero().flatten().tolist():
        groups.setdefault(int(after[patch]), []).append(patch)
    return tuple((token, *patches) for token, patches in sorted(groups.items()))


def named_by_first_patch(owner: Tensor) -> Tensor:
    """Name each token of (B, N) patches by the first patch it holds; dropped patches stay -1."""
    patches = torch.arange(owner.shape[1]).expand_as(owner)
    slot = owner + 1  # dropped patches come first
    first = torch.full((len(owner), int(slot.max()) + 1), owner.shape[1])
    first = first.scatter_reduce(1, slot, patches, "amin")
    return first.gather(1, slot).masked_fill(owner < 0, DROPPED)
