"""The state and the outcome of a run."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from foveate.evaluation.plain_data import checked_value, read_dataclass


@dataclass
class State:
    """The changing values of a run that are not tensors."""

    step: int = 0
    epoch: int = 0
    batch: int = 0
    """Finished batches of this epoch."""
    sums: dict[str, float] = field(default_factory=dict)
    """Losses of this epoch up to the last checkpoint, summed over its steps."""
    history: list[dict[str, Any]] = field(default_factory=list)
    """One entry per epoch, as in log.jsonl."""
    best: float | None = None
    broken: list[str] = field(default_factory=list)
    """Images that could not be read, up to the end of the last epoch."""


def read_state(data: Any, epoch_steps: int) -> State:
    """Return the state that a checkpoint holds.

    Raises:
        ValueError: If it is not the state of a run with this many steps in an epoch.
    """
    state = read_dataclass(State, data, "state")
    if min(state.step, state.epoch, state.batch) < 0 or state.batch > epoch_steps:
        raise ValueError(f"state.step={state.step}, epoch={state.epoch}, batch={state.batch} is no place in this run.")
    for line in state.history:
        for name in ("epoch", "step", "broken"):
            checked_value(line.get(name), int, f"state.history.{name}")
    return state


@dataclass(frozen=True)
class Outcome:
    """The result of a run."""

    directory: Path
    finished: bool
    """False if the run was stopped early; ``resume`` continues it."""
    history: list[dict[str, Any]]
    """One entry per epoch, as in log.jsonl."""
    best: float | None
    """The best value of the monitored metric over all evaluations."""
    products: dict[str, Any]
    """What the objective wrote in addition to the model."""


class Diverged(RuntimeError):
    """Loss or weights became NaN or infinite."""

    users_error = True  # the command line reports it in one line
