"""Inputs of a picture: photographs as a model reads them, the title, and the blocks to show."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor, nn

from foveate.adapters import inspect
from foveate.data.preprocessing import Preprocessing, open_image


@dataclass(frozen=True)
class Photo:
    """A photograph, for display and for a model."""

    name: str
    pixels: Tensor  # (3, H, W) bytes: the crop that the model sees
    batch: Tensor  # (1, 3, H, W) normalized, in the model's dtype and on its device


def read_photos(model: nn.Module, paths: Iterable[Path]) -> Iterator[Photo]:
    """Read photographs as ``model`` reads them.

    Raises:
        ValueError: If a file is missing or is not an image, or the model's weights are NaN or infinite.
    """
    _check_weights(model)
    preprocessing = Preprocessing.of(model)
    for path in paths:
        pixels = preprocessing.crop(open_image(path))
        batch = preprocessing.normalize(pixels).unsqueeze(0).to(next(model.parameters()))
        yield Photo(path.name, pixels, batch)


def _check_weights(model: nn.Module) -> None:
    """A picture of what such a model computes would look like any other."""
    for name, weights in model.named_parameters():
        if not bool(weights.isfinite().all()):
            raise ValueError(f"The weights {name} are NaN or infinite, so a picture would show nothing.")


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put ``model`` into evaluation mode inside the context, then restore the mode of each module."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


def title(model: nn.Module, name: str) -> str:
    """Return the line above a picture: the model's name, its method and the schedule in words."""
    return f"{name}: {inspect(model).reduction}"


def choose_blocks(blocks: Sequence[int] | None, depth: int) -> list[int]:
    """Resolve block indices; negative ones count from the end. None chooses four from first to last.

    Raises:
        ValueError: If the model does not have one of the blocks.
    """
    if blocks is None:
        return sorted({0, depth // 3, 2 * depth // 3, depth - 1})
    for block in blocks:
        if not -depth <= block < depth:
            raise ValueError(f"The model has {depth} blocks (0..{depth - 1}); got {block}.")
    return [block % depth for block in blocks]
