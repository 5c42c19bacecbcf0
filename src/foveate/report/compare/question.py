"""Which entry suits a wish: so many decisions unchanged, or so many milliseconds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from foveate.methods.registry import is_method, method_class

if TYPE_CHECKING:
    from foveate.report.compare.comparison import Entry

USUAL_AGREEMENT = 0.99


def best_entry(entries: Sequence[Entry], agreement: float | None, latency: float | None, batch_size: int) -> Entry:
    """The fastest entry that is faithful enough; with ``latency``, the most faithful that is fast enough."""
    if agreement is not None and not 0 <= agreement <= 1:
        hint = f" For {agreement:g} % write {agreement / 100:g}." if 1 < agreement <= 100 else ""
        raise ValueError(f"agreement is a share of the decisions, from 0 to 1; got {agreement!r}.{hint}")
    if latency is not None and not latency > 0:
        raise ValueError(f"latency is a time in milliseconds, above 0; got {latency!r}.")
    measured = [e for e in entries if e.images_per_second is not None and not is_baseline(e)]
    if not measured:
        raise ValueError("No speed was measured, so none can be called the fastest. Run the comparison to its end.")
    least = 100 * (agreement if agreement is not None else USUAL_AGREEMENT if latency is None else 0.0)
    faithful = [e for e in measured if e.agreement >= least - 1e-9]
    if latency is None:
        return max(faithful, key=_per_second)  # the unreduced model is always among them
    quick = [e for e in faithful if milliseconds(e, batch_size) <= latency]
    if not quick:
        fastest = max(faithful, key=_per_second)
        raise ValueError(
            f"No setting takes {latency:g} ms or less for a batch of {batch_size} with {least:g} % of decisions "
            f"unchanged; the fastest such, {fastest.title}, takes {milliseconds(fastest, batch_size):.1f} ms."
        )
    return max(quick, key=lambda entry: (entry.agreement, _per_second(entry)))


def is_baseline(entry: Entry) -> bool:
    """Whether the entry is shown only so that others can be compared with it."""
    name = entry.method.partition(":")[0]
    return is_method(name) and method_class(name).baseline


def milliseconds(entry: Entry, batch_size: int) -> float:
    """Time of one batch."""
    return 1000 * batch_size / _per_second(entry)


def _per_second(entry: Entry) -> float:
    assert entry.images_per_second is not None
    return entry.images_per_second
