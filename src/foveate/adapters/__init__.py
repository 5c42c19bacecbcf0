"""Model families. Only this folder and ``models/`` access the internals of timm, transformers and torchvision."""

from foveate.adapters.blocks import BlockPieces, Heads, linear_macs
from foveate.adapters.engine import Encoded, Step, encode
from foveate.adapters.family import Family, UnsupportedModel
from foveate.adapters.libraries import Built, ImageSize, Library, library_for
from foveate.adapters.reduced import CHILD, Reduced, Reducer, copy_root, copy_unreduced, detach_, reducer_of
from foveate.adapters.registry import all_families, attach_, inspect, rebuild, register_family
from foveate.adapters.traces import Trace, spread, spread_to_patches

__all__ = [
    "CHILD",
    "BlockPieces",
    "Built",
    "Encoded",
    "Family",
    "Heads",
    "ImageSize",
    "Library",
    "Reduced",
    "Reducer",
    "Step",
    "Trace",
    "UnsupportedModel",
    "all_families",
    "attach_",
    "copy_root",
    "copy_unreduced",
    "detach_",
    "encode",
    "inspect",
    "library_for",
    "linear_macs",
    "rebuild",
    "reducer_of",
    "register_family",
    "spread",
    "spread_to_patches",
]
