"""One paper, one file. A method is a frozen dataclass; registering it puts it under the contract tests."""

from foveate.methods.base import BlockView, Method, Need, Site, StepShape, all_methods, register
from foveate.methods.evit import EViT
from foveate.methods.free_slice import FreeSlice
from foveate.methods.random_select import RandomSelect
from foveate.methods.tome import ToMe
from foveate.methods.topk import TopK

__all__ = [
    "BlockView",
    "EViT",
    "FreeSlice",
    "Method",
    "Need",
    "RandomSelect",
    "Site",
    "StepShape",
    "ToMe",
    "TopK",
    "all_methods",
    "register",
]
