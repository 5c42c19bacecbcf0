"""What was asked of a comparison, checked before any work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from foveate.evaluation.timing import check_positive, checked_device
from foveate.methods.base import Method
from foveate.methods.options import method_text

DEFAULT_SECONDS = 2.0
"""For each candidate. With two dozen candidates the timing takes a minute."""


@dataclass(frozen=True)
class Settings:
    """The options that decide what is measured, and how long."""

    methods: tuple[Method, ...]
    budgets: tuple[float, ...]
    batch_size: int
    device: torch.device
    limit: int | None
    seconds: float
    seed: int = 0
    checkpoints: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Plain data for the report, and to tell whether a run may go on."""
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
    """The settings, or words on the first that is wrong."""
    check_positive(batch_size=batch_size, limit=limit)
    if not seconds > 0:
        raise ValueError(f"seconds is a time to measure each candidate for, above 0; got {seconds}.")
    given = [checkpoints] if isinstance(checkpoints, str | Path) else checkpoints
    folders = tuple(str(folder) for folder in given)
    return Settings(
        tuple(methods), tuple(budgets), batch_size, checked_device(device), limit, float(seconds), seed, folders
    )
