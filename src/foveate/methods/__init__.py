"""One paper, one file. A method is a frozen dataclass; registering it puts it under the contract tests."""

from foveate.methods.base import BlockView, Method, Need, Site, StepShape, all_methods, register
from foveate.methods.cluster_attention import ClusterAttention
from foveate.methods.dynamic_vit import DynamicViT
from foveate.methods.evit import EViT
from foveate.methods.free_slice import FreeSlice
from foveate.methods.hvt_pool import HVTPool
from foveate.methods.importance_select import ImportanceSelect
from foveate.methods.power import PoWER, PoWERSearch
from foveate.methods.random_select import RandomSelect
from foveate.methods.strided_conv import StridedConv
from foveate.methods.token_pooling import TokenPooling
from foveate.methods.tome import ToMe
from foveate.methods.topk import TopK
from foveate.methods.ward import Ward

__all__ = [
    "BlockView",
    "ClusterAttention",
    "DynamicViT",
    "EViT",
    "FreeSlice",
    "HVTPool",
    "ImportanceSelect",
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
    "register",
]
