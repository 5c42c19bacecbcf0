"""The recommendation: the Pareto front, and one setting in a sentence.

The rule: of the settings that are at least 1.2 times as fast as the unreduced model, take the fastest that leaves 99 %
of its decisions unchanged; if there is none, the fastest with 98 %; then with 95 %. If there is still none, take the
fastest with 99 % that gains at least 3 %. Otherwise nothing is recommended, and the sentence names the closest setting.

If the user asks for an agreement, a latency or a speed-up, that replaces the rule: the fastest setting that keeps the
agreement, or else the most faithful one that is fast enough.

On a busy machine speeds are left out: settings are chosen by their MACs, and no speed is claimed. Only an asked latency
or speed-up is still judged by what was timed, with a warning.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from foveate.evaluation import numbers
from foveate.report.compare.comparison import Entry, Recommendation
from foveate.report.compare.question import is_baseline, milliseconds
from foveate.tuning.constraints import Constraints

TIERS = (99.0, 98.0, 95.0)
WORTH_A_LOSS = 1.2
WORTH_IT_FOR_FREE = 1.03
ENOUGH_IMAGES = 200
"""With fewer images, even perfect agreement leaves more than 1.9 % of the decisions uncertain."""
NORMAL_95 = 1.959964
UNSTEADY, BUSY = 1.3, 2.0
"""Factors by which the unreduced model's own speed may vary between the timings of candidates. Above the first, the
sentence gives the quartiles of the ratio. From the second on, ratios of models with many small operations are wrong."""


def wilson_lower(agreement: float, images: int) -> float:
    """Return the lower bound of agreement in percent (Wilson's 95 % interval) after this many images."""
    share, z2 = agreement / 100, NORMAL_95**2
    center = share + z2 / (2 * images)
    spread = NORMAL_95 * math.sqrt(share * (1 - share) / images + z2 / (4 * images**2))
    return 100 * max(0.0, (center - spread) / (1 + z2 / images))


def with_pareto(entries: Sequence[Entry]) -> tuple[Entry, ...]:
    """Mark each entry that no other matches in speed and agreement and beats in one of the two.

    Speed is images per second, or the share of the MACs if no speed was measured.
    """
    timed = any(entry.images_per_second is not None for entry in entries)
    points = [(_speed(entry, timed), entry.agreement) for entry in entries]
    return tuple(
        dataclasses.replace(entry, pareto=point[0] is not None and not any(_beats(other, point) for other in points))
        for entry, point in zip(entries, points, strict=True)
    )


def recommend(
    entries: Sequence[Entry],
    images: int,
    drift: float = 1.0,
    asked: Constraints | None = None,
    batch_size: int = 1,
    of: str = "decisions",
) -> Recommendation:
    """Recommend a setting by the rule at the top of this file.

    Args:
        entries: All settings; the first is the unreduced model.
        images: Number of images that agreement was measured on.
        drift: Best divided by worst speed of the unreduced model, over the timings of the candidates.
        asked: What the user asked for instead of the rule.
        batch_size: Images in a batch, for an asked latency.
        of: What agreement counts.
    """
    if all(entry.speed_up is None for entry in entries[1:]):
        return Recommendation(None, "No speed was measured, so nothing can be recommended.", "")
    by_macs = drift >= BUSY and (asked is None or (asked.speedup is None and asked.latency_ms is None))
    judged = [_by_macs(entry) for entry in entries] if by_macs else entries
    chosen = _choose(judged) if asked is None else _choose_for(judged, asked, batch_size)
    if chosen is None:
        words = _nothing(judged, of) if asked is None else _unmet(judged, asked, batch_size, of)
        return Recommendation(None, words + _unsteady(drift, None, by_macs), "")
    entry = judged[chosen]
    unsteady = _unsteady(drift, entry, by_macs)
    sentence = f"{_subject(entry)} {_gain(entry, entries[0], of)}.{_caution(entry, images)}{unsteady}"
    return Recommendation(chosen, sentence, entry.python)


def _by_macs(entry: Entry) -> Entry:
    """The entry as if it were as fast as its MACs promise, without a time of its own."""
    timed = entry.speed_up is not None
    return dataclasses.replace(entry, speed_up=1 / entry.mac_ratio if timed else None, images_per_second=None)


def _speed(entry: Entry, timed: bool) -> float | None:
    return entry.images_per_second if timed else 1 / entry.mac_ratio


def _beats(one: tuple[float | None, float], other: tuple[float | None, float]) -> bool:
    if one[0] is None or other[0] is None:
        return False
    return one[0] >= other[0] and one[1] >= other[1] and (one[0], one[1]) != (other[0], other[1])


def _choose(entries: Sequence[Entry]) -> int | None:
    speeds = {number: entry.speed_up for number, entry in enumerate(entries) if number and not is_baseline(entry)}
    known = {number: speed for number, speed in speeds.items() if speed is not None}
    for least, worth in (*((tier, WORTH_A_LOSS) for tier in TIERS), (TIERS[0], WORTH_IT_FOR_FREE)):
        fitting = [n for n, speed in known.items() if speed >= worth and entries[n].agreement >= least]
        if fitting:
            return max(fitting, key=lambda number: known[number])
    return None


def _choose_for(entries: Sequence[Entry], asked: Constraints, batch_size: int) -> int | None:
    """The fastest that keeps an asked agreement; else the most faithful that is fast enough."""
    fitting = [n for n in _eligible(entries) if _shortfall(entries[n], asked, batch_size) <= 0]
    speed = lambda number: entries[number].speed_up or 0.0  # noqa: E731
    if asked.agreement is not None:
        return max(fitting, key=speed, default=None)
    return max(fitting, key=lambda number: (entries[number].agreement, speed(number)), default=None)


def _eligible(entries: Sequence[Entry]) -> list[int]:
    return [n for n, entry in enumerate(entries) if n and entry.speed_up is not None and not is_baseline(entry)]


def _shortfall(entry: Entry, asked: Constraints, batch_size: int) -> float:
    """By what share an entry misses what was asked; 0 or less if it does not."""
    missed = []
    if asked.agreement is not None:
        missed.append(asked.agreement - entry.agreement / 100 - 1e-9)
    if asked.speedup is not None:
        missed.append(1 - (entry.speed_up or 0.0) / asked.speedup)
    if asked.latency_ms is not None:
        missed.append(milliseconds(entry, batch_size) / asked.latency_ms - 1)
    return max(missed)


def _unmet(entries: Sequence[Entry], asked: Constraints, batch_size: int, of: str) -> str:
    eligible = _eligible(entries)
    if not eligible:
        return "Only baselines were measured, and a baseline is never recommended."
    nearest = entries[min(eligible, key=lambda number: _shortfall(entries[number], asked, batch_size))]
    timed = nearest.images_per_second is not None
    time = f" ({milliseconds(nearest, batch_size):.1f} ms for a batch of {batch_size})" if timed else ""
    gain = _gain(nearest, entries[0], of)
    return f"Nothing that was measured meets {asked}. The nearest, {_subject(nearest)}, {gain}{time}."


def _subject(entry: Entry) -> str:
    return entry.label if entry.budget is None else f"{entry.label} at {entry.budget:g} of the MACs"


def _gain(entry: Entry, unreduced: Entry, of: str) -> str:
    return f"{_fast(entry)}, with {_kept(entry, unreduced, of)}"


def _fast(entry: Entry) -> str:
    if entry.images_per_second is None:
        return f"saves {100 * (1 - entry.mac_ratio):.0f} % of the MACs"
    return f"is {entry.speed_up:.2f}x as fast"


def _kept(entry: Entry, unreduced: Entry, of: str) -> str:
    text = f"{'100' if entry.agreement == 100 else numbers.percent(entry.agreement)} % of {of} unchanged"
    if "cosine" in entry.metrics:
        text += f" (embeddings have a cosine of {entry.metrics['cosine']:.3f} to the unreduced model's)"
    if entry.top1 is not None and unreduced.top1 is not None:
        now, before = f"{numbers.percent(entry.top1)} %", f"{numbers.percent(unreduced.top1)} %"
        text += f" (top-1 stays {now})" if now == before else f" (top-1 {now} instead of {before})"
    return text


def _caution(entry: Entry, images: int) -> str:
    if entry.agreement == 100 and entry.kind == "none":
        return ""  # exact by construction, whatever the images
    least = numbers.percent(wilson_lower(entry.agreement, images))
    few = " These are few images; use more before you rely on it." if images < ENOUGH_IMAGES else ""
    return f" Measured on {images:,} images; on similar images, agreement may be as low as {least} %.{few}"


def _unsteady(drift: float, entry: Entry | None, by_macs: bool) -> str:
    if drift < UNSTEADY:
        return ""
    variation = f"the speed of the unreduced model varied by {drift:.1f}x"
    if drift >= BUSY:
        so = "so settings were judged by their MACs" if by_macs else "so do not trust these speeds"
        return f" The machine was busy: {variation}, {so}. Measure again when nothing else is running."
    first, third = entry.speed_up_quartiles if entry is not None and entry.speed_up_quartiles else (None, None)
    ratio = "" if first is None else f", and half of the rounds gave a speed-up of {first:.2f}x to {third:.2f}x"
    return f" The machine was not steady: {variation}{ratio}."


def _nothing(entries: Sequence[Entry], of: str) -> str:
    rest = [entry for entry in entries[1:] if entry.speed_up is not None and not is_baseline(entry)]
    faster = [entry for entry in rest if (entry.speed_up or 0) >= WORTH_A_LOSS]
    if not rest:
        return "Only baselines were measured, and a baseline is never recommended."
    if not faster:
        fastest = max(rest, key=lambda entry: entry.speed_up or 0)
        return (
            f"No setting is worth it here: at least {WORTH_A_LOSS:g}x the speed of the unreduced model is required, "
            f"and the fastest, {_subject(fastest)}, {_fast(fastest)}."
        )
    nearest = max(faster, key=lambda entry: entry.agreement)
    return (
        f"No setting is recommended: every one that is at least {WORTH_A_LOSS:g}x as fast changes more than "
        f"{100 - TIERS[-1]:g} % of the {of}. The closest, {_subject(nearest)}, {_gain(nearest, entries[0], of)}."
    )
