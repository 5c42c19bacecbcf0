"""Which tokens attention sees as one: the clusters of one block drawn on the image (ClusTR, figure A3)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn

import foveate as fv
from foveate.adapters import reduction_of
from foveate.data.preprocessing import Preprocessing, open_image
from foveate.methods.base import Site
from foveate.models import ClusTR
from foveate.models.clustr_attention import MultiScaleClusterAttention, Scale
from foveate.report.drawing import Panel, picture_of, tiled
from foveate.report.pictures import PictureRequest, evaluating, picture
from foveate.report.pictures.features import chosen_blocks, title
from foveate.report.pictures.tokens import TokenMap, draw_map, fitted, spread_over_patches

RED, STRENGTH = (220, 38, 38), 0.55
SHOWN = 7
"""Clusters that have a panel of their own."""
LEGEND = (
    "First the photograph and all clusters, each outlined and in its mean colour; a token alone is as it is. Then the "
    "largest clusters one by one: red is what attention sees as one key and one value."
)


@picture("clusters")
def clusters(model: nn.Module, request: PictureRequest) -> Image.Image:
    """Which tokens attention sees as one: the clusters of a stage (ClusTR), or of a block that clusters its keys."""
    preprocessing, groups = Preprocessing.of(model), []
    for path in request.images:
        pixels = preprocessing.crop(open_image(path))
        images = preprocessing.normalise(pixels).unsqueeze(0).to(next(model.parameters()))
        with evaluating(model), torch.no_grad():
            maps = cluster_maps(model, images, request)
        photo = Panel(picture_of(fitted(pixels, grid_of(maps[0]))), path.name)
        groups.append([photo, *(Panel(draw_map(pixels, one), one.caption) for one in maps)])
        groups.append(largest(pixels, maps[0]))
    return tiled(request.name if isinstance(model, ClusTR) else title(model, request.name), groups, LEGEND)


def cluster_maps(model: nn.Module, images: Tensor, request: PictureRequest) -> list[TokenMap]:
    """The clusters of one image, scale by scale, the coarsest first."""
    if isinstance(model, ClusTR):
        return stage_maps(model, images, request.stage, request.blocks)
    reduction = reduction_of(model)
    if reduction is None or reduction.method.site is not Site.KV:
        raise ValueError(
            f"{request.name} clusters no keys, so there is nothing to show. Take a ClusTR (clustr_small), or "
            "--method cluster-attention:ratio=4."
        )
    trace = fv.trace(model, images)
    acting = [block for block, step in enumerate(trace.key_steps) if step is not None]
    blocks = acting[-1:] if request.blocks is None else chosen_blocks(request.blocks, len(trace))
    idle = [block for block in blocks if block not in acting]
    if idle or not blocks:
        raise ValueError(f"Block {idle[0] if idle else 0} clusters nothing. Blocks that do: {acting or 'none'}.")
    return [TokenMap.of(trace, block) for block in blocks]


def stage_maps(model: Any, images: Tensor, stage: int, blocks: Sequence[int] | None) -> list[TokenMap]:
    """The clusters of a stage of ClusTR, of its last block unless another is asked for."""
    if not 1 <= stage <= len(model.stages):
        raise ValueError(f"There are stages 1 to {len(model.stages)}; got --stage {stage}.")
    held = model.stages[stage - 1].blocks
    (block,) = chosen_blocks([-1] if blocks is None else blocks[:1], len(held))
    attention = held[block].attn
    if not isinstance(attention, MultiScaleClusterAttention) or not attention.clusters.ratios:
        raise ValueError(f"Stage {stage} clusters nothing: its tokens attend to all, or to a grid.")
    seen: list[tuple[list[Scale], tuple[int, int]]] = []
    finder = (held[0] if model.stages[stage - 1].share else held[block]).attn.clusters
    hook = finder.register_forward_hook(lambda _, args, found: seen.append((found, args[1])))
    try:
        model(images)
    finally:
        hook.remove()
    scales, grid = seen[0]
    if len(seen) > 1 or scales[0].clusters.owner.shape[0] != 1:
        raise ValueError("Attention within windows clusters each window by itself; show an image of one window.")
    maps = []
    for ratio, scale in zip(finder.ratios, scales, strict=True):
        owner = scale.clusters.owner[0].view(grid).cpu()
        count = len(owner.unique())
        caption = f"stage {stage}, block {block}: {count} clusters of {owner.numel()}"
        maps.append((ratio, TokenMap(caption, owner, fuses=False, overlaps=False)))
    return [one for _, one in sorted(maps, key=lambda pair: -pair[0])]


def largest(pixels: Tensor, clusters: TokenMap, number: int = SHOWN) -> list[Panel]:
    """The clusters of most tokens, each red on the photograph."""
    sizes = torch.bincount(clusters.owner.flatten().clamp(min=0))
    best = sizes.argsort(descending=True, stable=True)[:number].tolist()
    photo = fitted(pixels, grid_of(clusters)).float()
    cell = (photo.shape[1] // clusters.owner.shape[0], photo.shape[2] // clusters.owner.shape[1])
    red = torch.tensor(RED, dtype=torch.float32).view(3, 1, 1)
    panels = []
    for cluster in best:
        inside = spread_over_patches((clusters.owner == cluster).float(), cell) * STRENGTH
        drawn = (photo * (1 - inside) + red * inside).round().to(torch.uint8)
        panels.append(Panel(picture_of(drawn), f"{int(sizes[cluster])} tokens"))
    return panels


def grid_of(one: TokenMap) -> tuple[int, int]:
    rows, columns = one.owner.shape
    return rows, columns
