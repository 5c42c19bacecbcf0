"""Check that a checkpoint belongs to the run that resumes from it."""

from __future__ import annotations

from typing import Any

from foveate.training.config import TrainConfig

MISSING = object()
FREE_TO_CHANGE = {
    *("run.checkpoint_minutes", "run.checkpoint_steps", "run.steps", "run.shard"),
    *("data.workers", "data.max_broken", "data.source"),
}
"""Values that may differ between a run and its resumption: they do not change the result."""


def check_same_run(saved: Any, config: TrainConfig) -> None:
    """Raise a ValueError if a value that changes the result differs from the saved run."""
    now = config.as_dict()
    differing = []
    for section, values in now.items():
        if not isinstance(values, dict):
            continue
        old = _table(_table(saved).get(section))
        differing += [f"{section}.{name}" for name, value in values.items() if old.get(name, MISSING) != value]
    differing = [path for path in differing if path not in FREE_TO_CHANGE]
    if differing:
        raise ValueError(
            f"The checkpoint belongs to a run with different values of {', '.join(differing[:5])}. "
            "Resume it with its original values, or start a new run in another directory."
        )


def _table(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def check_same_things(saved: Any, now: dict[str, Any]) -> None:
    """Raise a ValueError if the data or the schedule changed behind the same configuration."""
    saved = _table(saved)
    differing = [name for name in now if saved.get(name) != now[name]]
    if differing:
        changes = "; ".join(f"{name} {saved.get(name)} before, {now[name]} now" for name in differing)
        raise ValueError(f"The checkpoint belongs to other data or another schedule: {changes}. Use another directory.")
