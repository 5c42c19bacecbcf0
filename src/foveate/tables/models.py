"""The models of tables on the meta device: costs need only shapes, not memory or weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from foveate.adapters import reducer_of
from foveate.costs import step_shape
from foveate.methods.base import StepShape
from foveate.models.by_name import load_model
from foveate.tables.figures import MEGA, Figure

FILLS = frozenset({"uniform_", "normal_", "zero_", "fill_", "erfinv_", "mul_", "add_", "clamp_"})


class _SkipInitialization(TorchFunctionMode):
    """Skip weight initialization, which has no effect on the meta device but takes most of the build time."""

    def __torch_function__(
        self, func: Callable, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if getattr(func, "__name__", "") in FILLS and args and args[0].is_meta:
            return args[0]
        return func(*args, **(kwargs or {}))


def build_shapes(name: str, **options: Any) -> nn.Module:
    """Build the model ``name`` on the meta device.

    Args:
        name: Any name that ``load_model`` takes.
        **options: Passed to the model's library, e.g. ``num_classes``.

    Raises:
        ValueError: If there is no such model, or it does not take the options.
    """
    with torch.device("meta"), _SkipInitialization():
        return load_model(name, options=options)


def steps_of(model: nn.Module) -> list[StepShape]:
    """Return the shape of each block's step in a reduced model, including those that keep all tokens."""
    reducer = reducer_of(model)
    if reducer is None:
        return []
    return [step_shape(reducer.shape, reducer.plan, block) for block in range(reducer.shape.depth)]


@dataclass(frozen=True)
class PrintedModel:
    """A printed row with the cost of one model, and how to build that model."""

    place: str
    """Where the row is printed: "1" is table 1."""
    label: str
    flops: str | None  # as printed, in billions
    params: str | None  # as printed, in millions
    architecture: str
    options: dict[str, Any] = field(default_factory=dict)
    judged: bool = True

    def build(self) -> Any:
        """Build the model on the meta device."""
        return build_shapes(self.architecture, **self.options)

    def figures(self, flops: int | None, params: int) -> tuple[Figure, Figure]:
        """Pair the printed FLOPs and parameters with our counts."""
        return Figure(self.flops, flops, judged=self.judged), Figure(self.params, params, MEGA, judged=self.judged)
