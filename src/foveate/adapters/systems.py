"""Models that contain a supported encoder: two towers, vision-language models, dense models, depth, ...

The encoder is what a reduction changes. The rest of the model is left alone: it gets one feature for every patch, as
from the unreduced encoder, unless the reduction says otherwise.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

from torch import Tensor, nn

from foveate.adapters.blocks import BlockPieces
from foveate.adapters.family import Family, UnsupportedModel
from foveate.adapters.positions import PositionSource
from foveate.adapters.reduced import Reducer
from foveate.adapters.registry import inspect
from foveate.adapters.stream import Encoded
from foveate.costs import Cost, ModelShape, Output


class System(Family):
    """A model with an encoder inside. A subclass names its place; everything about tokens is the encoder's."""

    output: ClassVar[Output | None] = "grid"

    @property
    @abstractmethod
    def path(self) -> str: ...

    @property
    def encoder(self) -> Family:
        """The encoder's family, bound to it.

        Raises:
            UnsupportedModel: if the encoder is not supported.
        """
        return inspect(self.model.get_submodule(self.path))

    def check(self) -> None:
        try:
            inspect(self.model.get_submodule(self.path))
        except UnsupportedModel as error:
            raise UnsupportedModel(f"{type(self.model).__name__} has an encoder at {self.path}. {error}") from error

    # -- the encoder's answers

    @property
    def refusal(self) -> str | None:
        return self.encoder.refusal

    @property
    def blocks(self) -> list[nn.Module]:
        return self.encoder.blocks

    @property
    def image_size(self) -> tuple[int, int, int]:
        return self.encoder.image_size

    @property
    def reducer(self) -> Reducer | None:
        return self.encoder.reducer

    def cost(self, image_size: Sequence[int] | None = None) -> Cost:
        """The cost of the encoder for one image."""
        return self.encoder.cost(image_size)  # type: ignore[arg-type]

    @property
    def num_prefix(self) -> int:
        return self.encoder.num_prefix

    @property
    def has_cls(self) -> bool:
        return self.encoder.has_cls

    def pieces(self) -> list[BlockPieces]:
        return self.encoder.pieces()

    def grid_for(self, height: int, width: int) -> tuple[int, int]:
        return self.encoder.grid_for(height, width)

    def shape(self, grid: tuple[int, int] | None = None) -> ModelShape:
        return self.encoder.shape(grid)

    def embed(self, images: Tensor, **options: Any) -> Tensor:
        return self.encoder.embed(images, **options)

    def position_source(self, images: Tensor, **options: Any) -> PositionSource | None:
        return self.encoder.position_source(images, **options)

    def embed_with_positions(self, images: Tensor, **options: Any) -> tuple[Tensor, PositionSource | None]:
        return self.encoder.embed_with_positions(images, **options)

    def encode(self, images: Tensor, *, record: bool = False, **options: Any) -> Encoded:
        return self.encoder.encode(images, record=record, **options)

    def final_norm(self, tokens: Tensor) -> Tensor:
        return self.encoder.final_norm(tokens)

    def preprocessing(self) -> dict[str, Any]:
        return self.encoder.preprocessing()

    def facts(self) -> dict[str, str]:
        inner = self.encoder.facts()
        model = {"model": f"{type(self.model).__name__} ({self.title})"}
        encoder = f"{self.path}.{inner['encoder']}" if "encoder" in inner else f"{self.path}: {inner['model']}"
        found = inner | model | {"encoder": encoder}
        return found | ({"reads": f"block {self.last_read}"} if self.last_read is not None else {})
