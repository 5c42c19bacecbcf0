"""The encoders of transformers' vision models: how each embeds images, what its blocks read and how it pools."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from foveate.adapters.hf_blocks import (
    BeitBlock,
    ClipBlock,
    Data2VecBlock,
    Dinov2Block,
    Dinov3Block,
    DptBlock,
    HfBlock,
    InternVLBlock,
    VitBlock,
    VitPoseBlock,
)
from foveate.adapters.pair_bias import PairBias
from foveate.adapters.pooling import mean_of_patches
from foveate.adapters.positions import PositionSource
from foveate.adapters.rotary import RotaryTable

Grid = tuple[int, int]
Embed = Callable[[Any, Tensor, bool], Tensor]
Pool = Callable[[Any, Tensor, Tensor | None], Tensor | None]


# -- how images become tokens


def embed_one_size(backbone: Any, images: Tensor, interpolate: bool) -> Tensor:
    """Positions are for one size, unless they are to be interpolated."""
    return backbone.embeddings(images, interpolate_pos_encoding=interpolate)


def embed_any_size(backbone: Any, images: Tensor, interpolate: bool) -> Tensor:
    return backbone.embeddings(images)


def embed_normed(backbone: Any, images: Tensor, interpolate: bool) -> Tensor:
    return backbone.pre_layrnorm(embed_one_size(backbone, images, interpolate))  # transformers spells it so


def embed_first(backbone: Any, images: Tensor, interpolate: bool) -> Tensor:
    """Data2Vec's embedding returns the grid, too."""
    return backbone.embeddings(images)[0]


def embed_dpt(backbone: Any, images: Tensor, interpolate: bool) -> Tensor:
    return backbone.embeddings(images).last_hidden_states


