"""A printed number next to ours, and the rule that compares the two."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

MEGA, GIGA = 10**6, 10**9


@dataclass(frozen=True)
class Figure:
    """A number as a paper prints it, next to the number we count.

    They match if ours, rounded to the digits that are printed, is the printed number. Papers do not state how they
    round a half, so either neighbor of an exact half matches. The comparison is in whole numbers and so exact.
    """

    printed: str | None
    """The text, since "1.0" and "1.00" are compared to different digits; None where the paper prints nothing."""
    ours: int | None
    """What we count; None where it cannot be counted."""
    unit: int = GIGA
    """What the printed number is a multiple of."""
    tolerance: float | None = None
    """Largest difference, in units, for a paper that counts differently; it replaces the rounding."""
    judged: bool = True

    @property
    def digits(self) -> int:
        """The number of printed decimal digits."""
        return len((self.printed or "").partition(".")[2])

    @property
    def value(self) -> float | None:
        """The printed number."""
        return None if self.printed is None else float(self.printed)

    @property
    def counted(self) -> float | None:
        """Our number, in the printed unit."""
        return None if self.ours is None else self.ours / self.unit

    @property
    def matches(self) -> bool | None:
        """Whether the two numbers match; None where one of them is missing."""
        if self.printed is None or self.ours is None:
            return None
        if self.tolerance is not None:
            return abs(self.ours / self.unit - float(self.printed)) <= self.tolerance
        # twice the difference in steps of the last printed digit is at most one step
        scale = 10**self.digits
        return 2 * abs(self.ours * scale - int(self.printed.replace(".", "")) * self.unit) <= self.unit

    @property
    def holds(self) -> bool | None:
        """``matches``; None also where the figure is not judged."""
        return self.matches if self.judged else None

    def off_by(self, digits: int) -> float | None:
        """Return our number minus the printed one, rounded to ``digits`` decimals."""
        if self.counted is None or self.value is None:
            return None
        return round(self.counted - self.value, digits)


def verdict(*figures: Figure) -> bool | None:
    """Return whether all judged figures hold; None if none is judged."""
    judged = [figure.holds for figure in figures if figure.holds is not None]
    return all(judged) if judged else None


def score(figures: Iterable[Figure]) -> str:
    """Return how many figures match, as "36 of 38"; those with a missing number do not count."""
    found = [figure.matches for figure in figures if figure.matches is not None]
    return f"{sum(found)} of {len(found)}"
