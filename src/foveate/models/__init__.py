"""Backbones of our own, registered with timm when foveate is imported."""

from foveate.models.hvt import block_compression
from foveate.models.hvt_weights import convert_weights

__all__ = ["block_compression", "convert_weights"]
