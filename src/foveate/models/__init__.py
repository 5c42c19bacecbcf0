"""Backbones of our own, registered with timm when foveate is imported."""

from foveate.models import demo
from foveate.models.clustr import ClusTR
from foveate.models.clustr_attention import Clustering, MultiScaleClusterAttention
from foveate.models.hvt import block_compression
from foveate.models.hvt_weights import convert_weights
from foveate.models.lvvit import LVViT

__all__ = [
    "ClusTR",
    "Clustering",
    "LVViT",
    "MultiScaleClusterAttention",
    "block_compression",
    "convert_weights",
    "demo",
]
