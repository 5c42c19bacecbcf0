"""What is known of an image beside its pixels, on its way from the data to a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from foveate.data.images import DataError, Sample

UNKNOWN = -1
"""The integer label of an image without one."""


class TargetRules(Protocol):
    """How image and target are read together. A task decides it; it must survive being sent to a worker process."""

    def transformed(self, transform: Any, sample: Sample) -> tuple[Tensor, Any]:
        """The image and the target after ``transform``, which is one that these rules know how to call."""

    def collate(self, targets: Sequence[Any]) -> Any:
        """The targets of a batch."""


class IntegerLabels:
    """One integer for each image, which no transform of the image changes."""

    def transformed(self, transform: Any, sample: Sample) -> tuple[Tensor, Any]:
        return transform_image(transform, sample), sample.target

    def collate(self, targets: Sequence[Any]) -> Tensor:
        return torch.tensor(list(targets), dtype=torch.int64)


def transform_image(transform: Any, sample: Sample) -> Tensor:
    """The image after a transform that leaves the target alone."""
    tensor = transform(sample.image)
    if not isinstance(tensor, Tensor):
        raise DataError(f"The transform must return a tensor; it returned {type(tensor).__name__} for {sample.name}.")
    return tensor
