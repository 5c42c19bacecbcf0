"""foveate: vision transformers that keep fewer tokens, by any published way of choosing them."""

import importlib
from typing import TYPE_CHECKING, Any

from foveate import models
from foveate.adapters import Trace, UnsupportedModel, inspect
from foveate.adapters.adaptive import fit_adaptive_, predict_grouped
from foveate.api import cost, features, is_reduced, reduce_, reduced, reschedule_, restore_, trace
from foveate.checks import check_method
from foveate.core import Assignment
from foveate.costs import Cost
from foveate.methods import (
    ClusterAttention,
    DynamicViT,
    EViT,
    FreeSlice,
    HVTPool,
    ImportanceSelect,
    Method,
    Mixture,
    PoWER,
    PoWERSearch,
    RandomSelect,
    StridedConv,
    TokenPooling,
    ToMe,
    TopK,
    Ward,
    list_methods,
)
from foveate.methods import all_methods as _all_methods
from foveate.reductions import Reduction
from foveate.schedules import Adaptive, Budget, Keep, KeepRate, PlanError, RemovePerBlock, Schedule
from foveate.storage import load, load_schedule, save, save_schedule

__version__ = "0.2.0"

if TYPE_CHECKING:
    from foveate.deploy import export, load_exported, measure_runtimes
    from foveate.evaluation import measure_speed
    from foveate.report.compare import compare
    from foveate.scale import Predictor
    from foveate.training import train
    from foveate.tuning import recover, search

LAZY = {
    "Predictor": "foveate.scale",
    "compare": "foveate.report.compare",
    "export": "foveate.deploy",
    "load_exported": "foveate.deploy",
    "measure_runtimes": "foveate.deploy",
    "measure_speed": "foveate.evaluation",
    "recover": "foveate.tuning",
    "search": "foveate.tuning",
    "train": "foveate.training",
}
"""Jobs that are built on everything else here, so they are imported on first use."""


def __dir__() -> list[str]:
    """What the package offers; names of its own modules stay out of the way."""
    return sorted(__all__)


def __getattr__(name: str) -> Any:
    if name in LAZY:
        return getattr(importlib.import_module(LAZY[name]), name)
    if name in (methods := _all_methods()):  # one that is not listed above: new, or of another package
        return methods[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "Adaptive",
    "Assignment",
    "Budget",
    "ClusterAttention",
    "Cost",
    "DynamicViT",
    "EViT",
    "FreeSlice",
    "HVTPool",
    "ImportanceSelect",
    "Keep",
    "KeepRate",
    "Method",
    "Mixture",
    "PlanError",
    "PoWER",
    "PoWERSearch",
    "Predictor",
    "RandomSelect",
    "Reduction",
    "RemovePerBlock",
    "Schedule",
    "StridedConv",
    "ToMe",
    "TokenPooling",
    "TopK",
    "Trace",
    "UnsupportedModel",
    "Ward",
    "check_method",
    "compare",
    "cost",
    "export",
    "features",
    "fit_adaptive_",
    "inspect",
    "is_reduced",
    "list_methods",
    "load",
    "load_exported",
    "load_schedule",
    "measure_runtimes",
    "measure_speed",
    "models",
    "predict_grouped",
    "recover",
    "reduce_",
    "reduced",
    "reschedule_",
    "restore_",
    "save",
    "save_schedule",
    "search",
    "trace",
    "train",
]
