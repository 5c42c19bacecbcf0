"""The page of ``foveate speed``: time per pixel and memory over image sizes, a panel for each method, as plain SVG."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from typing import NamedTuple

import foveate
from foveate.evaluation.speed import FREE_SLICE, REDUCED, UNREDUCED, SpeedResult
from foveate.methods.options import method_text
from foveate.reductions import Reduction
from foveate.report.page import words

WIDTH, HEIGHT = 360, 230
LEFT, RIGHT, TOP, BOTTOM = 52, 12, 14, 34
"""Margins around the plot area, for the labels of the axes."""
TICKS = 4
WIDE_SPREAD = 0.1
"""Between the quartiles of a speed-up, relative to its median."""
NO_BASE_NO_FORM = "base-uri 'none'; form-action 'none'"
HEADS = ("Method", "Image", "Batch", "Speed-up", "Of the free slice's speed", "Nanoseconds per pixel", "Peak MiB")


class SpeedRow(NamedTuple):
    """One measurement."""

    reduction: Reduction
    result: SpeedResult

    @property
    def method(self) -> str:
        """The method as the command line writes it."""
        assert self.reduction.method is not None
        return method_text(self.reduction.method)

    @property
    def noisy(self) -> bool:
        """Whether its rounds disagree, which is a sign of a busy machine."""
        first, third = self.result.speed_up_quartiles
        return third - first > WIDE_SPREAD * self.result.speed_up

    @property
    def size(self) -> str:
        """Height and width of the images, or one number if they are equal."""
        _, height, width = self.result.image_size
        return str(height) if height == width else f"{height}x{width}"

    @property
    def panel(self) -> tuple[str, str, int]:
        """What the measurements of one panel have in common: all but the image size."""
        return self.method, self.reduction.schedule_words, self.result.batch_size


def render_speed(model: str, rows: Sequence[SpeedRow]) -> str:
    """Render measurements as the text of one HTML file that contains all it needs.

    Args:
        model: The model's name.
        rows: Measurements of it, in the order of the image sizes.
    """
    panels: dict[tuple[str, str, int], list[SpeedRow]] = {}
    for row in rows:
        panels.setdefault(row.panel, []).append(row)
    shared = _shared(list(panels))
    style = _asset("page.css") + _asset("speed.css")
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    parts = {
        "policy": f"default-src 'none'; img-src data:; style-src 'sha256-{digest}'; {NO_BASE_NO_FORM}",
        "style": style,
        "model": escape(model),
        "setting": f'<p class="lead">{escape(shared)}</p>' if shared else "",
        "noise": _noise(rows),
        "times": _panels(panels, [row.result.ns_per_pixel for row in rows], "nanoseconds per pixel"),
        "memory": _memory(panels, rows),
        "table": _table(rows),
        "machine": escape(str(rows[0].result.environment)),
        "version": escape(foveate.__version__),
    }
    # in one pass: placeholders inside a user's text are left alone
    return re.sub(r"\{\{(\w+)\}\}", lambda place: parts[place[1]], _asset("speed.html"))


def _asset(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def _shared(panels: Sequence[tuple[str, str, int]]) -> str:
    """Schedule and batch size in words, if all panels have the same and differ by method; otherwise empty."""
    settings = {(schedule, batch) for _, schedule, batch in panels}
    return "" if len(settings) > 1 else "{}, batch {}".format(*settings.pop())


def _noise(rows: Sequence[SpeedRow]) -> str:
    """A notice above all figures if some were measured on a busy machine."""
    noisy = sum(row.noisy for row in rows)
    text = (
        f"The machine was not quiet: {noisy} of {len(rows)} speed-ups vary by more than {WIDE_SPREAD:.0%} between "
        "rounds. Do not trust small differences; measure again when nothing else is running."
    )
    return f'<p class="notice">{text}</p>' if noisy else ""


def _memory(panels: dict[tuple[str, str, int], list[SpeedRow]], rows: Sequence[SpeedRow]) -> str:
    peaks = [_known(row.result.peak_mib or {}) for row in rows]
    if not any(peaks):
        return ""
    intro = '<p class="lead">Peak of one pass, beyond weights and images, as torch\'s allocator counts it.</p>'
    return (
        f'<section aria-labelledby="memory-title"><h2 id="memory-title">Memory</h2>{intro}'
        f"{_panels(panels, peaks, 'MiB')}</section>"
    )


def _panels(panels: dict[tuple[str, str, int], list[SpeedRow]], values: Sequence[dict[str, float]], unit: str) -> str:
    """A plot for each method, all with the same axes."""
    highest = max(value for one in values for value in one.values())
    alike = bool(_shared(list(panels)))
    return f'<div class="panels">{"".join(_panel(rows, highest, unit, alike) for rows in panels.values())}</div>'


def _panel(rows: Sequence[SpeedRow], highest: float, unit: str, alike: bool) -> str:
    first = rows[0]
    assert first.reduction.method is not None
    full = f"{first.method}, {first.reduction.schedule_words}, batch {first.result.batch_size}"
    title = first.method if alike else full
    timed = unit != "MiB"
    series = [_known(row.result.ns_per_pixel if timed else row.result.peak_mib or {}) for row in rows]
    caption = where_it_pays(rows) if timed else _memory_saved(rows)
    return (
        f'<figure class="panel kind-{first.reduction.method.kind}"><h3>{escape(title)}</h3>'
        f"{_plot([_pixels(row) for row in rows], [row.size for row in rows], series, highest, unit, title)}"
        f"<figcaption>{escape(caption)}</figcaption></figure>"
    )


def where_it_pays(rows: Sequence[SpeedRow]) -> str:
    """From which size on a method is faster than the unreduced model, and what choosing tokens costs at the largest."""
    last = rows[-1].result
    slower = [place for place, row in enumerate(rows) if row.result.speed_up <= 1]
    start = slower[-1] + 1 if slower else 0
    if start == len(rows):
        begin = "Not faster than the unreduced model at the largest size"
    elif start == 0:
        begin = "Faster than the unreduced model at every size"
    else:
        begin = f"Faster than the unreduced model from {rows[start].size} px on"
    share = f"{last.speed_up:.2f}{words.TIMES} at {rows[-1].size} px, with {1 / last.mac_ratio:.0%} of the MACs"
    choosing = max(0.0, 1 - last.efficiency)
    return f"{begin}: {share}. Choosing tokens takes {choosing:.0%} of its time there."


def _memory_saved(rows: Sequence[SpeedRow]) -> str:
    peaks = _known(rows[-1].result.peak_mib or {})
    if not {UNREDUCED, REDUCED} <= peaks.keys():
        return "Not measured on this device."
    return f"At {rows[-1].size} px {peaks[REDUCED]:.0f} MiB, unreduced {peaks[UNREDUCED]:.0f} MiB."


def _known(values: dict[str, float] | dict[str, float | None]) -> dict[str, float]:
    return {name: value for name, value in values.items() if value is not None}


def _pixels(row: SpeedRow) -> float:
    """Side of a square image with as many pixels."""
    return float((row.result.image_size[1] * row.result.image_size[2]) ** 0.5)


def _plot(
    sides: Sequence[float],
    names: Sequence[str],
    series: Sequence[dict[str, float]],
    highest: float,
    unit: str,
    title: str,
) -> str:
    """Lines of the unreduced model, the method and its free slice over the side of the image."""
    step = _round_up(highest / TICKS)
    spread = max(max(sides) - min(sides), 1.0)

    def x(side: float) -> float:
        alone = len(sides) == 1
        share = 0.5 if alone else (side - min(sides)) / spread
        return LEFT + share * (WIDTH - LEFT - RIGHT)

    def y(value: float) -> float:
        return HEIGHT - BOTTOM - value / (step * TICKS) * (HEIGHT - TOP - BOTTOM)

    grid = "".join(
        f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(step * i):.1f}" y2="{y(step * i):.1f}"/>'
        f'<text x="{LEFT - 6}" y="{y(step * i) + 4:.1f}" text-anchor="end">{step * i:g}</text>'
        for i in range(TICKS + 1)
    )
    floor = HEIGHT - BOTTOM + 16
    below = "".join(
        f'<text x="{x(side):.1f}" y="{floor}" text-anchor="{_anchor(i, len(names))}">{escape(name)}</text>'
        for i, (side, name) in enumerate(zip(sides, names, strict=True))
    )
    lines = "".join(
        _line(
            name.replace(" ", "-"),
            [(x(side), y(one[name])) for side, one in zip(sides, series, strict=True) if name in one],
        )
        for name in (UNREDUCED, FREE_SLICE, REDUCED)
    )
    axis = f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 3}" text-anchor="end">pixels of a side</text>'
    label = escape(f"{title}: {unit} over the size of the image")
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">{grid}{below}{axis}{lines}</svg>'


def _anchor(place: int, count: int) -> str:
    return "end" if place == count - 1 and count > 1 else "middle"


def _line(name: str, points: Sequence[tuple[float, float]]) -> str:
    """A line with a dot at each measurement."""
    path = " ".join(f"{across:.1f},{up:.1f}" for across, up in points)
    dots = "".join(f'<circle cx="{across:.1f}" cy="{up:.1f}" r="3"/>' for across, up in points)
    return f'<g class="{name}"><polyline points="{path}"/>{dots}</g>'


def _round_up(step: float) -> float:
    """The next of 1, 2, 2.5, 5, 10, ... for the distance of grid lines."""
    power = 10.0 ** len(str(int(step))) / 10 if step >= 1 else 10.0 ** -len(f"{1 / step:.0f}")
    return next(power * factor for factor in (1, 2, 2.5, 5, 10, 100) if power * factor >= step)


def _table(rows: Sequence[SpeedRow]) -> str:
    heads = "".join(f'<th scope="col">{escape(head)}</th>' for head in HEADS)
    return (
        '<div class="scroll" tabindex="0" role="region" aria-labelledby="table-title">'
        f"<table><thead><tr>{heads}</tr></thead><tbody>{''.join(map(_row, rows))}</tbody></table></div>"
    )


def _row(row: SpeedRow) -> str:
    result = row.result
    three = (UNREDUCED, REDUCED, FREE_SLICE)
    times = " / ".join(f"{result.ns_per_pixel[name]:.0f}" for name in three)
    peaks = " / ".join(f"{value:.0f}" for value in _known(result.peak_mib or {}).values()) or words.NOTHING
    quartiles = f"{result.speed_up_quartiles[0]:.2f}{words.DASH}{result.speed_up_quartiles[1]:.2f}"
    cells = (
        escape(row.size),
        str(result.batch_size),
        f"{result.speed_up:.2f}{words.TIMES} <small>({quartiles})</small>",
        f"{result.efficiency:.0%}",
        times,
        peaks,
    )
    name = f"{row.method}, {row.reduction.schedule_words}"
    return f'<tr><th scope="row">{escape(name)}</th>{"".join(f"<td>{cell}</td>" for cell in cells)}</tr>'
