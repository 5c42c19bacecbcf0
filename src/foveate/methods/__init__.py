"""One paper, one file. A method is a frozen dataclass; registering it puts it under the contract tests.

Every file of this folder is imported here, so a new method needs no other line than its own.
"""

from foveate.methods.base import BlockView, Kind, Method, Need, Site, StepShape
from foveate.methods.cluster_attention import ClusterAttention
from foveate.methods.dynamic_vit import DynamicViT
from foveate.methods.evit import EViT
from foveate.methods.free_slice import FreeSlice
from foveate.methods.hvt_pool import HVTPool
from foveate.methods.importance_select import ImportanceSelect
from foveate.methods.learned import LearnedMethod, MaskTrainedMethod
from foveate.methods.power import PoWER, PoWERSearch
from foveate.methods.random_select import RandomSelect
from foveate.methods.registry import all_methods, list_methods, register
from foveate.methods.strided_conv import StridedConv
from foveate.methods.token_pooling import TokenPooling
from foveate.methods.tome import ToMe
from foveate.methods.topk import TopK
from foveate.methods.ward import Ward
from foveate.registries import import_modules

import_modules(__name__)

__all__ = [
    "BlockView",
    "ClusterAttention",
    "DynamicViT",
    "EViT",
    "FreeSlice",
    "HVTPool",
    "ImportanceSelect",
    "Kind",
    "LearnedMethod",
    "MaskTrainedMethod",
    "Method",
    "Need",
    "PoWER",
    "PoWERSearch",
    "RandomSelect",
    "Site",
    "StepShape",
    "StridedConv",
    "ToMe",
    "TokenPooling",
    "TopK",
    "Ward",
    "all_methods",
    "list_methods",
    "register",
]
