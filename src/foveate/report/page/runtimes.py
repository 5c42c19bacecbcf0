"""The candidates in other runtimes: a chart, the fastest with its code, and a table; HTML that needs no script."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from foveate.report.compare.question import is_baseline_method
from foveate.report.compare.served import InRuntime, fastest_by_tier, python, read_stored, sentence
from foveate.report.page import words

WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT = 720, 340, 56, 44, 36, 16
COLORS = 6
HEADS = (
    "Setting",
    "Runtime",
    "Batch",
    "ms",
    "Images/s",
    "Over eager",
    "Over same",
    "Efficiency",
    "Agreement",
    "Ready in",
)


def in_runtimes(found: dict[str, Any]) -> str:
    """The section of other runtimes; empty if none was measured."""
    entries = found["entries"]
    measured = read_stored(found.get("runtimes") or [], len(entries))
    if not measured:
        return ""
    batch = int(found["options"]["batch_size"])
    kinds = list(dict.fromkeys(one.title for one in measured))
    shown = [one for one in measured if one.batch_size == batch]
    caption = (
        f"Batch {batch}. Speeds are relative to the unreduced model in eager PyTorch; up and to the right is better. "
        "Each model was called twice in turn with all others, and the second call was timed."
    )
    return (
        '<section class="served" aria-labelledby="served-title"><h2 id="served-title">In other runtimes</h2>'
        f"{_chart(shown, entries, kinds)}{_legend(kinds)}"
        f'<p class="lead">{caption}</p>{_fastest(measured, entries, batch)}{_table(measured, entries)}</section>'
    )


@dataclass(frozen=True)
class _Scale:
    """Where a speed and a share of unchanged decisions lie in the chart."""

    fastest: float
    least: float

    @staticmethod
    def of(shown: Sequence[InRuntime]) -> _Scale:
        least = min(95.0, *(one.agreement for one in shown))
        return _Scale(1.05 * max(one.speed_up for one in shown), max(0.0, 5 * (least // 5)))

    def across(self, speed: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * speed / self.fastest

    def up(self, agreement: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * (100 - agreement) / (100 - self.least)


def _chart(shown: Sequence[InRuntime], entries: Sequence[dict[str, Any]], kinds: Sequence[str]) -> str:
    """Agreement over speed, a mark for each setting in each runtime, and each method's name at its fastest."""
    scale = _Scale.of(shown)
    marks = [_mark(one, entries[one.entry], scale, kinds.index(one.title) % COLORS) for one in shown]
    label = "Decisions unchanged, in percent, over speed; the table below has the same numbers"
    inner = "".join([*_grid(scale), *marks, *_names(shown, entries, scale)])
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">{inner}</svg>'


def _grid(scale: _Scale) -> Iterator[str]:
    """Lines with their numbers, and what the axes mean."""
    bottom = HEIGHT - BOTTOM
    for speed in range(0, int(scale.fastest) + 1, max(1, round(scale.fastest / 6))):
        x = f"{scale.across(speed):.1f}"
        yield f'<line class="grid" x1="{x}" x2="{x}" y1="{TOP}" y2="{bottom}"/>'
        yield f'<text x="{x}" y="{bottom + 18}" text-anchor="middle">{speed}{words.TIMES}</text>'
    step = next(step for step in (1, 2, 5, 10, 20) if (100 - scale.least) / step <= 5)
    for share in range(100, int(scale.least) - 1, -step):
        y = scale.up(share)
        yield f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{share}{words.GAP}%</text>'
    yield f'<text x="{LEFT}" y="12">decisions unchanged</text>'
    yield f'<text x="{(LEFT + WIDTH) / 2}" y="{HEIGHT - 6}" text-anchor="middle">as fast as PyTorch eager</text>'


def _mark(one: InRuntime, entry: dict[str, Any], scale: _Scale, color: int) -> str:
    setting, place = words.setting_name(entry), f"{scale.across(one.speed_up):.1f} {scale.up(one.agreement):.1f}"
    text = f"{setting}, {one.title}: {one.speed_up:.2f}{words.TIMES}, {one.agreement:.1f} % of decisions unchanged"
    mark = f'<use href="#mark-{escape(entry["kind"])}" x="-8" y="-8" width="16" height="16"/>'
    return f'<g class="mark runtime-{color}" transform="translate({place})">{mark}<title>{escape(text)}</title></g>'


def _names(shown: Sequence[InRuntime], entries: Sequence[dict[str, Any]], scale: _Scale) -> Iterator[str]:
    """The name of each setting's method at its fastest mark, where it covers no other name."""
    named: set[str] = set()
    taken: list[tuple[float, float, float]] = []
    for one in sorted(shown, key=lambda each: -each.speed_up):
        name = entries[one.entry]["label"]
        half = 3.4 * len(name)
        x = min(scale.across(one.speed_up), WIDTH - half)
        places = (scale.up(one.agreement) + shift for shift in (-11, 20))
        free = (y for y in places if not any(abs(y - b) < 14 and abs(x - a) < half + w for a, b, w in taken))
        y = None if name in named else next(free, None)
        if y is not None:
            named.add(name)
            taken.append((x, y, half))
            yield f'<text class="method" x="{x:.1f}" y="{y:.1f}" text-anchor="middle">{escape(name)}</text>'


def _legend(kinds: Sequence[str]) -> str:
    items = "".join(
        f'<li><span class="runtime-{number % COLORS}"></span> {escape(kind)}</li>' for number, kind in enumerate(kinds)
    )
    return f"<ul>{items}</ul>"


def _fastest(measured: Sequence[InRuntime], entries: Sequence[dict[str, Any]], batch: int) -> str:
    """The fastest for each share of unchanged decisions, with the lines that load it."""
    baselines = [number for number, entry in enumerate(entries) if is_baseline_method(entry["method"])]
    blocks = []
    for tier, one in fastest_by_tier(measured, batch, baselines):
        entry = entries[one.entry]
        text = sentence(one, words.setting_name(entry)).replace(" %", f"{words.GAP}%")
        code = escape(python(one, entry["python"]))
        head = f"At least {tier:g}{words.GAP}% unchanged"
        blocks.append(f'<div class="fastest"><h3>{head}</h3><p>{escape(text)}</p><pre><code>{code}</code></pre></div>')
    return "".join(blocks)


def _table(measured: Sequence[InRuntime], entries: Sequence[dict[str, Any]]) -> str:
    heads = "".join(f'<th scope="col">{escape(head)}</th>' for head in HEADS)
    rows = "\n".join(_row(one, entries[one.entry]) for one in measured)
    return (
        '<div class="scroll" tabindex="0" role="region" aria-labelledby="served-title">'
        f"<table><thead><tr>{heads}</tr></thead><tbody>\n{rows}\n</tbody></table></div>"
        '<p class="swipe">The table is wider than this screen: swipe it sideways.</p>'
    )


def _row(one: InRuntime, entry: dict[str, Any]) -> str:
    cells = (
        one.title,
        str(one.batch_size),
        f"{one.milliseconds:.1f}",
        f"{one.images_per_second:.1f}",
        f"{one.speed_up:.2f}{words.TIMES}",
        f"{one.speed_up_within:.2f}{words.TIMES}",
        words.NOTHING if one.efficiency is None else words.whole_percent(one.efficiency),
        f"{one.agreement:.1f}{words.GAP}%",
        f"{one.load_seconds:.1f}{words.GAP}s",
    )
    inner = "".join(f"<td>{escape(cell)}</td>" for cell in cells)
    return f'<tr><th scope="row">{escape(words.setting_name(entry))}</th>{inner}</tr>'
