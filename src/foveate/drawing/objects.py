"""Boxes with scores, instance masks and skeletons over a photograph, legible on a phone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from foveate.drawing.masks import tint
from foveate.drawing.pixels import to_pil_image
from foveate.drawing.segments import class_color
from foveate.drawing.style import INK, PAPER, Color

NARROWEST = 480
"""Narrower images are enlarged, so that labels can be read on a phone."""
FONT = 18
LINE = 3
MASK_STRENGTH = 0.5
LEFT, RIGHT, MIDDLE = (66, 135, 245), (245, 130, 48), (80, 200, 120)
"""Colors of limbs on the left, on the right, and between the sides, which color-blind readers can tell apart."""


def draw_objects(
    image: Image.Image,
    boxes: Tensor,
    captions: Sequence[str],
    classes: Sequence[int],
    masks: Tensor | None = None,
) -> Image.Image:
    """Draw boxes (n, 4) with captions, each in the color of its class, and masks (n, H, W) below them.

    The surest detection, which comes first, is drawn last: its caption stays legible.
    """
    pixels = torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1).float()
    if masks is not None:
        for mask, label in zip(masks, classes, strict=True):
            pixels = tint(pixels, mask, class_color(label), MASK_STRENGTH)
            pixels = tint(pixels, _border(mask), class_color(label), 1.0)  # neighbors of one class stay apart
    photo, factor = _enlarged(to_pil_image(pixels.round().to(torch.uint8)))
    pen = ImageDraw.Draw(photo)
    order = range(len(boxes) - 1, -1, -1)
    for number in order:
        left, top, right, bottom = (factor * side for side in boxes[number].tolist())
        pen.rectangle(
            (left, top, max(left, right - 1), max(top, bottom - 1)), outline=class_color(classes[number]), width=LINE
        )
    for number in order:
        left, top = (factor * side for side in boxes[number, :2].tolist())
        _caption(pen, photo.size, (left, top), captions[number], class_color(classes[number]))
    return photo


def draw_skeleton(
    image: Image.Image, points: Tensor, shown: Tensor, limbs: Sequence[tuple[int, int]], names: Sequence[str] = ()
) -> Image.Image:
    """Draw keypoints (K, 2) and the limbs between them.

    Args:
        image: the photograph.
        points: x and y in its pixels.
        shown: (K,) which keypoints to draw; a limb needs both of its ends.
        limbs: pairs of keypoints.
        names: of the keypoints; ``left_...`` and ``right_...`` have colors of their own.
    """
    photo, factor = _enlarged(image.convert("RGB"))
    pen = ImageDraw.Draw(photo)
    places = [(factor * x, factor * y) for x, y in points.tolist()]
    wide = max(2, round(min(photo.size) / 120))
    small = len(places) > 40  # 133 keypoints: hands and faces need finer dots
    for first, second in limbs:
        if shown[first] and shown[second]:
            pen.line((*places[first], *places[second]), fill=_side_color(names, first, second), width=wide)
    for number, (x, y) in enumerate(places):
        if shown[number]:
            fine = small and number >= 17
            reach = wide * (0.5 if fine else 1.1)
            color = _side_color(names, number)
            pen.ellipse((x - reach, y - reach, x + reach, y + reach), fill=color, outline=None if fine else PAPER)
    return photo


def _border(mask: Tensor) -> Tensor:
    """Pixels of a mask (H, W) beside one that is not in it."""
    inside = mask.clone()
    inside[1:] &= mask[:-1]
    inside[:-1] &= mask[1:]
    inside[:, 1:] &= mask[:, :-1]
    inside[:, :-1] &= mask[:, 1:]
    return mask & ~inside


def _side_color(names: Sequence[str], *numbers: int) -> Color:
    words = [names[number] if number < len(names) else "" for number in numbers]
    if all("left" in word for word in words):
        return LEFT
    return RIGHT if all("right" in word for word in words) else MIDDLE


def _enlarged(photo: Image.Image) -> tuple[Image.Image, float]:
    if photo.width >= NARROWEST:
        return photo, 1.0
    factor = NARROWEST / photo.width
    return photo.resize((NARROWEST, round(photo.height * factor)), Image.Resampling.BICUBIC), factor


def _caption(
    pen: ImageDraw.ImageDraw, size: tuple[int, int], place: tuple[float, float], text: str, color: Color
) -> None:
    """Write on a patch of the box's color, above its upper left corner where there is room, inside it otherwise."""
    font = ImageFont.load_default(FONT)
    width, height = font.getlength(text) + 6, FONT + 4
    left = min(max(0.0, place[0]), max(0.0, size[0] - width))
    top = place[1] - height if place[1] >= height else place[1]
    pen.rectangle((left, top, left + width, top + height), fill=color)
    pen.text((left + 3, top), text, fill=PAPER if sum(color) < 390 else INK, font=font)
