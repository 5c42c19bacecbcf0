"""The module that is exported: a model with a plain list of outputs, and images as they come where asked for."""

from __future__ import annotations

import contextlib
import io
import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.nn.functional import interpolate

from foveate.adapters import inspect
from foveate.data.preprocessing import Preprocessing


class PixelInput(nn.Module):
    """Preprocessing as part of the graph: bytes (B, height, width, 3) of one size to the model's input.

    Resizing and cropping are linear and separable, so two constant matrices do both. They are read off torch's
    antialiased resize, and every runtime has the matrix product.
    """

    rows: Tensor
    columns: Tensor
    mean: Tensor
    std: Tensor

    def __init__(self, preprocessing: Preprocessing, height: int, width: int) -> None:
        super().__init__()
        self.size = (height, width)
        target = (preprocessing.height, preprocessing.width)
        resized = _resized((height, width), preprocessing)
        names = zip(("rows", "columns"), self.size, resized, target, strict=True)
        for name, old, new, cropped in names:
            self.register_buffer(name, _resize_matrix(old, new, cropped, preprocessing.interpolation))
        for name in ("mean", "std"):
            color = torch.tensor(getattr(preprocessing, name)).view(3, 1, 1)
            self.register_buffer(name, 255 * color)

    def forward(self, pixels: Tensor) -> Tensor:
        planes = pixels.permute(0, 3, 1, 2).float()
        resized = (self.rows @ planes @ self.columns.T).clamp(0, 255)  # bicubic overshoots
        return (resized - self.mean) / self.std


def _resized(size: tuple[int, int], preprocessing: Preprocessing) -> tuple[int, int]:
    """Height and width before the center crop, as timm's evaluation transform has them."""
    wanted = [math.floor(side / preprocessing.crop_pct) for side in (preprocessing.height, preprocessing.width)]
    if preprocessing.crop_mode == "squash":
        return wanted[0], wanted[1]
    if preprocessing.crop_mode != "center":
        raise ValueError(
            f"Preprocessing with crop_mode={preprocessing.crop_mode!r} cannot be part of the graph. "
            "Leave out input_size."
        )
    if wanted[0] == wanted[1]:  # the shorter side becomes this long
        short = min(size)
        height, width = (wanted[0] if side == short else int(wanted[0] * side / short) for side in size)
    else:
        ratio = min(side / long for side, long in zip(size, wanted, strict=True))
        height, width = (round(side / ratio) for side in size)
    return height, width


def _resize_matrix(old: int, new: int, cropped: int, mode: str) -> Tensor:
    """(cropped, old): the middle ``cropped`` rows of the matrix that resizes a column of ``old`` pixels to ``new``."""
    kind = mode if mode in ("bilinear", "bicubic") else "bicubic"
    columns = torch.eye(old).view(1, 1, old, old)
    matrix = interpolate(columns, (new, old), mode=kind, antialias=True, align_corners=False)[0, 0]
    top = round((new - cropped) / 2)
    return matrix[top : top + cropped].contiguous()


class PlainOutputs(nn.Module):
    """A model that returns a tuple of tensors, which is all that a graph can return."""

    def __init__(self, model: nn.Module, pixels: PixelInput | None) -> None:
        super().__init__()
        self.model, self.pixels = model, pixels

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        return tuple(named_outputs(self.model(images if self.pixels is None else self.pixels(images))).values())


class EveryBlock(nn.Module):
    """The tokens after each block, to find the first one that differs."""

    def __init__(self, model: nn.Module, pixels: PixelInput | None) -> None:
        super().__init__()
        self.model, self.pixels = model, pixels

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        images = images if self.pixels is None else self.pixels(images)
        encoded = inspect(self.model).encode(images, record=True)
        return tuple(block.stream.tokens for block in encoded.blocks)


def named_outputs(output: Any) -> dict[str, Tensor]:
    """The tensors that a model returned, by name.

    Raises:
        ValueError: if it returned anything else, such as the boxes of a detector.
    """
    if isinstance(output, Tensor):
        return {"output": output}
    if isinstance(output, Mapping):
        found = {str(name): value for name, value in output.items() if value is not None}
    elif isinstance(output, tuple | list):
        found = {f"output_{number}": value for number, value in enumerate(output)}
    else:
        found = {"": output}
    wrong = [name for name, value in found.items() if not isinstance(value, Tensor)]
    if wrong:
        raise ValueError(
            f"Only tensors leave an exported model; this one returns a {type(found[wrong[0]]).__name__}. Export its "
            "encoder instead."
        )
    return found


@contextlib.contextmanager
def decided(model: nn.Module) -> Iterator[None]:
    """Hold the buffers on which the model's code branches as Python numbers: a tracer sees no values of tensors."""
    buffers = {name: model.get_buffer(name) for name in inspect(model).branches_on}
    for name, buffer in buffers.items():
        delattr(model, name)
        setattr(model, name, buffer.tolist())
    try:
        yield
    finally:
        for name, buffer in buffers.items():
            delattr(model, name)
            model.register_buffer(name, buffer)


def program_of(module: nn.Module, images: Tensor) -> ExportedProgram:
    """``torch.export`` of ``module`` for any batch size.

    Raises:
        ValueError: if the model cannot be exported, with the reason of ``torch.export``.
    """
    example = images[:2] if len(images) > 1 else images.expand(2, *images.shape[1:])
    held = decided(module.model) if isinstance(module, PlainOutputs | EveryBlock) else contextlib.nullcontext()
    try:
        # what cannot be traced would be printed, all of it
        with held, torch.no_grad(), contextlib.redirect_stderr(io.StringIO()):
            program = torch.export.export(module, (example.clone(),), dynamic_shapes=({0: Dim("batch", min=1)},))
    except Exception as error:  # torch.export raises many kinds
        raise ValueError(f"torch.export cannot trace this model: {_first_line(error)}") from error
    program.graph.eliminate_dead_code()  # where each token went, if the model does not return it
    return program


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
