"""transformers' YOLOS: detection tokens behind the patches, and positions that are added again between blocks.

Attention does not depend on the order of tokens, so detection tokens go to the front, where no token is ever reduced.
What the model returns has them behind the patches again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutputWithPooling

from foveate.adapters.hf_backbones import Backbone, Grid, pool_dense
from foveate.adapters.hf_blocks import OldNames
from foveate.adapters.hf_heads import Final
from foveate.adapters.hf_reduced import ReducedHf
from foveate.adapters.hf_vit import HfVit, Variant
from foveate.adapters.positions import PositionSource
from foveate.adapters.ragged import does_nothing
from foveate.adapters.registry import register_family


class YolosBlock(OldNames):
    """YolosLayer."""

    feed_forward = ("intermediate", "output")

    def entered(self, x: Tensor, rows: Tensor | None) -> Tensor:
        return x if rows is None else x + rows

    def whole(self, x: Tensor, rows: Any = None) -> Tensor:
        return nn.Module.__call__(self.block, x)

    def mlp(self, x: Tensor) -> Tensor:
        block = self.block
        return block.output(block.intermediate(block.layernorm_after(x)), x)  # which adds x


class AddedPositions(PositionSource):
    """What is added before each block but the first: ``table`` (L - 1, 1, P + N, C), prefix tokens in front."""

    def __init__(self, grid: Grid, table: Tensor) -> None:
        super().__init__(grid)
        self.table, self.prefix = table, table.shape[2] - grid[0] * grid[1]

    def rows(self, index: Tensor | None, block: int) -> Tensor | None:
        if block == 0:
            return None
        table = self.table[block - 1]
        if index is None:
            return table
        front = table[:, : self.prefix].expand(index.shape[0], -1, -1)
        return torch.cat([front, table[0, self.prefix :][index]], dim=1)


def in_front(tokens: Tensor, detection: int) -> Tensor:
    """Detection tokens from behind the patches to behind the class token."""
    start = tokens.shape[-2] - detection
    return torch.cat([tokens[..., :1, :], tokens[..., start:, :], tokens[..., 1:start, :]], dim=-2)


def behind(tokens: Tensor, detection: int) -> Tensor:
    """The opposite of ``in_front``."""
    end = 1 + detection
    return torch.cat([tokens[..., :1, :], tokens[..., end:, :], tokens[..., 1:end, :]], dim=-2)


def embed_yolos(backbone: Any, images: Tensor, interpolate: bool) -> Tensor:
    return in_front(backbone.embeddings(images), backbone.config.num_detection_tokens)


def positions_yolos(backbone: Any, images: Tensor, grid: Grid) -> PositionSource | None:
    if not backbone.config.use_mid_position_embeddings:
        return None
    table = backbone.encoder.interpolation(images.shape[-2:])
    return AddedPositions(grid, in_front(table, backbone.config.num_detection_tokens))


def in_its_order(final: Final) -> Any:
    """The model's output, detection tokens behind the patches."""
    final.refuse_labels()
    count = final.backbone.config.num_detection_tokens
    shown = None if final.shown is None else tuple(behind(one, count) for one in final.shown)
    return BaseModelOutputWithPooling(behind(final.tokens, count), final.pooled(), shown)  # type: ignore[arg-type]


class ReducedYolos(ReducedHf):
    """The forward of a reduced YOLOS; an empty schedule leaves its tokens in their order, for equal bits."""

    def forward(self: Any, pixel_values: Tensor | None = None, *args: Any, **options: Any) -> Any:
        if does_nothing(self.foveate):
            return super(ReducedHf, self).forward(pixel_values, *args, **options)  # type: ignore[misc]
        return super().forward(pixel_values, *args, **options)


@register_family
class HfYolos(HfVit):
    """YOLOS's encoder; ``YolosForObjectDetection`` reads its detection tokens."""

    title = "transformers YOLOS"
    mixin = ReducedYolos
    variants: ClassVar[Mapping[str, Variant]] = {"YolosModel": Variant("", in_its_order)}
    backbones: ClassVar[Mapping[str, Backbone]] = {
        "YolosModel": Backbone(
            YolosBlock, "YolosLayer", "encoder.layer", "layernorm", 1, pool_dense, embed_yolos, positions_yolos
        )
    }

    @property
    def num_prefix(self) -> int:
        return 1 + int(self.backbone.config.num_detection_tokens)

    @property
    def has_cls(self) -> bool:
        return False  # it is there, but no loss has ever read it: what it attends to says nothing
