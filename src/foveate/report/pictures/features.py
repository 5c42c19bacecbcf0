"""Feature maps of chosen blocks beside the image (HVT, figure 3)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn.functional import layer_norm

from foveate.adapters import encode, find_adapter, reduction_of, spread_to_patches
from foveate.data.preprocessing import Preprocessing, open_image
from foveate.report.drawing import Panel, Strip, enlarged, heat, picture_of, rescaled, sheet, stacked
from foveate.report.pictures import PictureRequest, evaluating, picture

MAP_WIDTH, PHOTO_WIDTH = 126, 280


@picture("features")
def features(model: nn.Module, request: PictureRequest) -> Image.Image:
    """Feature maps of chosen blocks beside the image; pooled or merged tokens are spread back to their patches.

    For each block: its three strongest directions as red, green and blue, then the channels that vary most over the
    image, each from its lowest (dark) to its highest value (bright).
    """
    preprocessing = Preprocessing.of(model)
    sheets = []
    for path in request.images:
        pixels = preprocessing.crop(open_image(path))
        maps = feature_maps(model, preprocessing.normalise(pixels).unsqueeze(0), request.blocks)
        photo = picture_of(pixels)
        photo = photo.resize((PHOTO_WIDTH, round(PHOTO_WIDTH * photo.height / photo.width)), Image.Resampling.BICUBIC)
        strips = [strip(heading, found, request.channels) for heading, found in maps.items()]
        sheets.append(sheet(title(model, request.name), Panel(photo, path.name), strips))
    return stacked(sheets)


def title(model: nn.Module, name: str) -> str:
    reduction = reduction_of(model)
    return f"{name}: " + ("every token kept" if reduction is None else repr(reduction.method))


@torch.no_grad()
def feature_maps(model: nn.Module, images: Tensor, blocks: Sequence[int] | None) -> dict[str, Tensor]:
    """Features (C, H, W) after each of ``blocks`` for one image, under a heading with the number of tokens."""
    adapter = find_adapter(model)
    with evaluating(model):
        encoded = encode(adapter, model, images.to(next(model.parameters())), record=True)
    prefix, grid = adapter.num_prefix(model), adapter.grid(model, *images.shape[-2:])
    counts = [output.stream.tokens.shape[1] - prefix for output in encoded.blocks]
    # exact_last_block leaves no patch token at the end: the choice is among the blocks before
    depth = len(counts) if blocks is not None else max(1, sum(count > 0 for count in counts))
    found = {}
    for block in chosen_blocks(blocks, depth):
        patches, _ = spread_to_patches(encoded, block, prefix)
        found[f"block {block}: {counts[block]} tokens"] = patches[0].T.unflatten(1, grid).float().cpu()
    return found


def chosen_blocks(blocks: Sequence[int] | None, depth: int) -> list[int]:
    """The blocks asked for, negative ones counted from the end; else four from the first to the last."""
    if blocks is None:
        return sorted({0, depth // 3, 2 * depth // 3, depth - 1})
    for block in blocks:
        if not -depth <= block < depth:
            raise ValueError(f"The model has {depth} blocks (0..{depth - 1}); got {block}.")
    return [block % depth for block in blocks]


def strip(heading: str, found: Tensor, channels: int) -> Strip:
    """The panels of one block. Tokens are normalised first, so that large ones do not hide the rest."""
    normed = layer_norm(found.permute(1, 2, 0).float(), found.shape[:1])
    panels = [Panel(enlarged(directions(normed), MAP_WIDTH), "3 main directions")]
    strongest = normed.flatten(0, 1).var(dim=0, correction=0).argsort(descending=True, stable=True)[:channels]
    panels += [Panel(enlarged(heat(normed[..., c]), MAP_WIDTH), f"channel {c}") for c in strongest.tolist()]
    return Strip(heading, panels)


def directions(normed: Tensor) -> Tensor:
    """The three main directions of the tokens (H, W, C) as red, green and blue, bytes (3, H, W)."""
    flat = normed.flatten(0, 1)
    _, _, axes = torch.linalg.svd(flat - flat.mean(dim=0), full_matrices=False)
    axes = axes[:3]
    largest = axes.gather(1, axes.abs().argmax(dim=1, keepdim=True))  # an axis has no sign of its own: give it one
    values = (flat @ (axes * largest.sign()).T).T.unflatten(1, normed.shape[:2])
    return torch.stack([rescaled(value) * 255 for value in values]).round().to(torch.uint8)
