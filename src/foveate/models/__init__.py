"""Backbones defined in foveate, registered with timm when foveate is imported."""

from foveate.adapters.timm_weights import convert_weights
from foveate.methods.cluster_attention import fit_cluster_counts_
from foveate.models import demo
from foveate.models.by_name import load_model
from foveate.models.class_token import drop_class_token_
from foveate.models.clustr import ClusTR
from foveate.models.clustr_attention import Clustering, MultiScaleClusterAttention
from foveate.models.dense import DenseModel, dense_model, head_names
from foveate.models.hvt import block_compression
from foveate.models.lvvit import LVViT

__all__ = [
    "ClusTR",
    "Clustering",
    "DenseModel",
    "LVViT",
    "MultiScaleClusterAttention",
    "block_compression",
    "convert_weights",
    "demo",
    "dense_model",
    "drop_class_token_",
    "fit_cluster_counts_",
    "head_names",
    "load_model",
]
