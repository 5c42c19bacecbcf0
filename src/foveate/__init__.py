"""foveate: vision transformers that keep fewer tokens, by any published way of choosing them."""

import importlib
from typing import TYPE_CHECKING, Any

from foveate import models
from foveate.adapters import Trace, UnsupportedModel
from foveate.api import cost, drop_class_token_, features, fit_cluster_counts_, reduce_, reschedule_, restore_, trace
from foveate.core import Assignment
from foveate.cost import Cost
from foveate.methods import (
    ClusterAttention,
    DynamicViT,
    EViT,
    FreeSlice,
    HVTPool,
    ImportanceSelect,
    Method,
    PoWER,
    PoWERSearch,
    RandomSelect,
    StridedConv,
    TokenPooling,
    ToMe,
    TopK,
    Ward,
)
from foveate.schedule import Budget, Keep, KeepRate, PlanError, RemovePerBlock, Schedule
from foveate.storage import load, load_schedule, save, save_schedule

__version__ = "0.1.0"

if TYPE_CHECKING:
    from foveate.report.compare import compare


def __getattr__(name: str) -> Any:
    """``fv.compare`` stands on everything else here, so it is imported when it is asked for."""
    if name == "compare":
        return importlib.import_module("foveate.report.compare").compare
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
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
    "PlanError",
    "PoWER",
    "PoWERSearch",
    "RandomSelect",
    "RemovePerBlock",
    "Schedule",
    "StridedConv",
    "ToMe",
    "TokenPooling",
    "TopK",
    "Trace",
    "UnsupportedModel",
    "Ward",
    "compare",
    "cost",
    "drop_class_token_",
    "features",
    "fit_cluster_counts_",
    "load",
    "load_schedule",
    "models",
    "reduce_",
    "reschedule_",
    "restore_",
    "save",
    "save_schedule",
    "trace",
]
