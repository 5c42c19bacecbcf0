"""ClusTR: a pyramid of attention over clusters, as timm models (tables 1, 6, 7 and A1).

The skeleton is timm's PVT v2: overlapping patch embeddings, a depth-wise convolution in each MLP, a norm after each
stage, the mean of all tokens and a linear head. Images may have any size of at least 32 x 32.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Literal

import torch
from timm.layers import DropPath, LayerNorm, calculate_drop_path_rates, to_2tuple
from timm.models import build_model_with_cfg, generate_default_cfgs, register_model
from timm.models._manipulate import checkpoint
from timm.models.pvt_v2 import MlpWithDepthwiseConv, PyramidVisionTransformerStage, PyramidVisionTransformerV2
from torch import Tensor, nn

from foveate.adapters import linear_macs, register_family
from foveate.adapters.timm_family import TimmFamily
from foveate.core.windows import windows_of
from foveate.costs import Cost
from foveate.methods.validation import check_sizes, shown
from foveate.models.clustr_attention import (
    Clustering,
    GridAttention,
    MultiScaleClusterAttention,
    Scale,
    clustering_of,
)
from foveate.models.untrained import untrained

MULTI_SCALE = ((64, 16), (16, 4), (4, 1), (1,))
STRIDE = 32
"""Pixels in a token of the last stage."""
GRID_STRIDES = (8, 4, 2, 1)
MLP_RATIOS = (8, 8, 4, 4)

Attention = Literal["cluster", "grid"]


class Block(nn.Module):
    """z' = ClusAtt(LN(z)) + z, then FFN(LN(z')) + z' (eq. 9)."""

    def __init__(self, dim: int, attention: nn.Module, mlp_ratio: float, proj_drop: float, drop_path: float) -> None:
        super().__init__()
        self.norm1, self.norm2 = LayerNorm(dim), LayerNorm(dim)
        self.attn = attention
        self.mlp = MlpWithDepthwiseConv(dim, int(dim * mlp_ratio), drop=proj_drop)
        self.drop_path1, self.drop_path2 = DropPath(drop_path), DropPath(drop_path)

    def forward(self, x: Tensor, grid: tuple[int, int], within: int, scales: list[Scale] | None) -> Tensor:
        normed = self.norm1(x)
        if within and max(grid) > within:
            attended = attend_in_windows(self.attn, normed, grid, within)
        else:
            attended = self.attn(normed, grid, scales)
        x = x + self.drop_path1(attended)
        return x + self.drop_path2(self.mlp(self.norm2(x), grid))


def attend_in_windows(attention: nn.Module, x: Tensor, grid: tuple[int, int], side: int) -> Tensor:
    """Run ``attention`` inside each window of the grid as if it were an image; windows of equal shape run together."""
    out = torch.empty_like(x)
    for shape, index in windows_of(grid, side).by_shape.items():
        tokens = index.flatten().to(x.device)
        inside = x[:, tokens].reshape(-1, index.shape[1], x.shape[2])
        out[:, tokens] = attention(inside, shape).reshape(x.shape[0], -1, x.shape[2])
    return out


class Stage(PyramidVisionTransformerStage):
    """One resolution: a patch embedding (except in the first stage), blocks, and a norm."""

    def __init__(self, dim: int, dim_out: int, blocks: Sequence[Block], downsample: bool, within: int, share: bool):
        super().__init__(dim, dim_out, depth=0, downsample=downsample)
        self.blocks = nn.ModuleList(blocks)
        self.within, self.share = within, share

    def forward(self, x: Tensor) -> Tensor:
        if self.downsample is not None:
            x = self.downsample(x)
        grid = (x.shape[1], x.shape[2])
        x = x.flatten(1, 2)
        scales = self.shared_scales(x, grid)
        for block in self.blocks:
            if self.grad_checkpointing and self.training:
                x = checkpoint(block, x, grid, self.within, scales)
            else:
                x = block(x, grid, self.within, scales)
        return self.norm(x).unflatten(1, grid).permute(0, 3, 1, 2).contiguous()

    def shared_scales(self, x: Tensor, grid: tuple[int, int]) -> list[Scale] | None:
        """The clusters of all blocks if they share them; else None."""
        first: Any = self.blocks[0]
        if not self.share or not isinstance(first.attn, MultiScaleClusterAttention):
            return None
        with torch.no_grad():
            return first.attn.clusters(first.norm1(x), grid)


