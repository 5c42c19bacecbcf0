"""foveate: vision transformers that keep fewer tokens, by any published way of choosing them."""

from foveate.adapters import Trace, UnsupportedModel
from foveate.api import cost, features, reduce_, restore_, trace
from foveate.core import Assignment
from foveate.cost import Cost
from foveate.methods import EViT, FreeSlice, Method, RandomSelect, ToMe, TopK
from foveate.schedule import Budget, Keep, KeepRate, PlanError, RemovePerBlock, Schedule
from foveate.storage import load, save

__version__ = "0.1.0"

__all__ = [
    "Assignment",
    "Budget",
    "Cost",
    "EViT",
    "FreeSlice",
    "Keep",
    "KeepRate",
    "Method",
    "PlanError",
    "RandomSelect",
    "RemovePerBlock",
    "Schedule",
    "ToMe",
    "TopK",
    "Trace",
    "UnsupportedModel",
    "cost",
    "features",
    "load",
    "reduce_",
    "restore_",
    "save",
    "trace",
]
