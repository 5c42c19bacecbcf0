"""From figures to a decision: the Pareto front, and one setting in a sentence.

The rule. Of the settings that are at least 1.2 times as fast as the unreduced model, the fastest that leaves 99 % of
its decisions unchanged; if there is none, the fastest with 98 %; then with 95 %. If there is none of those either, the
fastest with 99 % that gains at least 3 %. Otherwise nothing is recommended, and the sentence says what came nearest.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from foveate.evaluation import numbers
from foveate.report.compare.comparison import Entry, Recommendation
from foveate.report.compare.question import is_baseline

TIERS = (99.0, 98.0, 95.0)
WORTH_A_LOSS = 1.2
WORTH_IT_FOR_FREE = 1.03
ENOUGH_IMAGES = 200
"""With fewer, even perfect agreement leaves more than 1.9 % of the decisions open."""
NORMAL_95 = 1.959964
UNSTEADY, BUSY = 1.3, 2.0
"""Times by which the unreduced model's own speed may differ from one candidate's timing to another's: above the first,
the sentence has the quartiles of the ratio; above the second, ratios of models with many small operations are wrong."""


def wilson_lower(agreement: float, images: int) -> float:
    """The least agreement, in per cent, that is still plausible (95 % interval of Wilson) after so many images."""
    share, z2 = agreement / 100, NORMAL_95**2
    center = share + z2 / (2 * images)
    spread = NORMAL_95 * math.sqrt(share * (1 - share) / images + z2 / (4 * images**2))
    return 100 * max(0.0, (center - spread) / (1 + z2 / images))


def with_pareto(entries: Sequence[Entry]) -> tuple[Entry, ...]:
    """The entries, each marked whether no other is at least as fast and as faithful and better in one of both.

    Speed is images per second; where none was measured, the share of the MACs stands in for it.
    """
    timed = any(entry.images_per_second is not None for entry in entries)
    points = [(_speed(entry, timed), entry.agreement) for entry in entries]
    return tuple(
        dataclasses.replace(entry, pareto=point[0] is not None and not any(_beats(other, point) for other in points))
        for entry, point in zip(entries, points, strict=True)
    )


def recommend(entries: Sequence[Entry], images: int, drift: float = 1.0) -> Recommendation:
    """The decision by the rule at the top of this file; ``entries[0]`` is the unreduced model.

    ``drift``: how many times faster the unreduced model was at its best than at its worst while others were timed.
    """
    if all(entry.speed_up is None for entry in entries[1:]):
        return Recommendation(None, "No speed was measured, so that nothing can be recommended yet.", "")
    chosen = _choose(entries)
    if chosen is None:
        return Recommendation(None, _nothing(entries) + _unsteady(drift, None), "")
    entry = entries[chosen]
    sentence = f"{_subject(entry)} {_gain(entry, entries[0])}.{_caution(entry, images)}{_unsteady(drift, entry)}"
    return Recommendation(chosen, sentence, entry.python)


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


def _subject(entry: Entry) -> str:
    return entry.label if entry.budget is None else f"{entry.label} at {entry.budget:g} of the MACs"


def _gain(entry: Entry, unreduced: Entry) -> str:
    return f"is {entry.speed_up:.2f}x faster, and {_kept(entry, unreduced)}"


def _kept(entry: Entry, unreduced: Entry) -> str:
    text = f"{_per_cent(entry.agreement)} of decisions are unchanged"
    if entry.top1 is not None and unreduced.top1 is not None:
        now, before = f"{numbers.percent(entry.top1)} %", f"{numbers.percent(unreduced.top1)} %"
        text += f" (top-1 stays {now})" if now == before else f" (top-1 {now} instead of {before})"
    return text


def _per_cent(value: float) -> str:
    return "100 %" if value == 100 else f"{numbers.percent(value)} %"


def _caution(entry: Entry, images: int) -> str:
    if entry.agreement == 100 and entry.kind == "none":
        return ""  # exact by construction; the images prove nothing here
    least = numbers.percent(wilson_lower(entry.agreement, images))
    few = " These are few images: repeat it with more before you rely on it." if images < ENOUGH_IMAGES else ""
    return f" Seen on {images:,} images; on others like these it may be as few as {least} %.{few}"


def _unsteady(drift: float, entry: Entry | None) -> str:
    if drift < UNSTEADY:
        return ""
    seen = f"the unreduced model itself was {drift:.1f}x as fast at times as at others"
    if drift >= BUSY:
        return (
            f" The machine was not quiet: {seen}, so that speeds are not to be trusted. Measure again when nothing "
            "else runs."
        )
    first, third = entry.speed_up_quartiles if entry is not None and entry.speed_up_quartiles else (None, None)
    ratio = "" if first is None else f", and half of the rounds gave {first:.2f}x to {third:.2f}x here"
    return f" The machine was not quite steady: {seen}{ratio}."


def _nothing(entries: Sequence[Entry]) -> str:
    rest = [entry for entry in entries[1:] if entry.speed_up is not None and not is_baseline(entry)]
    faster = [entry for entry in rest if (entry.speed_up or 0) >= WORTH_A_LOSS]
    if not rest:
        return "Only the baseline was measured, and that is never recommended."
    if not faster:
        fastest = max(rest, key=lambda entry: entry.speed_up or 0)
        return (
            f"Nothing is worth it here: the fastest, {_subject(fastest)}, makes the model {fastest.speed_up:.2f}x as "
            f"fast; {WORTH_A_LOSS:g}x is asked for."
        )
    nearest = max(faster, key=lambda entry: entry.agreement)
    return (
        f"Nothing is recommended: every setting that is {WORTH_A_LOSS:g}x faster changes more than "
        f"{100 - TIERS[-1]:g} % of the decisions. The nearest, {_subject(nearest)}, {_gain(nearest, entries[0])}."
    )