class ClusTR(PyramidVisionTransformerV2):
    """A pyramid of attention over clusters.

    ``scales`` are the ratios (tokens per cluster) of each stage. ``attention="grid"`` is the paper's ablation.
    """

    def __init__(
        self,
        depths: Sequence[int] = (1, 2, 6, 1),
        embed_dims: Sequence[int] = (64, 128, 256, 512),
        num_heads: Sequence[int] = (1, 2, 4, 8),
        scales: Sequence[Sequence[float] | float] = MULTI_SCALE,
        attention: Attention = "cluster",
        clustering: Clustering | dict[str, object] | None = None,
        top_keys: int = 0,
        img_size: int | tuple[int, int] = 224,
        proj_drop_rate: float = 0.0,
        attn_drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
        **options: Any,
    ) -> None:
        _check_stages(depths=depths, embed_dims=embed_dims, num_heads=num_heads)
        _check_rates(proj_drop_rate=proj_drop_rate, attn_drop_rate=attn_drop_rate, drop_path_rate=drop_path_rate)
        ratios = _checked_scales(scales, attention, top_keys)
        how = clustering_of(clustering)
        if 0 < how.attend_within < STRIDE:
            raise ValueError(f"attend_within must be at least {STRIDE} pixels, one token of the last stage; got {how}.")
        super().__init__(depths=(0,) * 4, embed_dims=tuple(embed_dims), num_heads=(1,) * 4, **options)
        self.depths, self.scales, self.clustering = tuple(depths), ratios, how
        if not isinstance(img_size, int) and not (isinstance(img_size, list | tuple) and len(img_size) == 2):
            raise ValueError(f"img_size must be a number of pixels, or height and width; got {shown(img_size)}.")
        self.img_size = to_2tuple(img_size)
        """Default image size; the model takes images of any size."""
        check_sizes(**{f"img_size[{side}]": size for side, size in enumerate(self.img_size)})
        self.own_options: dict[str, Any] = {
            "depths": self.depths,
            "embed_dims": tuple(embed_dims),
            "num_heads": tuple(num_heads),
            "scales": ratios,
            "attention": attention,
            "clustering": asdict(self.clustering),
            "top_keys": top_keys,
            "proj_drop_rate": proj_drop_rate,
            "attn_drop_rate": attn_drop_rate,
            "drop_path_rate": drop_path_rate,
            **{name: value for name, value in options.items() if name in ("in_chans", "drop_rate")},
        }
        rates: Any = calculate_drop_path_rates(drop_path_rate, list(depths), stagewise=True)
        drops = {"attn_drop": attn_drop_rate, "proj_drop": proj_drop_rate}
        stages = []
        for i, dim in enumerate(embed_dims):
            blocks = []
            for rate in rates[i]:
                attn: nn.Module
                if attention == "grid":
                    attn = GridAttention(dim, num_heads[i], GRID_STRIDES[i], top_keys, **drops)
                else:
                    attn = MultiScaleClusterAttention(dim, num_heads[i], ratios[i], self.clustering, **drops)
                blocks.append(Block(dim, attn, MLP_RATIOS[i], proj_drop_rate, rate))
            within = self.clustering.attend_within // (4 * 2**i)
            before = embed_dims[max(0, i - 1)]
            stages.append(Stage(before, dim, blocks, i > 0, within, self.clustering.share))
        self.stages = nn.Sequential(*stages)
        self.apply(self._init_weights)

    def forward_features(self, x: Tensor) -> Tensor:
        self._check_size(x)
        return super().forward_features(x)

    def forward_intermediates(self, x: Tensor, *args: Any, **options: Any) -> Any:
        self._check_size(x)
        return super().forward_intermediates(x, *args, **options)

    def _check_size(self, x: Tensor) -> None:
        if x.dim() != 4 or min(x.shape[-2:]) < STRIDE:
            least = f"{STRIDE} x {STRIDE}"
            raise ValueError(f"ClusTR takes images (B, C, H, W) of at least {least} pixels, got {tuple(x.shape)}.")


