"""The settings of a comparison, checked before any work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from foveate.deploy.runtimes import Runtime
from foveate.evaluation.timing import check_positive, check_seconds
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
    seed: int
    checkpoints: tuple[str, ...]
    runtimes: tuple[Runtime, ...] = ()
    calibration: Any = None
    """Images that int8 is calibrated on: a source, or a tensor."""
    until_broken: bool = False
    """Whether to go on to smaller budgets until decisions break."""

    def __post_init__(self) -> None:
        check_positive(batch_size=self.batch_size, limit=self.limit)
        check_seconds(self.seconds)
        if isinstance(self.seed, bool) or not isinstance(self.seed, int):
            raise TypeError(f"seed must be an integer, got {shown(self.seed)}.")

    def as_dict(self) -> dict[str, Any]:
        """Return plain data, for the report and to check whether a run can be resumed."""
        options: dict[str, Any] = {
            "budgets": list(self.budgets),
            "methods": [method_text(method) for method in self.methods],
            "batch_size": self.batch_size,
            "device": str(self.device),
            "limit": self.limit,
            "seconds": self.seconds,
            "seed": self.seed,
        }
        options |= {"smaller_budgets": "until decisions break"} if self.until_broken else {}
        options |= {"checkpoints": list(self.checkpoints)} if self.checkpoints else {}
        options |= {"runtimes": [runtime.title for runtime in self.runtimes]} if self.runtimes else {}
        calibration = self.calibration if isinstance(self.calibration, str | None) else "tensor"
        return options | ({} if calibration is None else {"calibration": calibration})


def read_checkpoints(given: str | Path | Sequence[str | Path]) -> tuple[str, ...]:
    """Return the folders of reduced models; a single one may be given by itself.

    Raises:
        TypeError: If one is not a path.
    """
    folders = [given] if isinstance(given, str | Path) else given
    if not isinstance(folders, Sequence) or not all(isinstance(folder, str | Path) for folder in folders):
        raise TypeError(f"checkpoints must be directories of fv.save, got {shown(given)}.")
    return tuple(map(str, folders))
