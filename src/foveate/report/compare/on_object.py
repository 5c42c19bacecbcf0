"""The share of a model's tokens that lie on the object, for data with object masks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool2d

from foveate.adapters import Trace, inspect
from foveate.api import trace
from foveate.core import Assignment
from foveate.data.preprocessing import Preprocessing
from foveate.methods.base import Site


def share_on_object(model: nn.Module, images: Tensor, covered: Tensor) -> float:
    """Return the percentage of the final tokens that lie on the object.

    A token counts as the mean of its patches, so that the value means the same for kept and for merged tokens. If only
    keys are reduced, the keys are counted.

    Args:
        model: A reduced or unreduced model.
        images: (B, C, H, W), normalized for the model.
        covered: (B, N) share of each patch that the object covers.
    """
    with torch.inference_mode():
        held = _last_tokens(model, trace(model, images))
    source, slot, weight, _ = held.edges(len(images), images.device)
    on, total = (torch.zeros(len(images), held.num_out, device=images.device) for _ in range(2))
    on.scatter_add_(1, slot, weight.float() * covered.to(images.device).gather(1, source))
    total.scatter_add_(1, slot, weight.float())
    return 100 * float((on / total.clamp(min=1e-9)).mean())


def covered_patches(masks: Sequence[NDArray[np.bool_]], preprocessing: Preprocessing, grid: tuple[int, int]) -> Tensor:
    """Return the share of each patch that the object covers, (B, N), after the model's crop."""
    pictures = [Image.fromarray(np.where(mask, 255, 0).astype(np.uint8)).convert("RGB") for mask in masks]
    cropped = torch.stack([preprocessing.crop(picture)[:1].float() / 255 for picture in pictures])
    return adaptive_avg_pool2d(cropped, grid).flatten(1)


def _last_tokens(model: nn.Module, found: Trace) -> Assignment:
    method = inspect(model).reduction.method
    if method is not None and method.site is Site.KV:
        return found.keys(len(found) - 1)
    return found.after(len(found) - 1)
