"""Which tokens attention sees as one: the clusters of one block drawn on the image (ClusTR, figure A3)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn

from foveate.adapters import inspect
from foveate.api import trace as trace_tokens
from foveate.drawing import picture
from foveate.drawing.inputs import choose_blocks, evaluating, read_photos, title
from foveate.drawing.masks import tint
from foveate.drawing.pixels import fit_to_grid, repeat_to, to_pil_image
from foveate.drawing.sheets import Panel, tile
from foveate.drawing.style import RED
from foveate.drawing.tokens import TokenMap, map_panels
from foveate.methods.base import Site
from foveate.models import ClusTR
from foveate.models.clustr_attention import MultiScaleClusterAttention, Scale

STAGE, STRENGTH = 3, 0.55
SHOWN = 7
"""Number of clusters that get their own panel."""
LEGEND = (
    "First the photograph and all clusters, each outlined and filled with its mean color; single tokens are unchanged. "
    "Then the largest clusters one by one: attention sees the red part as one key and one value."
)


@picture("clusters")
def clusters(
    model: nn.Module,
    images: Sequence[Path],
    *,
    name: str = "model",
    blocks: Sequence[int] | None = None,
    stage: int = STAGE,
) -> Image.Image:
    """Which tokens attention sees as one: the clusters of a stage (ClusTR), or of a block that clusters its keys.

    Args:
        model: A ClusTR, or a model whose reduction clusters keys. It runs in evaluation mode; its mode is restored.
        images: Photographs. Each gets two groups of panels.
        name: The model's name above the picture.
        blocks: Indices of the blocks to show; negative ones count from the end. For a ClusTR, one block of the stage.
            None shows the last block that clusters.
        stage: Stage of a ClusTR to show, from 1.

    Raises:
        ValueError: If an image cannot be read, or the model, stage or block has no clusters.
    """
    groups = []
    for photo in read_photos(model, images):
        with evaluating(model), torch.no_grad():
            maps = cluster_maps(model, photo.batch, name=name, blocks=blocks, stage=stage)
        groups += [map_panels(photo, maps), largest(photo.pixels, maps[0])]
    return tile(name if isinstance(model, ClusTR) else title(model, name), groups, LEGEND)


def cluster_maps(
    model: nn.Module, images: Tensor, *, name: str = "model", blocks: Sequence[int] | None = None, stage: int = STAGE
) -> list[TokenMap]:
    """Return the clusters of one image, scale by scale, the coarsest first."""
    if isinstance(model, ClusTR):
        return stage_maps(model, images, stage, blocks)
    method = inspect(model).reduction.method
    if method is None or method.site is not Site.KV:
        raise ValueError(
            f"{name} does not cluster keys, so there is nothing to show. Use a ClusTR (clustr_small), or "
            "--method ClusterAttention:ratio=4."
        )
    trace = trace_tokens(model, images)
    acting = [block for block, step in enumerate(trace.key_steps) if step is not None]
    chosen = acting[-1:] if blocks is None else choose_blocks(blocks, len(trace))
    idle = [block for block in chosen if block not in acting]
    if idle or not chosen:
        raise ValueError(f"Block {idle[0] if idle else 0} has no clusters. Blocks with clusters: {acting or 'none'}.")
    return [TokenMap.of(trace, block) for block in chosen]


def stage_maps(model: ClusTR, images: Tensor, number: int, blocks: Sequence[int] | None) -> list[TokenMap]:
    """Return the clusters of a stage of ClusTR, in its last block unless ``blocks`` names another."""
    if not 1 <= number <= len(model.stages):
        raise ValueError(f"The model has stages 1 to {len(model.stages)}; got --stage {number}.")
    stage: Any = model.stages[number - 1]
    (block,) = choose_blocks([-1] if blocks is None else blocks[:1], len(stage.blocks))
    attention = stage.blocks[block].attn
    if not isinstance(attention, MultiScaleClusterAttention) or not attention.clusters.ratios:
        raise ValueError(
            f"Stage {number} has no clusters: its tokens attend to all tokens or to a grid. Choose another --stage."
        )
    finder = stage.blocks[0 if stage.share else block].attn.clusters
    scales, grid = _find_clusters(model, finder, images)
    maps = []
    for _, scale in sorted(zip(finder.ratios, scales, strict=True), key=lambda pair: -pair[0]):
        owner = scale.clusters.owner[0].view(grid).cpu()
        caption = f"stage {number}, block {block}: {len(owner.unique())} clusters of {owner.numel()}"
        maps.append(TokenMap(caption, owner, fuses=False, overlaps=False))
    return maps


def _find_clusters(model: nn.Module, finder: nn.Module, images: Tensor) -> tuple[list[Scale], tuple[int, int]]:
    """Run the model and return the scales that ``finder`` found, and the grid of the tokens it clustered."""
    seen: list[tuple[list[Scale], tuple[int, int]]] = []
    hook = finder.register_forward_hook(lambda _, args, found: seen.append((found, args[1])))
    try:
        model(images)
    finally:
        hook.remove()
    if len(seen) > 1 or seen[0][0][0].clusters.owner.shape[0] != 1:
        raise ValueError("Windowed attention clusters each window separately. Use an image that fits into one window.")
    return seen[0]


def largest(pixels: Tensor, clusters: TokenMap, number: int = SHOWN) -> list[Panel]:
    """Draw the clusters with the most tokens, each in red on the photograph."""
    sizes = torch.bincount(clusters.owner.flatten().clamp(min=0))
    photo, panels = fit_to_grid(pixels, clusters.grid).float(), []
    for cluster in sizes.argsort(descending=True, stable=True)[:number].tolist():
        drawn = tint(photo, repeat_to(clusters.owner == cluster, photo), RED, STRENGTH)
        panels.append(Panel(to_pil_image(drawn.round().to(torch.uint8)), _count_text(int(sizes[cluster]))))
    return panels


def _count_text(number: int) -> str:
    return "1 token" if number == 1 else f"{number} tokens"
