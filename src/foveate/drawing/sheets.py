"""Layout of all pictures: sheets of small panels with captions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from PIL import Image, ImageDraw

from foveate.drawing.style import FAINT, GAP, LINE, PAPER, SMALL, TEXT, TITLE, shorten, wrap, write, write_lines

SLOT = 252  # a tile is at least as wide as its caption


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


def sheet(title: str, lead: Panel, strips: Sequence[Strip]) -> Image.Image:
    """Lay out a large picture on the left, strips of small ones on its right, and a title above."""
    left = lead.image.width + 2 * GAP
    heights = [_strip_height(strip) for strip in strips]
    width = left + max(_strip_width(strip) for strip in strips) + GAP
    above = wrap(title, width - 2 * GAP, TITLE)
    height = max(sum(heights), lead.image.height + 2 * LINE) + LINE * len(above) + 3 * GAP
    canvas = Image.new("RGB", (width, height), PAPER)
    pen = ImageDraw.Draw(canvas)
    top = write_lines(pen, (GAP, GAP), above, TITLE) + GAP
    caption = shorten(lead.caption, lead.image.width)
    _draw_panel(canvas, pen, Panel(lead.image, caption), (GAP, top + LINE))
    for strip, tall in zip(strips, heights, strict=True):
        _draw_strip(canvas, pen, strip, left, top)
        top += tall
    return canvas


def tile(title: str, groups: Sequence[Sequence[Panel]], note: str = "", columns: int = 4) -> Image.Image:
    """Lay out groups of panels in rows of about ``columns``, with a title above and a note below."""
    rows = [row for group in groups for row in _balanced_rows(group, columns)]
    slot = max(SLOT, *(panel.image.width for row in rows for panel in row))
    heights = [max(panel.image.height for panel in row) + LINE + GAP for row in rows]
    width = max(len(row) for row in rows) * (slot + GAP) + GAP
    above, below = wrap(title, width - 2 * GAP, TITLE), wrap(note, width - 2 * GAP)
    height = sum(heights) + LINE * (len(above) + len(below)) + 3 * GAP
    canvas = Image.new("RGB", (width, height), PAPER)
    pen = ImageDraw.Draw(canvas)
    top = write_lines(pen, (GAP, GAP), above, TITLE) + GAP
    for row, tall in zip(rows, heights, strict=True):
        for place, panel in enumerate(row):
            caption = shorten(panel.caption, slot)
            _draw_panel(canvas, pen, Panel(panel.image, caption), (GAP + place * (slot + GAP), top))
        top += tall
    write_lines(pen, (GAP, top), below)
    return canvas


def stack(sheets: Sequence[Image.Image]) -> Image.Image:
    """Stack sheets vertically."""
    canvas = Image.new("RGB", (max(s.width for s in sheets), sum(s.height for s in sheets)), PAPER)
    top = 0
    for one in sheets:
        canvas.paste(one, (0, top))
        top += one.height
    return canvas


def _draw_strip(canvas: Image.Image, pen: ImageDraw.ImageDraw, strip: Strip, left: int, top: int) -> None:
    write(pen, (left, top), strip.heading)
    for panel in strip.panels:
        _draw_panel(canvas, pen, panel, (left, top + LINE), SMALL)
        left += panel.image.width + GAP


def _draw_panel(
    canvas: Image.Image, pen: ImageDraw.ImageDraw, panel: Panel, place: tuple[int, int], size: int = TEXT
) -> None:
    canvas.paste(panel.image, place)
    write(pen, (place[0], place[1] + panel.image.height + 2), panel.caption, size, FAINT)


def _balanced_rows(group: Sequence[Panel], columns: int) -> list[Sequence[Panel]]:
    """Split into rows that are all full, if one panel more in each makes them so; else into rows of about equal length.

    In four columns, five panels become one row, six become three and three, and seven become four and three.
    """
    number = -(-len(group) // columns)
    full = [length for length in range(columns + 1, columns // 2, -1) if len(group) % length == 0]
    length = full[0] if full else -(-len(group) // number)
    return [group[start : start + length] for start in range(0, len(group), length)]


def _strip_height(strip: Strip) -> int:
    return max(panel.image.height for panel in strip.panels) + 2 * LINE + GAP


def _strip_width(strip: Strip) -> int:
    return sum(panel.image.width + GAP for panel in strip.panels)