def embed_unmasked(backbone: Any, images: Tensor, interpolate: bool) -> Tensor:
    """ViT-MAE shuffles its patches by noise; rising noise leaves them in order."""
    patch = backbone.embeddings.patch_embeddings.projection.kernel_size
    count = (images.shape[-2] // patch[0]) * (images.shape[-1] // patch[1])
    noise = torch.arange(count, device=images.device).expand(images.shape[0], -1)
    return backbone.embeddings(images, noise=noise, interpolate_pos_encoding=interpolate)[0]


# -- what blocks read for positions


def rotary(backbone: Any, images: Tensor, grid: Grid) -> PositionSource:
    cosine, sine = backbone.rope_embeddings(images)
    return RotaryTable(grid, torch.cat([sine, cosine], dim=-1))


def relative_beit(backbone: Any, images: Tensor, grid: Grid) -> PositionSource | None:
    own = [layer.relative_position_bias for layer in backbone.layers]
    return _relative(grid, backbone.shared_position_bias, own)


def relative_data2vec(backbone: Any, images: Tensor, grid: Grid) -> PositionSource | None:
    own = [getattr(layer.attention.attention, "relative_position_bias", None) for layer in backbone.encoder.layer]
    return _relative(grid, getattr(backbone.encoder, "relative_position_bias", None), own)


def _relative(grid: Grid, shared: Any, own: list[Any]) -> PositionSource | None:
    if shared is None and not any(own):
        return None
    return PairBias(grid, None if shared is None else shared(grid), lambda block: own[block] and own[block](grid))


# -- the pooled vector


def pool_class_token(backbone: Any, tokens: Tensor, size: Tensor | None) -> Tensor:
    return tokens[:, 0]


def pool_dense(backbone: Any, tokens: Tensor, size: Tensor | None) -> Tensor | None:
    """A layer on the class token, which the model may leave out."""
    return None if backbone.pooler is None else backbone.pooler(tokens)


def pool_clip(backbone: Any, tokens: Tensor, size: Tensor | None) -> Tensor:
    return backbone.post_layernorm(tokens[:, 0])


def pool_beit(backbone: Any, tokens: Tensor, size: Tensor | None) -> Tensor | None:
    """The mean over patches or the class token, which the model may leave out."""
    if backbone.pooler is None:
        return None
    norm = backbone.pooler.layernorm
    return tokens[:, 0] if norm is None else norm(mean_of_patches(tokens[:, 1:], size))


def pool_siglip(backbone: Any, tokens: Tensor, size: Tensor | None) -> Tensor | None:
    """SigLIP's attention pooling with a log-size bias, for which its own forward has no argument."""
    if not backbone.use_head:
        return None
    head = backbone.head
    if size is None:
        return head(tokens)
    probe = head.probe.repeat(tokens.shape[0], 1, 1)
    bias = size.log().to(tokens.dtype)
    x = head.attention(probe, tokens, tokens, key_padding_mask=bias, need_weights=False)[0]
    return (x + head.mlp(head.layernorm(x)))[:, 0]


def pool_nothing(backbone: Any, tokens: Tensor, size: Tensor | None) -> None:
    return None


@dataclass(frozen=True)
class Backbone:
    """The names of the parts of one encoder class."""

    pieces: type[HfBlock]
    layer: str  # class name of its blocks
    layers: str  # path to them
    final_norm: str | None  # applied to all tokens after the last block
    prefix: int  # number of prefix tokens without registers
    pool: Pool
    embed: Embed = embed_any_size
    positions: Callable[[Any, Tensor, Grid], PositionSource | None] | None = None
    refuses: Callable[[Any], str | None] = lambda backbone: None
    """Why an encoder of this class, with its own settings, cannot be reduced."""

    @property
    def rotary(self) -> bool:
        """Whether blocks rotate, so that a position may be between patches."""
        return self.positions is rotary

    @property
    def one_size(self) -> bool:
        """Whether other sizes than the model's need interpolated positions."""
        return self.embed in (embed_one_size, embed_normed, embed_unmasked)


def _masks(backbone: Any) -> str | None:
    ratio = backbone.config.mask_ratio
    if not ratio:
        return None
    return f"ViTMAEModel hides {ratio:.0%} of the patches at random. Set model.config.mask_ratio = 0 to encode images."


def _pools_a_patch(backbone: Any) -> str | None:
    if backbone.pooler is None:
        return None
    return f"{type(backbone).__name__} has no class token, and its pooler reads the first patch. Build it without."


def _convolutions(backbone: Any) -> str | None:
    if not backbone.config.is_hybrid:
        return None
    return f"{type(backbone).__name__} has convolutions in front, whose maps its neck reads too. Use one without."


def _experts(backbone: Any) -> str | None:
    experts = backbone.config.num_experts
    if experts == 1:
        return None
    return f"{type(backbone).__name__} has {experts} experts, which choose by dataset_index; only one is supported."


def patch_layer(backbone: Any) -> nn.Module:
    """The convolution or linear layer that embeds patches."""
    own = getattr(backbone, "patch_conv", None) or getattr(getattr(backbone, "patch_embed", None), "proj", None)
    if own is not None:  # Pixtral and Qwen
        return own
    embeddings = backbone.embeddings
    if hasattr(embeddings, "patch_embedding"):  # CLIP and SigLIP
        return embeddings.patch_embedding
    return getattr(embeddings.patch_embeddings, "projection", embeddings.patch_embeddings)


_DENSE: dict[str, Any] = {"pool": pool_dense, "embed": embed_one_size}
_CLIP: dict[str, Any] = {"pool": pool_clip, "embed": embed_normed}
_FIRST: dict[str, Any] = {"pool": pool_class_token}

BACKBONES = {
    "ViTModel": Backbone(VitBlock, "ViTLayer", "layers", "layernorm", 1, **_DENSE),
    "DeiTModel": Backbone(VitBlock, "DeiTLayer", "layers", "layernorm", 2, **_DENSE),
    "IJepaModel": Backbone(VitBlock, "IJepaLayer", "layers", "layernorm", 0, **_DENSE, refuses=_pools_a_patch),
    "ViTMSNModel": Backbone(VitBlock, "ViTMSNLayer", "layers", "layernorm", 1, pool_nothing, embed_one_size),
    "ViTMAEModel": Backbone(
        VitBlock, "ViTMAELayer", "layers", "layernorm", 1, pool_nothing, embed_unmasked, refuses=_masks
    ),
    "Dinov2Model": Backbone(Dinov2Block, "Dinov2Layer", "encoder.layer", "layernorm", 1, **_FIRST),
    "Dinov2WithRegistersModel": Backbone(
        Dinov2Block, "Dinov2WithRegistersLayer", "encoder.layer", "layernorm", 1, **_FIRST
    ),
    "DINOv3ViTModel": Backbone(Dinov3Block, "DINOv3ViTLayer", "model.layer", "norm", 1, **_FIRST, positions=rotary),
    "CLIPVisionModel": Backbone(ClipBlock, "CLIPEncoderLayer", "encoder.layers", None, 1, **_CLIP),
    "MetaClip2VisionModel": Backbone(ClipBlock, "MetaClip2EncoderLayer", "encoder.layers", None, 1, **_CLIP),
    "SiglipVisionModel": Backbone(
        ClipBlock, "SiglipEncoderLayer", "encoder.layers", "post_layernorm", 0, pool_siglip, embed_one_size
    ),
    "BeitModel": Backbone(BeitBlock, "BeitLayer", "layers", "layernorm", 1, pool_beit, positions=relative_beit),
    "Data2VecVisionModel": Backbone(
        Data2VecBlock,
        "Data2VecVisionLayer",
        "encoder.layer",
        "layernorm",
        1,
        pool_beit,
        embed_first,
        relative_data2vec,
    ),
    "InternVLVisionModel": Backbone(
        InternVLBlock, "InternVLVisionLayer", "encoder.layer", "layernorm", 1, pool_nothing
    ),
    "DPTModel": Backbone(
        DptBlock, "DPTViTLayer", "encoder.layer", "layernorm", 1, pool_dense, embed_dpt, refuses=_convolutions
    ),
    "VitPoseBackbone": Backbone(
        VitPoseBlock, "VitPoseBackboneLayer", "encoder.layer", "layernorm", 0, pool_nothing, refuses=_experts
    ),
}
BACKBONES |= {
    "Dinov2Backbone": BACKBONES["Dinov2Model"],
    "Dinov2WithRegistersBackbone": BACKBONES["Dinov2WithRegistersModel"],
    "DINOv3ViTBackbone": BACKBONES["DINOv3ViTModel"],
}
