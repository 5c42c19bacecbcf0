"""Which patches each token holds, stage by stage, drawn from a trace alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor, nn

from foveate.adapters import Trace, reducer_of
from foveate.api import trace as trace_tokens
from foveate.drawing import picture
from foveate.drawing.inputs import Photo, choose_blocks, evaluating, read_photos, title
from foveate.drawing.masks import outline
from foveate.drawing.pixels import WIDTH, fit_to_grid, repeat_to, to_pil_image
from foveate.drawing.sheets import Panel, tile
from foveate.drawing.style import MIST, color_tensor

MOST_STAGES = 5
"""With the photograph, any number up to this fills its rows."""
FADED, TINTED = 0.8, 0.35  # shares of mist in a dropped patch, and of its token's mean color in a fused one


@dataclass(frozen=True)
class TokenMap:
    """Which token holds each patch of one image at one block: all that a panel is drawn from."""

    caption: str
    owner: Tensor  # (rows, columns) token of each patch, -1 where it was dropped
    fuses: bool
    """Whether a token of several patches holds what a selection did not keep: fused, not merged."""
    overlaps: bool
    """Whether a patch belongs to several tokens; it is drawn with the one where its weight is largest."""

    @staticmethod
    def of(trace: Trace, block: int, image: int = 0) -> TokenMap:
        """Read the map after ``block`` for one image of the batch; it shows keys if the block reduces only keys.

        Raises:
            ValueError: If the trace does not have the block.
        """
        (block,) = choose_blocks([block], len(trace))
        seen = _with_keys_as_tokens(trace, block)
        owner = seen.owner(block)[image].cpu()
        present = seen.after(block).edges(trace.batch, trace.device).present[image]
        overlaps = int(present.sum()) > int((owner >= 0).sum())
        return TokenMap(_caption(trace, block), owner.view(trace.grid), _fuses(seen, image), overlaps)

    @property
    def grid(self) -> tuple[int, int]:
        rows, columns = self.owner.shape
        return rows, columns

    @property
    def dropped(self) -> Tensor:
        """(rows, columns) Whether a patch was dropped."""
        return self.owner < 0

    @property
    def shared(self) -> Tensor:
        """(rows, columns) Whether a patch shares its token with other patches."""
        members = torch.bincount(self.owner.flatten() + 1)  # dropped patches (-1) come first
        return (members[self.owner + 1] > 1) & ~self.dropped


@picture("tokens")
def tokens(
    model: nn.Module, images: Sequence[Path], *, name: str = "model", blocks: Sequence[int] | None = None
) -> Image.Image:
    """Which patches each token holds, stage by stage: dropped ones faded, merged ones averaged and outlined.

    A stage is a block after which there are fewer tokens, or in which there are fewer keys.

    Args:
        model: A reduced model. It runs in evaluation mode; its mode is restored.
        images: Photographs. Each gets a group of panels.
        name: The model's name above the picture.
        blocks: Indices of the blocks to show; negative ones count from the end. None shows the stages.

    Raises:
        ValueError: If the model is not reduced, an image cannot be read, or the model does not have one of the blocks.
    """
    if reducer_of(model) is None:
        raise ValueError(
            f"{name} is not reduced: every patch keeps its own token, so there is nothing to show. "
            "Reduce it with --method, e.g. --method ToMe --remove 13."
        )
    groups, maps = [], []
    for photo in read_photos(model, images):
        with evaluating(model):
            trace = trace_tokens(model, photo.batch)
        found = [TokenMap.of(trace, block) for block in (blocks or stages(trace))]
        groups.append(map_panels(photo, found))
        maps += found
    return tile(title(model, name), groups, legend(maps))


def map_panels(photo: Photo, maps: Sequence[TokenMap]) -> list[Panel]:
    """Draw a photograph and, next to it, each of its maps."""
    plain = Panel(to_pil_image(fit_to_grid(photo.pixels, maps[0].grid)), photo.name)
    return [plain, *(Panel(draw_map(photo.pixels, one), one.caption) for one in maps)]


def draw_tokens(pixels: Tensor, trace: Trace, block: int, image: int = 0, width: int = WIDTH) -> Image.Image:
    """Draw the tokens (or keys) that one image of a traced batch has after a block.

    Args:
        pixels: The image as the model sees it, bytes (3, H, W).
        trace: The result of ``fv.trace`` for a batch with this image.
        block: Index of the block; negative ones count from the end.
        image: Index of the image in the batch.
        width: About how many pixels the longer side of the drawing has.

    Raises:
        ValueError: If the trace does not have the block.
    """
    return draw_map(pixels, TokenMap.of(trace, block, image), width)


def stages(trace: Trace, most: int = MOST_STAGES) -> list[int]:
    """Return the blocks that reduce tokens or keys: at most ``most``, evenly spaced up to the last.

    If no block does, return the last block of the model.
    """
    steps = [step or keys for step, keys in zip(trace.steps, trace.key_steps, strict=True)]
    found = [block for block, step in enumerate(steps) if step is not None and step.num_out < step.num_in]
    if not found:
        return [len(trace) - 1]
    number = min(most, len(found))
    return [found[-(-len(found) * place // number) - 1] for place in range(1, number + 1)]


def legend(maps: Sequence[TokenMap]) -> str:
    """Explain the marks that occur in the panels, and no others."""
    merged = any(bool(one.shared.any()) and not one.fuses for one in maps)
    fused = any(bool(one.shared.any()) and one.fuses for one in maps)
    sentences = {
        "Unchanged: a patch with a token of its own.": any(bool((~one.shared & ~one.dropped).any()) for one in maps),
        "Faded: dropped.": any(bool(one.dropped.any()) for one in maps),
        "Outlined, in one color: patches merged into one token, drawn in their mean color.": merged,
        "Outlined, pale and tinted: patches fused into one token, tinted with their mean color.": fused,
        "A patch in several tokens is drawn with the one where its weight is largest.": any(
            one.overlaps for one in maps
        ),
    }
    return " ".join(sentence for sentence, applies in sentences.items() if applies)


def draw_map(pixels: Tensor, token_map: TokenMap, width: int = WIDTH) -> Image.Image:
    """Draw bytes (3, H, W) with the patches of ``token_map`` faded, averaged and outlined."""
    photo = fit_to_grid(pixels, token_map.grid, width).float()
    maps = (token_map.owner, token_map.shared, token_map.dropped)
    owner, shared, dropped = (repeat_to(values, photo) for values in maps)
    mean = repeat_to(_mean_colors(photo, token_map.owner), photo)
    faded = photo.lerp(color_tensor(MIST), FADED)
    joined = faded.lerp(mean, TINTED) if token_map.fuses else mean
    drawn = torch.where(shared, joined, torch.where(dropped, faded, photo))
    return to_pil_image(outline(drawn, owner, shared).round().to(torch.uint8))


def _with_keys_as_tokens(trace: Trace, block: int) -> Trace:
    """Return the trace with the key reduction of ``block`` as if it reduced tokens; unchanged if it has none."""
    keys = trace.key_steps[block]
    return trace if keys is None else replace(trace, steps=(*trace.steps[:block], keys))


def _caption(trace: Trace, block: int) -> str:
    patches, keys = trace.grid[0] * trace.grid[1], trace.key_steps[block]
    if keys is not None:
        return f"keys in block {block}: {keys.num_out} of {patches}"
    left = trace.after(block).num_out
    if left != trace.counts[block]:  # exact_last_block: no patch token leaves the block
        return f"in block {block}: {left} of {patches} tokens, then none"
    return f"after block {block}: {left} of {patches} tokens"


def _fuses(trace: Trace, image: int) -> bool:
    """Return whether only the last slot of each step collects tokens, as when a selection fuses the rest."""
    for step in trace.steps:
        if step is not None:
            edges = step.edges(trace.batch, trace.device)
            members = torch.bincount(edges.dst[image][edges.present[image]], minlength=step.num_out)
            if bool((members[:-1] > 1).any()):
                return False
    return True


def _mean_colors(photo: Tensor, owner: Tensor) -> Tensor:
    """(3, rows, columns) mean color of all patches that share each patch's token; arbitrary for dropped ones."""
    rows, columns = owner.shape
    patches = photo.unflatten(2, (columns, -1)).unflatten(1, (rows, -1)).mean(dim=(2, 4)).flatten(1)
    token = owner.flatten() + 1  # dropped patches (-1) come first
    members = torch.bincount(token)
    total = patches.new_zeros(3, len(members)).index_add(1, token, patches)
    return (total / members.clamp(min=1))[:, token].unflatten(1, (rows, columns))