@register_family
class ClusTRFamily(TimmFamily):
    """ClusTR, which reduces keys and values itself: it can be trained, saved and drawn, but not reduced."""

    title = "ClusTR"
    library = "timm-backbone"
    saved_options = frozenset(
        {
            *("depths", "embed_dims", "num_heads", "scales", "attention", "clustering", "top_keys", "proj_drop_rate"),
            *("attn_drop_rate", "drop_path_rate", "in_chans", "drop_rate", "num_classes", "global_pool", "img_size"),
        }
    )

    @classmethod
    def matches(cls, model: nn.Module) -> bool:
        return isinstance(model, ClusTR)

    def check(self) -> None:
        """Every ClusTR is supported."""

    @property
    def refusal(self) -> str:
        return f"{type(self.model).__name__} clusters keys and values itself and cannot be reduced further."

    @property
    def blocks(self) -> list[nn.Module]:
        return [block for stage in self.model.stages for block in stage.blocks]

    @property
    def image_size(self) -> tuple[int, int, int]:
        height, width = self.model.img_size
        return int(self.model.in_chans), int(height), int(width)

    def build_options(self) -> dict[str, Any]:
        model = self.model
        own = {"num_classes": model.num_classes, "global_pool": model.global_pool, "img_size": model.img_size}
        return model.own_options | own

    def cost(self, image_size: Sequence[int] | None = None) -> Cost:
        """The cost of one image; the clustering counts as the reduction's own part."""
        model = self.model
        height, width = (image_size or self.image_size)[1:]
        grid = _after_conv(height, width, kernel=7, stride=4)
        macs = grid[0] * grid[1] * model.patch_embed.proj.weight.numel()
        own, tokens = 0, []
        for stage in model.stages:
            if stage.downsample is not None:
                grid = _after_conv(*grid, kernel=3, stride=2)
                macs += grid[0] * grid[1] * stage.downsample.proj.weight.numel()
            work, clustering = stage_macs(stage, grid)
            macs, own = macs + work + clustering, own + clustering
            tokens += [grid[0] * grid[1]] * len(stage.blocks)
        macs += linear_macs(model.head)
        return Cost(sum(p.numel() for p in model.parameters()), macs, own, tuple(tokens))


def stage_macs(stage: Any, grid: tuple[int, int]) -> tuple[int, int]:
    """Multiply-accumulates of one stage for one image: (of the blocks, of the clustering)."""
    within = stage.within and max(grid) > stage.within
    places = windows_of(grid, stage.within).shapes if within else [grid]
    work = clustering = 0
    for block in stage.blocks:
        mlp = block.mlp
        work += grid[0] * grid[1] * (2 * mlp.fc1.weight.numel() + mlp.dwconv.weight.numel())
        work += sum(block.attn.macs(place) for place in places)
        if isinstance(block.attn, MultiScaleClusterAttention) and not (stage.share and clustering):
            clustering += sum(block.attn.clusters.macs(place, block.attn.q.in_features) for place in places)
    return work, clustering


