"""Which patches each token holds, stage by stage, drawn from a trace and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn.functional import interpolate

import foveate as fv
from foveate.adapters import Trace, reduction_of
from foveate.data.preprocessing import Preprocessing, open_image
from foveate.report.drawing import Panel, picture_of, tiled
from foveate.report.pictures import PictureRequest, evaluating, picture
from foveate.report.pictures.features import chosen_blocks, title

WIDTH, SMALLEST_CELL, MOST_STAGES = 252, 4, 6
FADED, TINTED = 0.8, 0.35  # how much of a dropped patch is mist; how much of a fused one is its token's mean colour
MIST = (232, 232, 236)  # not white: a dropped white patch is to differ from a kept one
OUTLINE = (255, 196, 0)  # rare in photographs, and seen on dark and bright ones


@dataclass(frozen=True)
class TokenMap:
    """Where the patches of one image are at one block: all that a panel is drawn from."""

    caption: str
    owner: Tensor  # (rows, columns) token of each patch, -1 where it was dropped
    fuses: bool
    """Whether tokens of several patches, if there are any, are what selections left over: fused, not merged."""
    overlaps: bool
    """Whether a patch is in several tokens; it is then drawn with the one it weighs most in."""

    @staticmethod
    def of(trace: Trace, block: int, image: int = 0) -> TokenMap:
        """The map after ``block`` for one image of the batch; of keys, where the block reduces keys alone."""
        (block,) = chosen_blocks([block], len(trace))
        seen = _with_keys_as_tokens(trace, block)
        owner = seen.owner(block)[image].cpu()
        weight = seen.after(block).edges(trace.batch, trace.device)[2][image]
        overlaps = int((weight != 0).sum()) > int((owner >= 0).sum())
        return TokenMap(_caption(trace, block), owner.view(trace.grid), _fuses(seen, image), overlaps)

    @property
    def dropped(self) -> Tensor:
        return self.owner < 0

    @property
    def shared(self) -> Tensor:
        """(rows, columns) whether a patch's token holds other patches too."""
        members = torch.bincount(self.owner.flatten() + 1)  # the dropped come first
        return (members[self.owner + 1] > 1) & ~self.dropped


@picture("tokens")
def tokens(model: nn.Module, request: PictureRequest) -> Image.Image:
    """Which patches each token holds, stage by stage: dropped ones faded, merged ones averaged and outlined.

    A stage is a block after which there are fewer tokens, or in which there are fewer keys.
    """
    if reduction_of(model) is None:
        raise ValueError(
            f"{request.name} is not reduced: each patch stays a token, so there is nothing to show. "
            "Reduce it with --method, e.g. --method tome --remove 13."
        )
    preprocessing, groups, maps = Preprocessing.of(model), [], []
    for path in request.images:
        pixels = preprocessing.crop(open_image(path))
        with evaluating(model):
            trace = fv.trace(model, preprocessing.normalise(pixels).unsqueeze(0).to(next(model.parameters())))
        blocks = stages(trace) if request.blocks is None else request.blocks
        found = [TokenMap.of(trace, block) for block in blocks]
        photo = Panel(picture_of(fitted(pixels, trace.grid)), path.name)
        groups.append([photo, *(Panel(draw_map(pixels, one), one.caption) for one in found)])
        maps += found
    return tiled(title(model, request.name), groups, legend(maps))


def draw_tokens(pixels: Tensor, trace: Trace, block: int, image: int = 0) -> Image.Image:
    """Bytes (3, H, W), the ``image``-th of the traced batch, as its tokens after ``block`` (or its keys) hold it."""
    return draw_map(pixels, TokenMap.of(trace, block, image))


