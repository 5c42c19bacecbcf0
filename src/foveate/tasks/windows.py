"""Sliding windows of the model's size cover an image; logits are averaged where they overlap."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import pad

Predict = Callable[[Tensor], Tensor]


def window_starts(length: int, window: int, stride: int) -> list[int]:
    """First pixels of windows that cover ``length``; the last one ends with it."""
    if length <= window:
        return [0]
    starts = list(range(0, length - window, stride))
    return [*starts, length - window]


def slide(predict: Predict, images: Tensor, window: tuple[int, int], stride: float) -> Tensor:
    """Logits (B, classes, H, W) of images of any size.

    Args:
        predict: logits (B, classes, h, w) of images (B, C, h, w), at their own size.
        images: (B, C, H, W); smaller ones than the window are padded with zeros, the mean color, below and right.
        window: height and width of a window.
        stride: distance of windows, as a share of their size.
    """
    height, width = images.shape[-2:]
    tall, wide = window
    padded = pad(images, (0, max(0, wide - width), 0, max(0, tall - height)))
    rows = window_starts(padded.shape[-2], tall, max(1, round(tall * stride)))
    columns = window_starts(padded.shape[-1], wide, max(1, round(wide * stride)))
    total = count = None
    for top in rows:
        for left in columns:
            logits = predict(padded[..., top : top + tall, left : left + wide])
            if total is None or count is None:
                total = logits.new_zeros(*logits.shape[:2], *padded.shape[-2:])
                count = logits.new_zeros(padded.shape[-2:])
            total[..., top : top + tall, left : left + wide] += logits
            count[top : top + tall, left : left + wide] += 1
    assert total is not None
    assert count is not None
    return torch.div(total, count)[..., :height, :width]