def _after_conv(height: int, width: int, kernel: int, stride: int) -> tuple[int, int]:
    """Rows and columns after a convolution with half its kernel as padding."""
    return tuple((side + 2 * (kernel // 2) - kernel) // stride + 1 for side in (height, width))  # type: ignore[return-value]


def _check_stages(**lists: Any) -> None:
    """Raise a ValueError unless each value has a whole number for each of the four stages."""
    for name, sizes in lists.items():
        if not isinstance(sizes, list | tuple) or len(sizes) != 4:
            raise ValueError(f"{name} must be a list with a number for each of the 4 stages, got {shown(sizes)}.")
        check_sizes(**{f"{name}[{stage}]": size for stage, size in enumerate(sizes)})


def _check_rates(**rates: Any) -> None:
    for name, rate in rates.items():
        if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 <= rate < 1:
            raise ValueError(f"{name} must be at least 0 and below 1, got {shown(rate)}.")


def _checked_scales(scales: Sequence[Any], attention: str, top_keys: int) -> tuple[tuple[float, ...], ...]:
    """The ratios of each stage; one number stands for a single scale."""
    if not isinstance(attention, str) or attention not in ("cluster", "grid"):
        raise ValueError(f"attention must be 'cluster' or 'grid', got {shown(attention)}.")
    if isinstance(top_keys, bool) or not isinstance(top_keys, int) or top_keys < 0:
        raise ValueError(f"top_keys must be an integer of at least 0, got {shown(top_keys)}.")
    if top_keys and attention != "grid":
        raise ValueError("top_keys needs attention='grid'.")
    if not isinstance(scales, list | tuple) or not all(map(_are_numbers, scales)):
        raise ValueError(f"scales must be ratios of at least 1 for each of the 4 stages, got {shown(scales)}.")
    stages = tuple((float(one),) if isinstance(one, (int, float)) else tuple(map(float, one)) for one in scales)
    if len(stages) != 4 or not all(stages) or min(min(stage) for stage in stages) < 1:
        raise ValueError(f"scales must be ratios of at least 1 for each of the 4 stages, got {tuple(scales)}.")
    return stages


def _are_numbers(ratios: Any) -> bool:
    items = ratios if isinstance(ratios, list | tuple) else (ratios,)
    return all(isinstance(ratio, int | float) for ratio in items)


CONFIG = untrained(
    fixed_input_size=False,
    pool_size=(7, 7),
    paper_name="ClusTR: Exploring Efficient Self-attention via Clustering for Vision Transformers",
)
NAMES = ("clustr_tiny", "clustr_small", "clustr_base")
default_cfgs = generate_default_cfgs({f"{name}.untrained": CONFIG for name in NAMES})  # timm reads this name


def build_clustr(name: str, pretrained: bool, shape: dict[str, Any], options: dict[str, Any]) -> ClusTR:
    out_indices = options.pop("out_indices", (0, 1, 2, 3))
    feature_cfg = {"flatten_sequential": True, "out_indices": out_indices}
    return build_model_with_cfg(ClusTR, name, pretrained, feature_cfg=feature_cfg, **(shape | options))


@register_model
def clustr_tiny(pretrained: bool = False, **options: Any) -> ClusTR:
    """ClusTR-T: 1, 2, 6 and 1 blocks (table A1)."""
    return build_clustr("clustr_tiny", pretrained, {"depths": (1, 2, 6, 1)}, options)


@register_model
def clustr_small(pretrained: bool = False, **options: Any) -> ClusTR:
    """ClusTR-S: 3, 5, 13 and 2 blocks (table A1)."""
    return build_clustr("clustr_small", pretrained, {"depths": (3, 5, 13, 2)}, options)


@register_model
def clustr_base(pretrained: bool = False, **options: Any) -> ClusTR:
    """ClusTR-B: 3, 5, 18 and 3 blocks, 320 channels in the third stage (table A1)."""
    shape = {"depths": (3, 5, 18, 3), "embed_dims": (64, 128, 320, 512), "num_heads": (1, 2, 5, 8)}
    return build_clustr("clustr_base", pretrained, shape, options)
