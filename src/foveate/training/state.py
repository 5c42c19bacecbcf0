"""Where a run is, and what it came to."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class State:
    """Everything of a run that changes but is not a tensor."""

    step: int = 0
    epoch: int = 0
    batch: int = 0
    """Batches of this epoch that are done."""
    sums: dict[str, float] = field(default_factory=dict)
    """Losses of this epoch up to the last checkpoint, summed over its steps."""
    history: list[dict[str, Any]] = field(default_factory=list)
    """One entry for each epoch, as log.jsonl has them."""
    best: float | None = None
    broken: list[str] = field(default_factory=list)
    """Images that could not be read, up to the end of the last epoch."""


@dataclass(frozen=True)
class Outcome:
    """What a run came to."""

    directory: Path
    finished: bool
    """False if it was stopped before its end; ``resume`` goes on."""
    history: list[dict[str, Any]]
    """One entry for each epoch, as log.jsonl has them."""
    best: float | None
    """The best value of the monitored metric over all evaluations."""
    products: dict[str, Any]
    """What the objective has written beside the model."""


class Diverged(RuntimeError):
    """Loss or weights became NaN or infinite."""

    users_error = True  # the command line reports it in one line
