"""Measurements of candidates in other runtimes as values: the fastest for each fidelity, in a sentence and in code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from foveate.deploy.runtimes import PRECISIONS, Runtime
from foveate.evaluation import numbers
from foveate.evaluation.plain_data import read_dataclass

TIERS = (99.0, 98.0, 95.0)
"""Shares of unchanged decisions, in percent, for each of which the fastest is named."""
INT8_IN_PYTORCH = [
    "from torchao.quantization import Int8DynamicActivationInt8WeightConfig, quantize_",
    "quantize_(model, Int8DynamicActivationInt8WeightConfig())",
]


@dataclass(frozen=True)
class InRuntime:
    """One candidate in one runtime at one batch size."""

    entry: int
    """Index of the candidate among the entries."""
    runtime: str
    precision: str
    batch_size: int
    milliseconds: float
    """Time of one batch."""
    images_per_second: float
    speed_up: float
    """Over the unreduced model in eager PyTorch."""
    speed_up_quartiles: tuple[float, float]
    speed_up_within: float
    """Over the unreduced model in the same runtime."""
    efficiency: float | None
    """Speed relative to the free slice in the same runtime; None if no tokens are chosen."""
    agreement: float
    """Percent of decisions equal to those of the unreduced model in eager PyTorch."""
    export_seconds: float
    load_seconds: float
    """Time to load and compile, up to the first output."""

    @property
    def title(self) -> str:
        """The runtime as reports show it."""
        return Runtime(self.runtime, self.precision).title


def read_stored(stored: Any, entries: int) -> list[InRuntime]:
    """What ``dataclasses.asdict`` wrote.

    Raises:
        ValueError: if it is anything else, or names another entry than the first ``entries``.
    """
    found = [read_dataclass(InRuntime, one, "a runtime") for one in stored]
    for one in found:
        if not 0 <= one.entry < entries:
            raise ValueError(f"a runtime names entry {one.entry}, but there are {entries}")
        if one.precision not in PRECISIONS.get(one.runtime, ()):
            raise ValueError(f"{one.runtime} {one.precision} is not a runtime")
    return found


def fastest_by_tier(
    found: Sequence[InRuntime], batch_size: int, baselines: Sequence[int] = ()
) -> list[tuple[float, InRuntime]]:
    """For each share of unchanged decisions the fastest, if it differs from the one of the share above.

    Args:
        found: all measurements.
        batch_size: the batch size that counts.
        baselines: entries that are never recommended.
    """
    chosen: list[tuple[float, InRuntime]] = []
    allowed = [one for one in found if one.batch_size == batch_size and one.entry not in baselines]
    for tier in TIERS:
        fitting = [one for one in allowed if one.agreement >= tier]
        fastest = max(fitting, key=lambda one: one.speed_up, default=None)
        if fastest is not None and fastest.speed_up > 1 and all(fastest != other for _, other in chosen):
            chosen.append((tier, fastest))
    return chosen


def sentence(one: InRuntime, title: str) -> str:
    """``4.10x as fast as PyTorch eager: Ward at 0.5, OpenVINO int8, 97.9 % of decisions unchanged``."""
    kept = "100" if one.agreement == 100 else numbers.percent(one.agreement)
    return (
        f"{one.speed_up:.2f}x as fast as PyTorch eager at batch {one.batch_size}: {title}, {one.title}, {kept} % of "
        "decisions unchanged."
    )


def python(one: InRuntime, reduce: str) -> str:
    """The lines that make and load it; ``reduce`` are those of the entry."""
    lines = reduce.splitlines() or ["import foveate as fv"]
    target = Runtime(one.runtime, one.precision).export_to
    if target is None:
        kind = {"bf16": ["model = model.to(torch.bfloat16)"], "int8": INT8_IN_PYTORCH}.get(one.precision, [])
        return "\n".join(["import torch", *lines, *kind, "fast = torch.compile(model, fullgraph=True, dynamic=True)"])
    quantize = ', quantize="int8", data="CALIBRATION"' if one.precision == "int8" else ""
    precision = ', precision="bf16"' if one.precision == "bf16" else ""
    return "\n".join(
        [*lines, f'fv.export(model, "fast", to="{target}"{quantize})', f'fast = fv.load_exported("fast"{precision})']
    )
