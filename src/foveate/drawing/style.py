"""Colors, fonts and text: the look that all pictures share."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from PIL import ImageDraw, ImageFont
from torch import Tensor

Color = tuple[int, int, int]

PAPER: Color = (255, 255, 255)
INK: Color = (24, 24, 27)
FAINT: Color = (113, 113, 122)
RED: Color = (220, 38, 38)
MIST: Color = (232, 232, 236)  # not white: a dropped white patch has to differ from a kept one
OUTLINE: Color = (255, 196, 0)  # rare in photographs, and visible on dark and bright ones
# dark blue to yellow through teal: equal steps look equal, also in gray and to color-blind readers
RAMP: tuple[Color, ...] = (
    (13, 17, 71),
    (48, 62, 133),
    (38, 115, 142),
    (43, 160, 128),
    (125, 197, 83),
    (250, 225, 60),
)

GAP, LINE = 12, 18  # pixels between panels, and from one line of text to the next
SMALL, TEXT, TITLE = 11, 13, 15  # font sizes


def color_tensor(color: Color) -> Tensor:
    """Return a color as floats (3, 1, 1), to mix with pixels."""
    return torch.tensor(color, dtype=torch.float32).view(3, 1, 1)


def write(pen: ImageDraw.ImageDraw, place: tuple[int, int], text: str, size: int = TEXT, color: Color = INK) -> None:
    """Write one line with its upper left corner at ``place``."""
    pen.text(place, text, fill=color, font=ImageFont.load_default(size))


def write_lines(pen: ImageDraw.ImageDraw, place: tuple[int, int], lines: Sequence[str], size: int = TEXT) -> int:
    """Write lines below each other and return the y coordinate of the next one."""
    left, top = place
    for line in lines:
        write(pen, (left, top), line, size)
        top += LINE
    return top


def wrap(text: str, width: int, size: int = TEXT) -> list[str]:
    """Break ``text`` between words into lines of at most ``width`` pixels."""
    font = ImageFont.load_default(size)
    lines: list[str] = []
    for word in text.split():
        longer = f"{lines[-1]} {word}" if lines else word
        if lines and font.getlength(longer) <= width:
            lines[-1] = longer
        else:
            lines.append(word)
    return lines


def shorten(text: str, width: int, size: int = TEXT) -> str:
    """Cut the middle out of ``text`` if it is wider than ``width`` pixels, e.g. a long file name."""
    font = ImageFont.load_default(size)
    half, short = len(text) // 2, text
    while half and font.getlength(short) > width:
        half -= 1
        short = f"{text[:half]}...{text[len(text) - half :]}"
    return short
