"""The best entry for a required agreement or latency."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from foveate.methods.registry import is_method, method_class
from foveate.tuning.constraints import check_latency

if TYPE_CHECKING:
    from foveate.report.compare.comparison import Entry

DEFAULT_AGREEMENT = 0.99
SMALLER_IMAGES = "smaller-images"
"""The entry of the same model with smaller images; it stands in the place of a method's name."""


def best_entry(entries: Sequence[Entry], agreement: float | None, latency_ms: float | None, batch_size: int) -> Entry:
    """Return the fastest entry that is faithful enough; with ``latency_ms``, the most faithful that is fast enough."""
    if agreement is not None and not 0 <= agreement <= 1:
        hint = f" For {agreement:g} % write {agreement / 100:g}." if 1 < agreement <= 100 else ""
        raise ValueError(f"agreement is a share of the decisions and must be from 0 to 1, got {agreement!r}.{hint}")
    check_latency(latency_ms)
    measured = [e for e in entries if e.images_per_second is not None and not is_baseline(e)]
    if not measured:
        raise ValueError("No speed was measured. Run the comparison to its end.")
    least = 100 * (agreement if agreement is not None else DEFAULT_AGREEMENT if latency_ms is None else 0.0)
    faithful = [e for e in measured if e.agreement >= least - 1e-9]
    if latency_ms is None:
        return max(faithful, key=_per_second)  # the unreduced model is always among them
    fast_enough = [e for e in faithful if milliseconds(e, batch_size) <= latency_ms]
    if not fast_enough:
        fastest = max(faithful, key=_per_second)
        raise ValueError(
            f"No setting takes {latency_ms:g} ms or less for a batch of {batch_size} with {least:g} % of decisions "
            f"unchanged; the fastest of those, {fastest.title}, takes {milliseconds(fastest, batch_size):.1f} ms."
        )
    return max(fast_enough, key=lambda entry: (entry.agreement, _per_second(entry)))


def is_baseline(entry: Entry) -> bool:
    """Return whether the entry is a baseline, shown only for comparison."""
    return is_baseline_method(entry.method)


def is_baseline_method(method: str) -> bool:
    """Return whether the method of an entry, as it is written, is a baseline."""
    name = method.partition(":")[0]
    return name == SMALLER_IMAGES or (is_method(name) and method_class(name).baseline)


def milliseconds(entry: Entry, batch_size: int) -> float:
    """Return the time of one batch."""
    return 1000 * batch_size / _per_second(entry)


def _per_second(entry: Entry) -> float:
    assert entry.images_per_second is not None
    return entry.images_per_second
