"""A dense model whose encoder is reduced. The reduction belongs to the whole, so that it is saved and copied as one."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from foveate.adapters import Reduced
from foveate.api import features
from foveate.models.dense.encoders import PlainReader


class ReducedDense(Reduced):
    """The encoder runs with fewer tokens; the head reads the features of every patch."""

    def _read_maps(self: Any, images: Tensor) -> list[Tensor]:
        options = PlainReader(self.encoder).embed_options(images.shape[-2:])
        return features(self, images, list(self.head.blocks), **options)
