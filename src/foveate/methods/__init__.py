"""One paper, one file. A method is a frozen dataclass; registering it puts it under the contract tests.

Every file of this folder is imported here, so a new method needs no other line than its own.
"""

from foveate.methods.atc import ATC
from foveate.methods.ats import ATS
from foveate.methods.base import BlockView, Kind, Method, Need, Site, StepShape
from foveate.methods.cluster_attention import ClusterAttention
from foveate.methods.dct import DCT
from foveate.methods.diffrate import DiffRate
from foveate.methods.dpc_knn import DPCKNN
from foveate.methods.dtem import DTEM
from foveate.methods.dynamic_vit import DynamicViT
from foveate.methods.evit import EViT
from foveate.methods.fpet import FPET
from foveate.methods.free_slice import FreeSlice
from foveate.methods.hvt_pool import HVTPool
from foveate.methods.importance_select import ImportanceSelect
from foveate.methods.learned import LearnedMethod, MaskTrainedMethod
from foveate.methods.mctf import MCTF
from foveate.methods.mixture import Mixture
from foveate.methods.patch_merger import PatchMerger
from foveate.methods.pitome import PiToMe
from foveate.methods.power import PoWER, PoWERSearch
from foveate.methods.radial_select import RadialSelect
from foveate.methods.random_select import RandomSelect
from foveate.methods.registry import all_methods, list_methods, register
from foveate.methods.representation_shift import RepresentationShift
from foveate.methods.sinkhorn import Sinkhorn
from foveate.methods.sit import SiT
from foveate.methods.soft_slots import SoftSlots
from foveate.methods.strided_conv import StridedConv
from foveate.methods.tofu import ToFu
from foveate.methods.token_pooling import TokenPooling
from foveate.methods.tome import ToMe
from foveate.methods.topk import TopK
from foveate.methods.tps import TPS
from foveate.methods.ward import Ward
from foveate.registries import import_modules

import_modules(__name__)

__all__ = [
    "ATC",
    "ATS",
    "DCT",
    "DPCKNN",
    "DTEM",
    "FPET",
    "MCTF",
    "TPS",
    "BlockView",
    "ClusterAttention",
    "DiffRate",
    "DynamicViT",
    "EViT",
    "FreeSlice",
    "HVTPool",
    "ImportanceSelect",
    "Kind",
    "LearnedMethod",
    "MaskTrainedMethod",
    "Method",
    "Mixture",
    "Need",
    "PatchMerger",
    "PiToMe",
    "PoWER",
    "PoWERSearch",
    "RadialSelect",
    "RandomSelect",
    "RepresentationShift",
    "SiT",
    "Sinkhorn",
    "Site",
    "SoftSlots",
    "StepShape",
    "StridedConv",
    "ToFu",
    "ToMe",
    "TokenPooling",
    "TopK",
    "Ward",
    "all_methods",
    "list_methods",
    "register",
]
