"""The settings of a comparison, checked before any work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from foveate.evaluation.timing import check_positive, check_seconds, checked_device
from foveate.methods.base import Method
from foveate.methods.options import method_text
from foveate.methods.validation import shown

DEFAULT_SECONDS = 2.0
"""Seconds of timing per candidate: about a minute for two dozen candidates."""


@dataclass(frozen=True)
class Settings:
    """What to measure, and for how long."""

    methods: tuple[Method, ...]
    budgets: tuple[float, ...]
    batch_size: int
    device: torch.device
    limit: int | None
    seconds: float
    seed: int = 0
    checkpoints: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return plain data, for the report and to check whether a run can be resumed."""
        options = {
            "budgets": list(self.budgets),
            "methods": [method_text(method) for method in self.methods],
            "batch_size": self.batch_size,
            "device": str(self.device),
            "limit": self.limit,
            "seconds": self.seconds,
            "seed": self.seed,
        }
        return options | ({"checkpoints": list(self.checkpoints)} if self.checkpoints else {})


def checked_settings(
    methods: Sequence[Method],
    budgets: Sequence[float],
    batch_size: int,
    device: str | torch.device,
    limit: int | None,
    seconds: float,
    seed: int,
    checkpoints: str | Path | Sequence[str | Path],
) -> Settings:
    """Check the settings and return them.

    Raises:
        ValueError: For the first setting that is wrong.
    """
    check_positive(batch_size=batch_size, limit=limit)
    check_seconds(seconds)
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise TypeError(f"seed must be an integer, got {shown(seed)}.")
    several = isinstance(checkpoints, Sequence) and all(isinstance(folder, str | Path) for folder in checkpoints)
    if not several and not isinstance(checkpoints, str | Path):
        raise TypeError(f"checkpoints must be directories of fv.save, got {shown(checkpoints)}.")
    given = [checkpoints] if isinstance(checkpoints, str | Path) else checkpoints
    folders = tuple(str(folder) for folder in given)
    return Settings(
        tuple(methods), tuple(budgets), batch_size, checked_device(device), limit, float(seconds), seed, folders
    )
