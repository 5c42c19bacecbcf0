"""Masks of classes over an image, with a legend that a phone can show."""

from __future__ import annotations

import colorsys
from collections.abc import Sequence

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from foveate.drawing.pixels import to_pil_image
from foveate.drawing.style import FAINT, GAP, INK, PAPER, Color

IGNORED = 255
STRENGTH = 0.55
"""Share of a class's color in its pixels."""
NARROWEST = 480
"""Narrower images are enlarged, so that the legend can be read on a phone."""
MOST_NAMES = 14
FONT = 18
GOLDEN = 0.618034


def class_color(number: int) -> Color:
    """The color of a class: hues far from those of its neighbors, in three brightnesses."""
    hue, level = (number * GOLDEN) % 1.0, number % 3
    red, green, blue = colorsys.hls_to_rgb(hue, (0.5, 0.36, 0.64)[level], 0.85)
    return round(255 * red), round(255 * green), round(255 * blue)


def draw_segments(image: Image.Image, classes: Tensor, names: Sequence[str] | None = None) -> Image.Image:
    """Tint ``image`` by the class (H, W) of its pixels, with lines between classes and a legend below.

    Args:
        image: the photograph.
        classes: class numbers at its size; 255 leaves a pixel as it is.
        names: class names; numbers are shown without.
    """
    photo = tinted(image.convert("RGB"), classes.cpu())
    if photo.width < NARROWEST:
        photo = photo.resize((NARROWEST, round(photo.height * NARROWEST / photo.width)), Image.Resampling.NEAREST)
    return with_legend(photo, legend_of(classes.cpu(), names))


def tinted(image: Image.Image, classes: Tensor) -> Image.Image:
    """The photograph with each class in its color, and a dark line where two classes meet."""
    pixels = torch.from_numpy(np.array(image)).float()
    table = torch.zeros(256, 3)
    for number in classes.unique().tolist():
        table[number % 256] = torch.tensor(class_color(number), dtype=torch.float32)
    share = torch.where(classes == IGNORED, 0.0, STRENGTH)[..., None]
    mixed = pixels * (1 - share) + table[classes.long() % 256] * share
    line = torch.zeros_like(classes, dtype=torch.bool)
    line[1:] |= classes[1:] != classes[:-1]
    line[:, 1:] |= classes[:, 1:] != classes[:, :-1]
    mixed[line] = torch.tensor(INK, dtype=torch.float32)
    return to_pil_image(mixed.round().clamp(0, 255).to(torch.uint8).permute(2, 0, 1))


def legend_of(classes: Tensor, names: Sequence[str] | None) -> list[tuple[str, Color]]:
    """Names and colors of the classes in a picture, the largest first; the rest is counted."""
    counts = torch.bincount(classes.flatten().long(), minlength=IGNORED + 1)
    counts[IGNORED] = 0
    order = [number for number in counts.argsort(descending=True, stable=True).tolist() if counts[number] > 0]
    named = names is not None
    shown = [(names[n] if named and n < len(names) else f"class {n}", class_color(n)) for n in order[:MOST_NAMES]]  # type: ignore[index,arg-type]
    more = len(order) - MOST_NAMES
    return [*shown, (f"{more} more", FAINT)] if more > 0 else shown


def with_legend(photo: Image.Image, entries: Sequence[tuple[str, Color]]) -> Image.Image:
    """The photograph above its legend, in as many lines as its width needs."""
    font = ImageFont.load_default(FONT)
    square, line = FONT, FONT + 8
    places, left, top = [], GAP, GAP
    for name, _ in entries:
        width = square + 6 + round(font.getlength(name)) + 2 * GAP
        if left > GAP and left + width > photo.width:
            left, top = GAP, top + line
        places.append((left, top))
        left += width
    canvas = Image.new("RGB", (photo.width, photo.height + (top + line if entries else 0)), PAPER)
    canvas.paste(photo, (0, 0))
    pen = ImageDraw.Draw(canvas)
    for (name, color), (x, y) in zip(entries, places, strict=True):
        y += photo.height
        pen.rectangle((x, y, x + square, y + square), fill=color)
        pen.text((x + square + 6, y - 2), name, fill=INK, font=font)
    return canvas
