"""How feature maps are read from an encoder: a pyramid of stages, an HVT that pools its grid, or a plain ViT."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from timm.data import resolve_model_data_config
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from foveate.adapters import Family, UnsupportedModel, inspect
from foveate.adapters.timm_family import IMAGE_FACTS
from foveate.api import features
from foveate.costs import Cost
from foveate.models.dense.head import Levels
from foveate.models.pyramid import grid_levels, level_ends, pools_the_grid

Size = tuple[int, int]


class EncoderCost(NamedTuple):
    """What an encoder costs for one image, and the maps it gives."""

    cost: Cost
    sizes: list[Size]
    """Rows and columns of each map."""


class Reader(ABC):
    """Reads feature maps from one encoder."""

    def __init__(self, encoder: Any) -> None:
        self.encoder = encoder

    @property
    def family(self) -> Family | None:
        """The encoder's family; None for a pyramid of timm that foveate does not know."""
        try:
            return inspect(self.encoder)
        except UnsupportedModel:
            return None

    @abstractmethod
    def levels(self, blocks: Sequence[int]) -> Levels:
        """Channels and strides of the maps; ``blocks`` chooses those of a plain ViT."""

    @abstractmethod
    def maps(self, images: Tensor, blocks: Sequence[int]) -> list[Tensor]:
        """Feature maps (B, C, h, w), from fine to coarse."""

    @abstractmethod
    def cost(self, image_size: tuple[int, int, int], blocks: Sequence[int]) -> EncoderCost:
        """The cost of one image (channels, height, width)."""

    def preprocessing(self) -> dict[str, Any]:
        """Colors and interpolation that the encoder was trained with."""
        if self.family is not None:
            return self.family.preprocessing()
        known = resolve_model_data_config(self.encoder)
        return {name: known[name] for name in IMAGE_FACTS}


