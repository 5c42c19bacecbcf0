"""transformers' image tower of Qwen3-VL: packed patches in blocks that are merged behind it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from transformers.models.qwen3_vl.modeling_qwen3_vl import BaseModelOutputWithDeepstackFeatures
from transformers.vision_utils import get_vision_interpolation_indices_and_weights

from foveate.adapters import hf_heads as heads
from foveate.adapters.blocks import linear_macs
from foveate.adapters.hf_backbones import Backbone, Grid, pool_nothing
from foveate.adapters.hf_blocks import QwenBlock
from foveate.adapters.hf_towers import HfTower, ReducedTower, axial
from foveate.adapters.hf_vit import Variant
from foveate.adapters.positions import PositionSource
from foveate.adapters.ragged import Group, does_nothing, in_order
from foveate.adapters.registry import register_family
from foveate.costs import ModelShape, Output


class ReducedQwen(ReducedTower):
    """Each frame of a video attends to itself alone, so it is an image of its own."""

    def forward(self: Any, hidden_states: Tensor, grid_thw: Tensor, **extras: Any) -> Any:
        if does_nothing(self.foveate):
            return super().forward(hidden_states, grid_thw, **extras)  # type: ignore[misc]
        check_grids(grid_thw, len(hidden_states), self.config.spatial_merge_size)
        images, start = [], 0
        for frames, rows, columns in grid_thw.tolist():
            for _ in range(frames):
                images.append(folded(hidden_states[start : start + rows * columns], (rows, columns), self.config))
                start += rows * columns
        places = [merge_order((image.shape[1], image.shape[2]), self.config) for image in images]
        return self._run(images, places, 0, extras)


def check_grids(grids: Tensor, patches: int, merge: int) -> None:
    """Raise ``ValueError`` unless ``grids`` (frames, rows, columns) make up all patches, in whole blocks."""
    for number, (_, rows, columns) in enumerate(grids.tolist()):
        if rows % merge or columns % merge:
            raise ValueError(
                f"Image {number} has {rows} x {columns} patches, which blocks of {merge} x {merge} do not divide."
            )
    if int(grids.prod(dim=1).sum()) != patches:
        raise ValueError(f"grid_thw={grids.tolist()} has {int(grids.prod(dim=1).sum())} patches, got {patches}.")


def merge_order(size: tuple[int, int], config: Any) -> Tensor:
    """Numbers of the patches of an image, row by row, in the order of the blocks that are merged."""
    merge, patch = config.spatial_merge_size, config.patch_size
    rows, columns = size[0] // patch, size[1] // patch
    number = torch.arange(rows * columns).view(rows // merge, merge, columns // merge, merge)
    return number.transpose(1, 2).flatten()


def folded(patches: Tensor, grid: Grid, config: Any) -> Tensor:
    """Patches in the order of blocks as an image, with the frames of a patch as further channels."""
    patch, (rows, columns) = config.patch_size, grid
    order = merge_order((rows * patch, columns * patch), config).to(patches.device)
    by_row = torch.empty_like(patches).index_copy(0, order, patches)
    return by_row.view(rows, columns, -1, patch, patch).permute(2, 0, 3, 1, 4).flatten(3).flatten(1, 2)


def embed_qwen(backbone: Any, images: Tensor, interpolate: bool) -> Tensor:
    config, patch = backbone.config, backbone.config.patch_size
    if images.shape[1] == config.in_channels:  # a picture is a film in which nothing moves
        images = images.repeat_interleave(config.temporal_patch_size, dim=1)
    patches = images.unfold(2, patch, patch).unfold(3, patch, patch).permute(0, 2, 3, 1, 4, 5)
    rows, columns = patches.shape[1:3]
    tokens = backbone.patch_embed(patches.flatten(3).flatten(0, 2)).unflatten(0, (len(images), rows * columns))
    if not hasattr(backbone, "pos_embed"):
        return tokens
    index, weight = get_vision_interpolation_indices_and_weights(
        torch.tensor([[1, rows, columns]], device=images.device),
        num_grid_per_side=backbone.num_grid_per_side,
        mode=backbone.interpolation_mode,
        align_corners=backbone.interpolation_align_corners,
    )
    return tokens + (backbone.pos_embed(index) * weight[:, :, None]).sum(1).to(tokens.dtype)


def positions_qwen(backbone: Any, images: Tensor, grid: Grid) -> PositionSource:
    return axial(backbone.rotary_pos_emb, images, grid)


def qwen(layer: str) -> Backbone:
    """A tower whose blocks are of this class."""
    return Backbone(QwenBlock, layer, "blocks", None, 0, pool_nothing, embed_qwen, positions_qwen)


@register_family
class HfQwen(HfTower):
    """The tower of Qwen3-VL. Its mergers read whole blocks of patches, some of them between its blocks."""

    title = "transformers Qwen3-VL vision"
    mixin = ReducedQwen
    positions_between_patches = True
    output_class: ClassVar[type] = BaseModelOutputWithDeepstackFeatures
    records = True
    variants: ClassVar[Mapping[str, Variant]] = {
        "Qwen3VLVisionModel": Variant("", heads.plain, True),
        "Qwen3VLMoeVisionModel": Variant("", heads.plain, True),
    }
    backbones: ClassVar[Mapping[str, Backbone]] = {
        "Qwen3VLVisionModel": qwen("Qwen3VLVisionBlock"),
        "Qwen3VLMoeVisionModel": qwen("Qwen3VLMoeVisionBlock"),
    }

    @property
    def output(self) -> Output | None:  # type: ignore[override]
        return "grid"

    @property
    def grid_only(self) -> bool:  # type: ignore[override]
        return True

    @property
    def image_size(self) -> tuple[int, int, int]:
        config = self.model.config
        side = self.model.num_grid_per_side * config.patch_size
        return config.in_channels, side, side

    def shape(self, grid: Grid | None = None) -> ModelShape:
        mergers = [self.model.merger, *getattr(self.model, "deepstack_merger_list", ())]
        per_patch = sum(linear_macs(merger) for merger in mergers) // self.model.spatial_merge_size**2
        return self._shape(grid, 0, per_patch)

    def together(self, tokens: Sequence[Tensor], places: Sequence[Tensor], length: int) -> Tensor:
        return torch.cat([one[place.to(one.device)] for one, place in zip(tokens, places, strict=True)])

    def assembled(
        self, groups: Sequence[Group], tokens: Sequence[Tensor], places: Sequence[Tensor], length: int
    ) -> dict[str, Any]:
        found = super().assembled(groups, tokens, places, length)
        model, deep = self.model, []
        found["pooler_output"] = model.merger(found["last_hidden_state"])
        if not self.records:
            return found
        for merger, block in zip(model.deepstack_merger_list, model.deepstack_visual_indexes, strict=True):
            hidden = in_order(groups, [group.hidden[block + 1] for group in groups])
            deep.append(merger(self.together(hidden, places, length)))
        return found | {"deepstack_features": deep}
