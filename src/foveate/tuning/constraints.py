"""What a user asks of a reduction: a quality to keep, a cost to meet, or both."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Literal

from foveate.methods.validation import shown

Quality = Literal["agreement", "cosine"]
Expense = Literal["latency_ms", "speedup", "macs"]
NAMES = ("agreement", "cosine", "latency_ms", "speedup", "macs")
IN_TEXT = {"latency": "latency_ms"}
"""Names on the command line, where the unit stands beside the number; the others are as in Python."""
SHARES, FACTORS, TIMES = {"%": 0.01, "": 1.0}, {"x": 1.0, "": 1.0}, {"ms": 1.0, "s": 1e3}
UNITS = {"agreement": SHARES, "cosine": SHARES, "macs": SHARES, "speedup": FACTORS, "latency_ms": TIMES}
SHORTEST_MS = 0.1
"""No transformer is this fast; such a latency was meant in seconds."""
AT_LEAST = ("agreement", "cosine", "speedup")
"""Constraints from below; the others are from above."""


class UnmetConstraint(ValueError):
    """No reduction that was searched meets the constraint. The message names the nearest."""


@dataclass(frozen=True)
class Constraints:
    """Bounds on quality and cost. The one that is not given is optimized; without a bound on quality, quality is."""

    agreement: float | None = None
    """Smallest share of images with the unreduced model's decision."""
    cosine: float | None = None
    """Smallest mean cosine between embeddings of the reduced and the unreduced model."""
    latency_ms: float | None = None
    """Longest time for a batch, in milliseconds."""
    speedup: float | None = None
    """Smallest speed-up over the unreduced model."""
    macs: float | None = None
    """Largest share of the unreduced model's multiply-accumulates."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int | float) or not value > 0):
                raise ValueError(f"{field.name} must be a number above 0, got {shown(value)}.")
        for name in ("agreement", "cosine", "macs"):
            value = getattr(self, name)
            if value is not None and value > 1:
                raise ValueError(f"{name} is a share of at most 1, got {shown(value)}. For 99 % write 0.99.")
        check_latency(self.latency_ms)
        if self.speedup is not None and self.speedup < 1:
            raise ValueError(f"speedup must be at least 1, got {shown(self.speedup)}.")
        for group in (("agreement", "cosine"), ("latency_ms", "speedup", "macs")):
            given = [name for name in group if getattr(self, name) is not None]
            if len(given) > 1:
                raise ValueError(f"{' and '.join(given)} are given; a search takes one of them.")
        if all(getattr(self, name) is None for name in NAMES):
            raise ValueError(
                "A search needs a constraint: agreement or cosine to keep, or latency_ms, speedup or macs to meet, as "
                "in agreement=0.99."
            )

    @property
    def quality(self) -> Quality | None:
        """The bound on quality that is given."""
        return "agreement" if self.agreement is not None else "cosine" if self.cosine is not None else None

    @property
    def expense(self) -> Expense | None:
        """The bound on cost that is given."""
        return next((name for name in ("latency_ms", "speedup", "macs") if getattr(self, name) is not None), None)

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
    sign = ">=" if name in AT_LEAST else "<="
    return f"latency {sign} {value:g} ms" if name == "latency_ms" else f"{name} {sign} {value:g}"


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


def parse_constraint(text: str) -> dict[str, float]:
    """Read one constraint of the command line: ``agreement>=0.99``, ``latency<=12ms``, ``speedup>=2x``, ``macs<=40%``.

    Raises:
        ValueError: if it is not a constraint, bounds a name from the wrong side, or has the wrong unit.
    """
    found = re.fullmatch(r"\s*(\w+)\s*(>=|<=|=)\s*([0-9.]+)\s*(%|ms|s|x|)\s*", text)
    name = "" if found is None else IN_TEXT.get(found[1], found[1])
    if found is None or name not in NAMES:
        raise ValueError(
            f"Cannot read the constraint {text!r}. Write one of agreement, cosine, latency, speedup and macs with a "
            "bound, such as 'agreement>=0.99', 'latency<=12ms', 'speedup>=2' or 'macs<=0.4'."
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
