"""Images to verify and calibrate an exported model with."""

from __future__ import annotations

from os import PathLike
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from foveate.data import BrokenImage, ImageData
from foveate.data.open import open_for_evaluation
from foveate.data.preprocessing import Preprocessing
from foveate.data.source import drawn_from
from foveate.deploy.graph import PixelInput
from foveate.methods.validation import shown

SCENES = "scenes:"
"""The built-in images, used if no data are given."""


def sample(data: Any, preprocessing: Preprocessing, pixels: PixelInput | None, count: int, channels: int) -> Tensor:
    """``count`` images, or as many as there are, in the form that the exported model takes.

    Args:
        data: a tensor of such images, a source of images such as a folder, or None for the built-in scenes.
        preprocessing: the model's own.
        pixels: preprocessing inside the graph; None if images arrive normalized.
        count: how many.
        channels: of the model's input.

    Raises:
        ValueError: if the images do not fit the model, or cannot be opened.
    """
    wanted = (channels, preprocessing.height, preprocessing.width) if pixels is None else (*pixels.size, 3)
    if isinstance(data, Tensor):
        kind = torch.float32 if pixels is None else torch.uint8
        if data.dim() != 4 or tuple(data.shape[1:]) != wanted or data.dtype != kind or not len(data):
            raise ValueError(
                f"data must be images of shape (batch, {', '.join(map(str, wanted))}) and type {kind}, got "
                f"{tuple(data.shape)} of {data.dtype}."
            )
        return data[:count]
    if data is not None and not isinstance(data, str | PathLike):
        raise TypeError(f"data must be a tensor of images, a folder or another source, got {shown(data)}.")
    if channels != 3:
        raise ValueError(f"This model takes {channels} channels, and images have 3. Pass data as a tensor.")
    pictures = _opened(SCENES if data is None else str(data), count)
    if pixels is None:
        transform = preprocessing.evaluation()
        return torch.stack([transform(picture) for picture in pictures])
    height, width = pixels.size
    arrays = [np.asarray(picture.resize((width, height))) for picture in pictures]
    return torch.from_numpy(np.stack(arrays))


def _opened(spec: str, count: int) -> list[Image.Image]:
    data = open_for_evaluation(spec)
    if not isinstance(data, ImageData):
        raise ValueError(f"{spec} is a stream, whose images cannot be drawn. Pass a folder, or a tensor of images.")
    found = []
    for index in range(len(drawn := drawn_from(data, min(count, len(data)), seed=0))):
        try:
            found.append(drawn.read(index).image)
        except BrokenImage:
            continue
    if not found:
        raise ValueError(f"{spec} has no readable images.")
    return found
