"""Targets of images, from the data to a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from foveate.data.images import DataError, Sample

UNKNOWN = -1
"""Integer label of an unlabeled image."""


class TargetRules(Protocol):
    """How image and target are transformed and batched, such as a task. It must be picklable, for worker processes."""

    def stack(self, images: Sequence[Tensor]) -> Tensor:
        """Combine the images (C, H, W) of a batch, such as ``stack_equal`` does."""

    def transformed(self, transform: Any, sample: Sample) -> tuple[Tensor, Any]:
        """The image and the target after ``transform``."""

    def collate(self, targets: Sequence[Any]) -> Any:
        """Combine the targets of a batch."""


def stack_equal(images: Sequence[Tensor]) -> Tensor:
    """Stack images of one shape.

    Raises:
        DataError: if their shapes differ.
    """
    shapes = {tuple(image.shape) for image in images}
    if len(shapes) > 1:
        raise DataError(f"The transform returned images of shapes {sorted(shapes)}; a batch needs a single shape.")
    return torch.stack(list(images))


class IntegerLabels:
    """One integer per image, which transforms do not change."""

    def stack(self, images: Sequence[Tensor]) -> Tensor:
        return stack_equal(images)

    def transformed(self, transform: Any, sample: Sample) -> tuple[Tensor, Any]:
        return transform_image(transform, sample), sample.target

    def collate(self, targets: Sequence[Any]) -> Tensor:
        return torch.tensor(list(targets), dtype=torch.int64)


def transform_image(transform: Any, sample: Sample) -> Tensor:
    """The image after a transform that does not concern the target."""
    tensor = transform(sample.image)
    if not isinstance(tensor, Tensor):
        raise DataError(f"The transform must return a tensor; it returned {type(tensor).__name__} for {sample.name}.")
    return tensor
