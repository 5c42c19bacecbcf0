"""Feature maps of chosen blocks next to the image (HVT, figure 3)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn.functional import layer_norm

from foveate.adapters import inspect, spread_to_patches
from foveate.drawing import picture
from foveate.drawing.inputs import choose_blocks, evaluating, read_photos, title
from foveate.drawing.pixels import enlarge, heat, rescale, to_pil_image
from foveate.drawing.sheets import Panel, Strip, sheet, stack

MAP_WIDTH, PHOTO_WIDTH = 126, 280


@picture("features")
def features(
    model: nn.Module,
    images: Sequence[Path],
    *,
    name: str = "model",
    blocks: Sequence[int] | None = None,
    channels: int = 6,
) -> Image.Image:
    """Feature maps of chosen blocks next to the image; pooled or merged tokens are spread back to their patches.

    Each block shows its three main directions as red, green and blue, then the channels that vary most over the
    image, each from its lowest (dark) to its highest value (bright).

    Args:
        model: Reduced or not. It runs in evaluation mode; its mode is restored.
        images: Photographs. Each gets one sheet.
        name: The model's name above the picture.
        blocks: Indices of the blocks to show; negative ones count from the end. None shows four.
        channels: Number of channels to show for each block.

    Raises:
        ValueError: If an image cannot be read or the model does not have one of the blocks.
    """
    sheets = []
    for photo in read_photos(model, images):
        shown = to_pil_image(photo.pixels)
        size = PHOTO_WIDTH, round(PHOTO_WIDTH * shown.height / shown.width)
        maps = feature_maps(model, photo.batch, blocks)
        strips = [feature_strip(heading, found, channels) for heading, found in maps.items()]
        lead = Panel(shown.resize(size, Image.Resampling.BICUBIC), photo.name)
        sheets.append(sheet(title(model, name), lead, strips))
    return stack(sheets)


@torch.no_grad()
def feature_maps(model: nn.Module, images: Tensor, blocks: Sequence[int] | None) -> dict[str, Tensor]:
    """Return the features (C, H, W) of one image after each block, keyed by a heading with the number of tokens."""
    family = inspect(model)
    family.require_reducible()
    with evaluating(model):
        encoded = family.encode(images.to(next(model.parameters())), record=True)
    prefix, grid = family.num_prefix, family.grid_for(*images.shape[-2:])
    counts = [output.stream.tokens.shape[1] - prefix for output in encoded.blocks]
    # exact_last_block leaves no patch tokens at the end: choose among the earlier blocks
    depth = len(counts) if blocks is not None else max(1, sum(count > 0 for count in counts))
    found = {}
    for block in choose_blocks(blocks, depth):
        patches, _ = spread_to_patches(encoded, block, prefix)
        if not bool(patches.isfinite().all()):
            raise ValueError(f"The features after block {block} are NaN or infinite. Check the model's precision.")
        found[f"block {block}: {counts[block]} tokens"] = patches[0].T.unflatten(1, grid).float().cpu()
    return found


def feature_strip(heading: str, found: Tensor, channels: int) -> Strip:
    """Draw the panels of one block. Tokens are normalized first, or large ones would hide the rest."""
    normed = layer_norm(found.permute(1, 2, 0).float(), found.shape[:1])
    panels = [Panel(enlarge(directions(normed), MAP_WIDTH), "3 main directions")]
    strongest = normed.flatten(0, 1).var(dim=0, correction=0).argsort(descending=True, stable=True)[:channels]
    panels += [Panel(enlarge(heat(normed[..., c]), MAP_WIDTH), f"channel {c}") for c in strongest.tolist()]
    return Strip(heading, panels)


def directions(normed: Tensor) -> Tensor:
    """Draw the three main directions of tokens (H, W, C) as red, green and blue, bytes (3, H, W)."""
    flat = normed.flatten(0, 1)
    _, _, axes = torch.linalg.svd(flat - flat.mean(dim=0), full_matrices=False)
    axes = axes[:3]
    largest = axes.gather(1, axes.abs().argmax(dim=1, keepdim=True))  # an axis has no sign: choose one
    values = (flat @ (axes * largest.sign()).T).T.unflatten(1, normed.shape[:2])
    return torch.stack([rescale(value) * 255 for value in values]).round().to(torch.uint8)
