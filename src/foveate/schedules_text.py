"""Schedules as text: command line options, short forms, and Python code."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from foveate.schedules import Adaptive, Budget, Keep, KeepRate, PlanError, RemovePerBlock, Schedule

OPTIONS = ("--keep-rate", "--keep", "--remove", "--budget", "--adaptive", "--blocks")
IN_WORDS = "--budget 0.5, --keep-rate 0.7 --blocks 3,6,9, --keep 3:100,6:50 or --remove 13"


def as_schedule(given: Any) -> Any:
    """Turn a share such as 0.5 or ``"50%"`` into a ``Budget``; return anything else unchanged."""
    if isinstance(given, str):
        return Budget(parse_share(given))
    return Budget(given) if isinstance(given, int | float) and not isinstance(given, bool) else given


def parse_share(text: str) -> float:
    """Read a share: ``0.5`` or ``50%``."""
    number, percent = text.strip().removesuffix("%"), text.strip().endswith("%")
    try:
        return float(number) / (100 if percent else 1)
    except ValueError:
        raise ValueError(f"write a share as 0.5 or 50%; got {text!r}") from None


def split_list(texts: str | Sequence[str]) -> list[str]:
    """Split items at spaces and commas."""
    given = [texts] if isinstance(texts, str) else texts
    return [item for text in given for item in text.replace(",", " ").split()]


def parse_blocks(text: str) -> tuple[int, ...]:
    """Read block numbers: ``3,6,9`` or ``3 6 9``."""
    try:
        return tuple(int(item) for item in split_list(text))
    except ValueError:
        raise ValueError(f"write block numbers as 3,6,9; got {text!r}") from None


def parse_keep(text: str) -> Keep:
    """Read counts: ``3:100,6:50`` or ``196,196,100``."""
    items = [item.split(":") for item in split_list(text)]
    parts = {len(item) for item in items}
    if parts not in ({1}, {2}) or not all(number.strip().isdecimal() for item in items for number in item):
        raise ValueError(f"write 3:100,6:50 (block:count) or one count per block; got {text!r}")
    if parts == {1}:
        return Keep([int(count) for (count,) in items])
    plan = {int(block): int(count) for block, count in items}
    if len(plan) < len(items):
        raise ValueError(f"a block is named twice in {text!r}")
    return Keep(plan)


def parse_remove(text: str) -> RemovePerBlock:
    """Read tokens removed in every block: ``13``, or ``13,-0.5`` with an inflection."""
    number, _, tilt = text.replace(" ", "").partition(",")
    try:
        return RemovePerBlock(int(number), float(tilt or 0))
    except PlanError:
        raise
    except ValueError:
        raise ValueError(f"write a whole number of tokens, or 13,-0.5 with an inflection; got {text!r}") from None


def parse_adaptive(text: str) -> Adaptive:
    """Read an average share: ``0.5`` or, with a fitted threshold, ``0.5:0.031``."""
    share, _, threshold = text.partition(":")
    try:
        return Adaptive(parse_share(share), threshold=float(threshold) if threshold else None)
    except PlanError:
        raise
    except ValueError:
        raise ValueError(f"write an average share as 0.5, or 0.5:0.031 with a threshold; got {text!r}") from None


def make_schedule(
    *,
    keep_rate: float | None = None,
    keep: Keep | None = None,
    remove: RemovePerBlock | int | None = None,
    budget: float | None = None,
    adaptive: Adaptive | None = None,
    schedule: Schedule | None = None,
    blocks: tuple[int, ...] | None = None,
) -> Schedule | None:
    """Make the one schedule that is given; None if none is.

    Raises:
        PlanError: if several schedules are given, or ``blocks`` without ``keep_rate`` or ``budget``.
    """
    makers: Mapping[str, Callable[[], Schedule | None]] = {
        "keep_rate": lambda: None if keep_rate is None else KeepRate(keep_rate, blocks),
        "budget": lambda: None if budget is None else Budget(budget, blocks),
        "adaptive": lambda: None if adaptive is None else dataclasses.replace(adaptive, blocks=blocks),
        "remove": lambda: RemovePerBlock(remove) if isinstance(remove, int) else remove,
        "keep": lambda: keep,
        "schedule": lambda: schedule,
    }
    found = {name: made for name, make in makers.items() if (made := make()) is not None}
    if len(found) > 1:
        raise PlanError(f"{' and '.join(found)} are several schedules; give one of {', '.join(makers)}.")
    if blocks is not None and not {"keep_rate", "budget", "adaptive"} & found.keys():
        raise PlanError(f"blocks={blocks} needs a keep rate or a budget: --keep-rate 0.7 --blocks 3,6,9.")
    return next(iter(found.values()), None)


def read_schedule(words: Sequence[str], whole: str) -> Schedule | None:
    """Read a schedule from command line ``words`` such as ``["--budget", "0.5"]``; ``whole`` is quoted in errors."""
    values: dict[str, str] = {}
    for option, value in zip(words[::2], [*words[1::2], *([""] if len(words) % 2 else [])], strict=True):
        if option not in OPTIONS or not value or option in values:
            raise ValueError(f"Cannot read {option!r} in {whole!r}. Write a method and one schedule: {IN_WORDS}.")
        values[option] = value
    readers: dict[str, Callable[[str], Any]] = {
        "--keep-rate": parse_share,
        "--keep": parse_keep,
        "--remove": parse_remove,
        "--budget": parse_share,
        "--adaptive": parse_adaptive,
        "--blocks": parse_blocks,
    }
    return make_schedule(**{name.strip("-").replace("-", "_"): readers[name](text) for name, text in values.items()})


def schedule_text(schedule: Schedule) -> str:
    """The schedule as command line options: ``--keep-rate 0.7 --blocks 3,6,9``."""
    if isinstance(schedule, KeepRate):
        return f"--keep-rate {schedule.rate}{_blocks_text(schedule.blocks)}"
    if isinstance(schedule, Budget):
        return f"--budget {schedule.fraction}{_blocks_text(schedule.blocks)}"
    if isinstance(schedule, Adaptive) and schedule == Adaptive(schedule.fraction, schedule.blocks, schedule.threshold):
        fitted = "" if schedule.threshold is None else f":{schedule.threshold!r}"
        return f"--adaptive {schedule.fraction}{fitted}{_blocks_text(schedule.blocks)}"
    if isinstance(schedule, RemovePerBlock):
        return f"--remove {schedule.r}{f',{schedule.inflection}' if schedule.inflection else ''}"
    if isinstance(schedule, Keep):
        return f"--keep {_joined(_items(schedule))}"
    raise ValueError(f"{schedule!r} cannot be written on a command line.")


def schedule_words(schedule: Schedule | None) -> str:
    """The schedule in a few words, for tables."""
    if schedule is None:
        return "own counts"
    if isinstance(schedule, Keep) and schedule.listed:
        return "keep, by block"
    try:
        text = schedule_text(schedule)
    except ValueError:
        return repr(schedule)
    return text.removeprefix("--").replace(" --blocks ", " at ")


def schedule_code(schedule: Schedule) -> str:
    """The schedule as Python code: ``fv.Budget(0.5)``."""
    return f"fv.{schedule!r}" if type(schedule).__module__.startswith("foveate.") else repr(schedule)


def _items(schedule: Keep) -> list[str]:
    return [str(count) if schedule.listed else f"{block}:{count}" for block, count in schedule.pairs]


def _blocks_text(blocks: tuple[int, ...] | None) -> str:
    return f" --blocks {_joined(blocks)}" if blocks else ""


def _joined(items: Iterable[object]) -> str:
    return ",".join(map(str, items))
