"""The result of a search: the reduction, what was measured of it, and why it was chosen."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar

from torch import nn

from foveate.files import FORMAT, write_text
from foveate.reductions import Reduction
from foveate.tuning.constraints import Constraints
from foveate.tuning.judging import Judged

Model = TypeVar("Model", bound=nn.Module)


@dataclass(frozen=True)
class Finalist:
    """A setting that was judged by images that chose nothing."""

    reduction: Reduction
    macs: float
    """Share of the unreduced model's MACs; of a dense model, of its encoder's."""
    calibrated: Judged
    """On the images that chose it."""
    judged: Judged
    """On the others."""
    predicted_speedup: float | None = None
    speedup: float | None = None
    """Measured on this machine: of the best, and of all finalists if time is what counts."""
    memory_mib: float | None = None
    """Peak of a pass beyond weights and images, if memory is what counts."""

    def as_dict(self) -> dict[str, Any]:
        return {
            "reduction": self.reduction.to_dict(),
            "macs": round(self.macs, 4),
            "quality_calibration": round(self.calibrated.quality, 4),
            "quality": round(self.judged.quality, 4),
            "standard_error": round(self.judged.standard_error, 4),
            "divergence": self.judged.divergence,
            "images": self.judged.images,
            "predicted_speedup": self.predicted_speedup,
            "speedup": self.speedup,
            "memory_mib": self.memory_mib,
        }


@dataclass(frozen=True)
class Found:
    """What ``fv.search`` found."""

    reduction: Reduction
    constraints: Constraints
    best: Finalist
    finalists: tuple[Finalist, ...]
    """Every setting that was judged, the best first."""
    met: bool
    """Whether the best meets the constraint on the images that judge."""
    complete: bool
    """Whether the search ran to its end; Ctrl-C keeps what was found."""
    details: dict[str, Any] = field(default_factory=dict)
    """Images, seed, methods, levels and the table of sensitivities of every method."""

    def apply_(self, model: Model) -> Model:
        """Reduce ``model`` in place and return it."""
        return self.reduction.apply_(model)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON: the reduction, and everything that shows why it was chosen."""
        return {
            "format": FORMAT,
            "constraints": str(self.constraints),
            "met": self.met,
            "complete": self.complete,
            "reduction": self.reduction.to_dict(),
            "finalists": [one.as_dict() for one in self.finalists],
            **self.details,
        }

    def save(self, path: str | PathLike[str]) -> Path:
        """Write ``to_dict`` to a JSON file and return its path."""
        file = Path(path)
        file.parent.mkdir(parents=True, exist_ok=True)
        write_text(file, json.dumps(self.to_dict(), indent=2) + "\n")
        return file

    def __str__(self) -> str:
        judged = self.best.judged
        more = "" if self.best.speedup is None else f", {self.best.speedup:.2f}x faster"
        more += "" if self.best.memory_mib is None else f", a peak of {self.best.memory_mib:.1f} MiB"
        return (
            f"{self.reduction}: {self.best.macs:.3f} of the MACs{more}, "
            f"{100 * judged.quality:.1f} +- {100 * judged.standard_error:.1f} % {judged.what} on {judged.images} "
            "other images"
        )