class StageReader(Reader):
    """A timm model with one map per stage: ClusTR, PVT v2, Swin, ConvNeXt, ResNet, ..."""

    def levels(self, blocks: Sequence[int] = ()) -> Levels:
        return stage_levels(self.encoder)

    def maps(self, images: Tensor, blocks: Sequence[int] = ()) -> list[Tensor]:
        return list(self.encoder.forward_intermediates(images, intermediates_only=True, output_fmt="NCHW"))

    def cost(self, image_size: tuple[int, int, int], blocks: Sequence[int] = ()) -> EncoderCost:
        params = sum(p.numel() for p in self.encoder.parameters())
        if self.family is not None:
            sizes = [(-(-image_size[1] // s), -(-image_size[2] // s)) for s in self.levels().strides]
            return EncoderCost(self.family.cost(image_size), sizes)
        macs, maps = counted(self.encoder, image_size)
        sizes = [(int(one.shape[2]), int(one.shape[3])) for one in maps]
        return EncoderCost(Cost(params, macs, 0, tuple(rows * columns for rows, columns in sizes)), sizes)


class PooledReader(Reader):
    """An HVT with ``pool_dim=2``: one map per grid, each after the final norm."""

    def levels(self, blocks: Sequence[int] = ()) -> Levels:
        patch, count = max(self.encoder.patch_embed.patch_size), len(level_ends(self.encoder))
        return Levels((self.encoder.embed_dim,) * count, tuple(patch * 2**level for level in range(count)))

    def maps(self, images: Tensor, blocks: Sequence[int] = ()) -> list[Tensor]:
        family = inspect(self.encoder)
        found = grid_levels(self.encoder, images)
        return [family.final_norm(one.permute(0, 2, 3, 1)).permute(0, 3, 1, 2).contiguous() for one in found]

    def cost(self, image_size: tuple[int, int, int], blocks: Sequence[int] = ()) -> EncoderCost:
        family = inspect(self.encoder)
        cost, grid = without_head(family, image_size), family.grid_for(*image_size[1:])
        method = self.encoder.foveate.method
        counts = [grid[0] * grid[1]] + [cost.tokens[end] - family.num_prefix for end in level_ends(self.encoder)[:-1]]
        return EncoderCost(cost, [method.shape_of(grid, tokens) for tokens in counts])


class PlainReader(Reader):
    """A plain ViT of any supported family, reduced or not: the features of every patch after some of its blocks."""

    def levels(self, blocks: Sequence[int]) -> Levels:
        family = inspect(self.encoder)
        (rows, columns), (_, height, width) = family.grid, family.image_size
        if not rows or not columns:
            raise ValueError(f"Images of {height} x {width} pixels are smaller than one patch of the encoder.")
        stride = height // rows
        if stride != width // columns:
            raise ValueError(
                f"Dense heads need square patches; those of this {type(self.encoder).__name__} cover "
                f"{stride} x {width // columns} pixels."
            )
        return Levels((family.shape().blocks[-1].dim,) * len(blocks), (stride,) * len(blocks))

    def maps(self, images: Tensor, blocks: Sequence[int]) -> list[Tensor]:
        return features(self.encoder, images, list(blocks), **self.embed_options(images.shape[-2:]))

    def embed_options(self, size: Sequence[int]) -> dict[str, bool]:
        """transformers resamples positions only with ``interpolate_pos_encoding``."""
        family = inspect(self.encoder)
        resampled = "interpolate_pos_encoding" in family.embed_options and tuple(size) != family.image_size[1:]
        return {"interpolate_pos_encoding": True} if resampled else {}

    def cost(self, image_size: tuple[int, int, int], blocks: Sequence[int]) -> EncoderCost:
        family = inspect(self.encoder)
        return EncoderCost(without_head(family, image_size), [family.grid_for(*image_size[1:])] * len(blocks))


def reader_for(encoder: Any) -> Reader:
    """How feature maps are read from ``encoder``.

    Raises:
        UnsupportedModel: if it gives none.
    """
    try:
        family = inspect(encoder)
    except UnsupportedModel:
        family = None
    if family is not None and pools_the_grid(encoder):
        return PooledReader(encoder)
    if family is not None and family.refusal is None:
        return PlainReader(encoder)
    if callable(getattr(encoder, "forward_intermediates", None)) and stage_levels(encoder).strides:
        return StageReader(encoder)
    raise UnsupportedModel(
        f"{type(encoder).__name__} gives no feature maps for a dense head. Use a plain ViT that foveate supports, "
        "clustr_*, hvt_* with pool_dim=2, or a timm model with several stages, such as pvt_v2_b2."
    )


def stage_levels(encoder: Any) -> Levels:
    """Channels and strides of the stages that timm describes; empty if it describes none."""
    known = getattr(encoder, "feature_info", None) or []
    stages = list(getattr(known, "info", known))
    return Levels(tuple(int(s["num_chs"]) for s in stages), tuple(int(s["reduction"]) for s in stages))


def without_head(family: Family, image_size: tuple[int, int, int]) -> Cost:
    """The cost of a model up to its last block: a dense head replaces its own."""
    cost = family.cost(image_size)
    shape = family.shape(family.grid_for(*image_size[1:]))
    head = shape.head_macs + shape.head_macs_per_patch * (cost.tokens[-1] - family.num_prefix)
    return Cost(cost.params, cost.macs - head, cost.reduction_macs, cost.tokens)


def counted(encoder: Any, image_size: tuple[int, int, int]) -> tuple[int, list[Tensor]]:
    """MACs of an encoder that foveate does not know, and its maps, without computing any value."""
    named = [*encoder.named_parameters(), *encoder.named_buffers()]
    empty = {name: torch.empty_like(tensor, device="meta") for name, tensor in named}
    images = torch.empty(1, *image_size, device="meta", dtype=next(encoder.parameters()).dtype)
    counter = FlopCounterMode(display=False)
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), counter:
        maps = functional_call(_Stages(encoder), {f"encoder.{name}": tensor for name, tensor in empty.items()}, images)
    return counter.get_total_flops() // 2, maps


class _Stages(nn.Module):
    """``forward_intermediates`` as a module's ``forward``, which ``functional_call`` needs."""

    def __init__(self, encoder: Any) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, images: Tensor) -> list[Tensor]:
        return StageReader(self.encoder).maps(images)