def stages(trace: Trace, most: int = MOST_STAGES) -> list[int]:
    """Blocks that leave fewer tokens or keys; where they are more than ``most``, evenly spaced ones up to the last.

    Where no block does, the last block of the model stands for all.
    """
    steps = [step or keys for step, keys in zip(trace.steps, trace.key_steps, strict=True)]
    found = [block for block, step in enumerate(steps) if step is not None and step.num_out < step.num_in]
    if not found:
        return [len(trace) - 1]
    number = min(most, len(found))
    return [found[-(-len(found) * place // number) - 1] for place in range(1, number + 1)]


def legend(maps: Sequence[TokenMap]) -> str:
    """What the panels mean, in words; nothing about what none of them shows."""
    merged = any(bool(one.shared.any()) and not one.fuses for one in maps)
    fused = any(bool(one.shared.any()) and one.fuses for one in maps)
    said = {
        "As it is: a patch with a token of its own.": any(bool((~one.shared & ~one.dropped).any()) for one in maps),
        "Faded: dropped.": any(bool(one.dropped.any()) for one in maps),
        "Outlined, in one colour: patches merged into one token, the colour their mean.": merged,
        "Outlined, pale and tinted: patches fused into one token, the tint their mean.": fused,
        "A patch in several tokens is drawn with the one it weighs most in.": any(one.overlaps for one in maps),
    }
    return " ".join(sentence for sentence, true in said.items() if true)


def draw_map(pixels: Tensor, held: TokenMap) -> Image.Image:
    """Bytes (3, H, W) with the patches of ``held`` faded, averaged and outlined."""
    rows, columns = held.owner.shape
    photo = fitted(pixels, (rows, columns)).float()
    cell = photo.shape[1] // rows, photo.shape[2] // columns
    owner, shared, dropped = (spread_over_patches(t, cell) for t in (held.owner, held.shared, held.dropped))
    mean = spread_over_patches(_mean_colours(photo, held.owner), cell)
    faded = photo.lerp(_colour(MIST), FADED)
    joined = faded.lerp(mean, TINTED) if held.fuses else mean
    drawn = torch.where(shared, joined, torch.where(dropped, faded, photo))
    drawn = torch.where(_borders(owner, shared), _colour(OUTLINE), drawn)
    return picture_of(drawn.round().to(torch.uint8))


def fitted(pixels: Tensor, grid: tuple[int, int]) -> Tensor:
    """Bytes (3, H, W) at about ``WIDTH`` pixels, so that every patch of ``grid`` has the same whole number of them."""
    height, width = pixels.shape[1:]
    scale = WIDTH / max(height, width)
    tall, wide = (max(SMALLEST_CELL, round(side * scale / n)) for side, n in zip((height, width), grid, strict=True))
    size = grid[0] * tall, grid[1] * wide
    if size == (height, width):
        return pixels.cpu()
    large = interpolate(pixels.cpu().float().unsqueeze(0), size, mode="bicubic", antialias=True)[0]
    return large.round().clamp(0, 255).to(torch.uint8)


def _with_keys_as_tokens(trace: Trace, block: int) -> Trace:
    """The same trace, or up to ``block`` with what it did to its keys alone as if it had done it to its tokens."""
    keys = trace.key_steps[block]
    return trace if keys is None else replace(trace, steps=(*trace.steps[:block], keys))


def _caption(trace: Trace, block: int) -> str:
    patches, keys = trace.grid[0] * trace.grid[1], trace.key_steps[block]
    if keys is not None:
        return f"keys in block {block}: {keys.num_out} of {patches}"
    left = trace.after(block).num_out
    if left != trace.counts[block]:  # exact_last_block: patch tokens end inside
        return f"in block {block}: {left} of {patches} tokens, then none"
    return f"after block {block}: {left} of {patches} tokens"


def _fuses(trace: Trace, image: int) -> bool:
    """Whether only the last slot of every step collects tokens, as where a selection fuses the rest."""
    for step in trace.steps:
        if step is not None:
            _, dst, weight = (edge[image] for edge in step.edges(trace.batch, trace.device))
            members = torch.bincount(dst[weight != 0], minlength=step.num_out)
            if bool((members[:-1] > 1).any()):
                return False
    return True


def _mean_colours(photo: Tensor, owner: Tensor) -> Tensor:
    """(3, rows, columns) the mean colour of all patches that share each patch's token; any for dropped ones."""
    rows, columns = owner.shape
    patches = photo.unflatten(2, (columns, -1)).unflatten(1, (rows, -1)).mean(dim=(2, 4)).flatten(1)
    token = owner.flatten() + 1  # the dropped come first
    members = torch.bincount(token)
    total = patches.new_zeros(3, len(members)).index_add(1, token, patches)
    return (total / members.clamp(min=1))[:, token].unflatten(1, (rows, columns))


def _borders(owner: Tensor, shared: Tensor) -> Tensor:
    """(H, W) the first pixels behind a border between two tokens of which one, at least, holds several patches."""
    found = torch.zeros_like(shared)
    found[1:] |= (owner[1:] != owner[:-1]) & (shared[1:] | shared[:-1])
    found[:, 1:] |= (owner[:, 1:] != owner[:, :-1]) & (shared[:, 1:] | shared[:, :-1])
    return found


def spread_over_patches(values: Tensor, cell: tuple[int, int]) -> Tensor:
    """(..., rows, columns) with every value repeated over its patch's pixels."""
    return values.repeat_interleave(cell[0], dim=-2).repeat_interleave(cell[1], dim=-1)


def _colour(rgb: tuple[int, int, int]) -> Tensor:
    return torch.tensor(rgb, dtype=torch.float32).view(3, 1, 1)
