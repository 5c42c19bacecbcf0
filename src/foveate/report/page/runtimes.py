"""The candidates in other runtimes: a chart, the fastest with its code, and a table; HTML that needs no script."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from foveate.report.compare.question import is_baseline_method
from foveate.report.compare.served import InRuntime, fastest_by_tier, python, read_stored, sentence
from foveate.report.page import words

WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT = 720, 320, 48, 44, 12, 16
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


def _chart(shown: Sequence[InRuntime], entries: Sequence[dict[str, Any]], kinds: Sequence[str]) -> str:
    """Agreement over speed, a dot for each setting in each runtime."""
    most = max(one.speed_up for one in shown) * 1.05
    least = min(min(one.agreement for one in shown), 95.0)
    least = max(0.0, 5 * (least // 5))

    def across(speed: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * speed / most

    def up(agreement: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * (100 - agreement) / (100 - least)

    lines, steps = [], max(1, round(most / 6))
    for speed in range(0, int(most) + 1, steps):
        lines.append(
            f'<line class="grid" x1="{across(speed):.1f}" x2="{across(speed):.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>'
        )
        lines.append(
            f'<text x="{across(speed):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{speed}{words.TIMES}</text>'
        )
    for part in range(5):
        share = least + (100 - least) * part / 4
        lines.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{up(share):.1f}" y2="{up(share):.1f}"/>')
        lines.append(f'<text x="{LEFT - 8}" y="{up(share) + 4:.1f}" text-anchor="end">{share:.4g}</text>')
    lines.append(
        f'<text x="{(LEFT + WIDTH) / 2}" y="{HEIGHT - 6}" text-anchor="middle">as fast as PyTorch eager</text>'
    )
    for one in shown:
        setting = words.setting_name(entries[one.entry])
        text = f"{setting}, {one.title}: {one.speed_up:.2f}{words.TIMES}, {one.agreement:.1f} % of decisions unchanged"
        mark = f'<use href="#mark-{escape(entries[one.entry]["kind"])}" x="-8" y="-8" width="16" height="16"/>'
        place, color = f"{across(one.speed_up):.1f} {up(one.agreement):.1f}", kinds.index(one.title) % COLORS
        title = f"<title>{escape(text)}</title>"
        lines.append(f'<g class="mark runtime-{color}" transform="translate({place})">{mark}{title}</g>')
    label = "Decisions unchanged, in percent, over speed; the table below has the same numbers"
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">{"".join(lines)}</svg>'


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
