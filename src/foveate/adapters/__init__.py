"""Model families. Only this folder and ``models/`` access the internals of timm, transformers and torchvision."""

from foveate.adapters.blocks import BlockPieces, Heads, linear_macs
from foveate.adapters.engine import encode
from foveate.adapters.family import Family, UnsupportedModel
from foveate.adapters.libraries import Built, ImageSize, Library, library_for
from foveate.adapters.reduced import CHILD, Reduced, Reducer, detach_
from foveate.adapters.registry import (
    all_families,
    attach_,
    copy_reducible,
    copy_unreduced,
    inspect,
    rebuild,
    reduced_part,
    reducer_of,
    register_family,
)
from foveate.adapters.stream import Encoded, Step, spread, spread_to_patches
from foveate.adapters.systems import System
from foveate.adapters.traces import Trace

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
    "System",
    "Trace",
    "UnsupportedModel",
    "all_families",
    "attach_",
    "copy_reducible",
    "copy_unreduced",
    "detach_",
    "encode",
    "inspect",
    "library_for",
    "linear_macs",
    "rebuild",
    "reduced_part",
    "reducer_of",
    "register_family",
    "spread",
    "spread_to_patches",
]
