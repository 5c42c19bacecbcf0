"""Sheets of small pictures with captions: what all pictures of ``foveate show`` are drawn with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

PAPER, INK, FAINT = (255, 255, 255), (24, 24, 27), (113, 113, 122)
GAP, LINE, TEXT = 12, 18, 13
SLOT = 252  # a tile is not narrower than its caption
# dark blue to yellow through teal: equal steps look equal, also to the colour-blind and in grey
RAMP = ((13, 17, 71), (48, 62, 133), (38, 115, 142), (43, 160, 128), (125, 197, 83), (250, 225, 60))


@dataclass(frozen=True)
class Panel:
    """One picture with a line below it."""

    image: Image.Image
    caption: str = ""


@dataclass(frozen=True)
class Strip:
    """Panels in a row under a heading."""

    heading: str
    panels: Sequence[Panel]


def picture_of(pixels: Tensor) -> Image.Image:
    """Bytes (3, H, W) as a picture."""
    return Image.fromarray(pixels.permute(1, 2, 0).contiguous().cpu().numpy())


def rescaled(values: Tensor) -> Tensor:
    """``values`` from 0 to 1, where one in fifty may be cut off at either end: outliers would leave the rest flat."""
    low, high = (torch.quantile(values.float(), share) for share in (0.02, 0.98))
    return ((values - low) / (high - low).clamp(min=1e-12)).clamp(0, 1)


def heat(values: Tensor) -> Tensor:
    """Numbers (H, W) as colours from dark to bright, bytes (3, H, W)."""
    ramp = torch.tensor(RAMP, dtype=torch.float32)
    place = rescaled(values.float().cpu()) * (len(RAMP) - 1)
    lower = place.floor().long().clamp(max=len(RAMP) - 2)
    share = (place - lower).unsqueeze(-1)
    return (ramp[lower] * (1 - share) + ramp[lower + 1] * share).round().to(torch.uint8).permute(2, 0, 1)


def enlarged(pixels: Tensor, width: int) -> Image.Image:
    """Bytes (3, H, W), one square for each, at about ``width`` pixels; the shape of the grid is kept."""
    _, rows, columns = pixels.shape
    return picture_of(pixels).resize((width, round(width * rows / columns)), Image.Resampling.NEAREST)


def sheet(title: str, lead: Panel, strips: Sequence[Strip]) -> Image.Image:
    """A large picture at the left, strips of small ones at its right, a title above."""
    left = lead.image.width + 2 * GAP
    heights = [_strip_height(strip) for strip in strips]
    width = left + max(_strip_width(strip) for strip in strips) + GAP
    above = _wrapped(title, width - 2 * GAP, TEXT + 2)
    height = max(sum(heights), lead.image.height + 2 * LINE) + LINE * len(above) + 3 * GAP
    canvas = Image.new("RGB", (width, height), PAPER)
    pen = ImageDraw.Draw(canvas)
    top = _write_lines(pen, (GAP, GAP), above, TEXT + 2) + GAP
    caption = _shortened(lead.caption, lead.image.width, TEXT)
    _draw_panel(canvas, pen, Panel(lead.image, caption), (GAP, top + LINE), TEXT)
    for strip, tall in zip(strips, heights, strict=True):
        _draw_strip(canvas, pen, strip, left, top)
        top += tall
    return canvas


def tiled(title: str, groups: Sequence[Sequence[Panel]], note: str = "", columns: int = 4) -> Image.Image:
    """Groups of panels below each other, in rows of up to ``columns``; a title above, a note that explains below."""
    rows = [row for group in groups for row in _balanced_rows(group, columns)]
    slot = max(SLOT, *(panel.image.width for row in rows for panel in row))
    heights = [max(panel.image.height for panel in row) + LINE + GAP for row in rows]
    width = max(len(row) for row in rows) * (slot + GAP) + GAP
    above, below = _wrapped(title, width - 2 * GAP, TEXT + 2), _wrapped(note, width - 2 * GAP, TEXT)
    height = sum(heights) + LINE * (len(above) + len(below)) + 3 * GAP
    canvas = Image.new("RGB", (width, height), PAPER)
    pen = ImageDraw.Draw(canvas)
    top = _write_lines(pen, (GAP, GAP), above, TEXT + 2) + GAP
    for row, tall in zip(rows, heights, strict=True):
        for place, panel in enumerate(row):
            caption = _shortened(panel.caption, slot, TEXT)
            _draw_panel(canvas, pen, Panel(panel.image, caption), (GAP + place * (slot + GAP), top), TEXT)
        top += tall
    _write_lines(pen, (GAP, top), below, TEXT)
    return canvas


def stacked(sheets: Sequence[Image.Image]) -> Image.Image:
    """Sheets below each other."""
    canvas = Image.new("RGB", (max(s.width for s in sheets), sum(s.height for s in sheets)), PAPER)
    top = 0
    for one in sheets:
        canvas.paste(one, (0, top))
        top += one.height
    return canvas


def _draw_strip(canvas: Image.Image, pen: ImageDraw.ImageDraw, strip: Strip, left: int, top: int) -> None:
    _write(pen, (left, top), strip.heading, INK, TEXT)
    for panel in strip.panels:
        _draw_panel(canvas, pen, panel, (left, top + LINE), TEXT - 2)
        left += panel.image.width + GAP


def _draw_panel(canvas: Image.Image, pen: ImageDraw.ImageDraw, panel: Panel, place: tuple[int, int], size: int) -> None:
    canvas.paste(panel.image, place)
    _write(pen, (place[0], place[1] + panel.image.height + 2), panel.caption, FAINT, size)


def _balanced_rows(group: Sequence[Panel], columns: int) -> list[Sequence[Panel]]:
    """As few rows as ``columns`` allow, about equally long: five panels of at most four are three and two."""
    number = -(-len(group) // columns)
    length = -(-len(group) // number)
    return [group[start : start + length] for start in range(0, len(group), length)]


def _strip_height(strip: Strip) -> int:
    return max(panel.image.height for panel in strip.panels) + 2 * LINE + GAP


def _strip_width(strip: Strip) -> int:
    return sum(panel.image.width + GAP for panel in strip.panels)


def _write(
    pen: ImageDraw.ImageDraw, place: tuple[int, int], text: str, colour: tuple[int, int, int], size: int
) -> None:
    pen.text(place, text, fill=colour, font=ImageFont.load_default(size))


def _write_lines(pen: ImageDraw.ImageDraw, place: tuple[int, int], lines: Sequence[str], size: int) -> int:
    """Lines below each other; returns where the next one would stand."""
    left, top = place
    for line in lines:
        _write(pen, (left, top), line, INK, size)
        top += LINE
    return top


def _wrapped(text: str, width: int, size: int) -> list[str]:
    """``text`` in lines of at most ``width`` pixels, broken between words."""
    font = ImageFont.load_default(size)
    lines: list[str] = []
    for word in text.split():
        longer = f"{lines[-1]} {word}" if lines else word
        if lines and font.getlength(longer) <= width:
            lines[-1] = longer
        else:
            lines.append(word)
    return lines


def _shortened(text: str, width: int, size: int) -> str:
    """``text``, or its two ends where it is longer than ``width`` pixels: names of files may be."""
    font = ImageFont.load_default(size)
    half, short = len(text) // 2, text
    while half and font.getlength(short) > width:
        half -= 1
        short = f"{text[:half]}...{text[len(text) - half :]}"
    return short
