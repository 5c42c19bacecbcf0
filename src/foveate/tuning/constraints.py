"""What a user asks of a reduction: a quality to keep, a cost to meet, or both."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Literal, get_args

from foveate.methods.validation import shown

Quality = Literal["agreement", "miou", "cosine"]
Expense = Literal["latency_ms", "speedup", "macs", "memory_mib"]
Goal = Literal["macs", "latency", "memory"]
"""What is made small where only a quality is bounded."""
QUALITIES: tuple[Quality, ...] = ("agreement", "miou", "cosine")
EXPENSES: tuple[Expense, ...] = ("latency_ms", "speedup", "macs", "memory_mib")
NAMES = (*QUALITIES, *EXPENSES)
IN_TEXT = {"latency": "latency_ms", "memory": "memory_mib"}
"""Names on the command line, where the unit stands beside the number; the others are as in Python."""
SHARES, FACTORS, TIMES = {"%": 0.01, "": 1.0}, {"x": 1.0, "": 1.0}, {"ms": 1.0, "s": 1e3}
SIZES = {"MiB": 1.0, "GiB": 1024.0}
UNITS = {
    **dict.fromkeys((*QUALITIES, "macs"), SHARES),
    "speedup": FACTORS,
    "latency_ms": TIMES,
    "memory_mib": SIZES,
}
SHORTEST_MS = 0.1
"""No transformer is this fast; such a latency was meant in seconds."""
AT_LEAST = (*QUALITIES, "speedup")
"""Constraints from below; the others are from above."""


class UnmetConstraint(ValueError):
    """No reduction that was searched meets the constraint. The message names the nearest."""


@dataclass(frozen=True)
class Constraints:
    """Bounds on quality and cost. The one that is not given is optimized; without a bound on quality, quality is."""

    agreement: float | None = None
    """Smallest share of images, or of pixels, with the unreduced model's decision."""
    miou: float | None = None
    """Smallest mean IoU of masks with those of the unreduced model."""
    cosine: float | None = None
    """Smallest mean cosine between embeddings of the reduced and the unreduced model."""
    latency_ms: float | None = None
    """Longest time for a batch, in milliseconds."""
    speedup: float | None = None
    """Smallest speed-up over the unreduced model."""
    macs: float | None = None
    """Largest share of the unreduced model's multiply-accumulates; of a dense model, of its encoder's."""
    memory_mib: float | None = None
    """Largest peak of a pass beyond weights and images, in MiB."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int | float) or not value > 0):
                raise ValueError(f"{field.name} must be a number above 0, got {shown(value)}.")
        for name in (*QUALITIES, "macs"):
            value = getattr(self, name)
            if value is not None and value > 1:
                raise ValueError(f"{name} is a share of at most 1, got {shown(value)}. For 99 % write 0.99.")
        check_latency(self.latency_ms)
        if self.speedup is not None and self.speedup < 1:
            raise ValueError(f"speedup must be at least 1, got {shown(self.speedup)}.")
        for group in (QUALITIES, EXPENSES):
            given = [name for name in group if getattr(self, name) is not None]
            if len(given) > 1:
                raise ValueError(f"{' and '.join(given)} are given; a search takes one of them.")
        if all(getattr(self, name) is None for name in NAMES):
            raise ValueError(
                "A search needs a constraint: agreement, miou or cosine to keep, or latency_ms, speedup, macs or "
                "memory_mib to meet, as in agreement=0.99."
            )

    @property
    def quality(self) -> Quality | None:
        """The bound on quality that is given."""
        return next((name for name in QUALITIES if getattr(self, name) is not None), None)

    @property
    def least_quality(self) -> float | None:
        """The bound on quality itself."""
        return None if self.quality is None else getattr(self, self.quality)

    @property
    def expense(self) -> Expense | None:
        """The bound on cost that is given."""
        return next((name for name in EXPENSES if getattr(self, name) is not None), None)

    @property
    def needs_times(self) -> bool:
        """Whether a bound is on time."""
        return self.expense in ("latency_ms", "speedup")

    def as_dict(self) -> dict[str, float]:
        """The bounds that are given."""
        return {name: getattr(self, name) for name in NAMES if getattr(self, name) is not None}

    def __str__(self) -> str:
        return ", ".join(_text(name, value) for name, value in self.as_dict().items())


def _text(name: str, value: float) -> str:
    if name in AT_LEAST:
        return f"{name} >= {value:g}"
    return {"latency_ms": f"latency <= {value:g} ms", "memory_mib": f"memory <= {value:g} MiB"}.get(
        name, f"{name} <= {value:g}"
    )


def check_latency(milliseconds: float | None) -> None:
    """Raise a ValueError if a latency is not above 0, or so short that it must have been meant in seconds."""
    if milliseconds is None:
        return
    if isinstance(milliseconds, bool) or not isinstance(milliseconds, int | float) or not milliseconds > 0:
        raise ValueError(f"latency_ms must be a number above 0, got {shown(milliseconds)}.")
    if milliseconds < SHORTEST_MS:
        raise ValueError(
            f"latency_ms is in milliseconds, and no model is as fast as {milliseconds:g} ms. "
            f"For {milliseconds:g} seconds write {1000 * milliseconds:g}."
        )


def check_goal(goal: str, constraints: Constraints) -> None:
    """Raise a ValueError if there is no such goal, or none to choose because a cost is bounded."""
    if goal not in get_args(Goal):
        raise ValueError(f"optimize is one of {', '.join(get_args(Goal))}; got {shown(goal)}.")
    if goal != "macs" and constraints.expense is not None:
        raise ValueError(f"optimize={goal!r} is for a bound on quality; with {constraints}, quality is optimized.")


def parse_constraint(text: str) -> dict[str, float]:
    """Read one constraint of the command line: ``agreement>=0.99``, ``latency<=12ms``, ``speedup>=2x``, ``macs<=40%``.

    Raises:
        ValueError: if it is not a constraint, bounds a name from the wrong side, or has the wrong unit.
    """
    found = re.fullmatch(r"\s*(\w+)\s*(>=|<=|=)\s*([0-9.]+)\s*(%|ms|s|x|MiB|GiB|)\s*", text)
    name = "" if found is None else IN_TEXT.get(found[1], found[1])
    if found is None or name not in NAMES:
        raise ValueError(
            f"Cannot read the constraint {text!r}. Write one of agreement, miou, cosine, latency, speedup, macs and "
            "memory with a bound, such as 'agreement>=0.99', 'latency<=12ms', 'speedup>=2', 'macs<=0.4' or "
            "'memory<=200MiB'."
        )
    _, sign, number, unit = found.groups()
    wanted = ">=" if name in AT_LEAST else "<="
    if sign not in (wanted, "="):
        raise ValueError(f"{found[1]} is bounded by {wanted}, got {text!r}.")
    if unit not in UNITS[name]:
        raise ValueError(_wrong_unit(found[1], number, unit, UNITS[name]))
    try:
        return {name: float(number) * UNITS[name][unit]}
    except ValueError:
        raise ValueError(f"Cannot read the number {number!r} in {text!r}.") from None


def _wrong_unit(name: str, number: str, unit: str, known: Mapping[str, float]) -> str:
    ways = " or ".join(f"{number}{one}" for one in known)
    return f"{name} has {f'the wrong unit {unit!r}' if unit else 'no unit'} in {number + unit!r}. Write {ways}."
