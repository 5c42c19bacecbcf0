"""Multiply-accumulates of the parts of timm's VisionTransformer."""

from __future__ import annotations

from typing import Any

from timm.layers import PatchEmbed
from torch import nn

from foveate.adapters.blocks import linear_macs


def stem_macs(embed: PatchEmbed) -> int:
    """Multiply-accumulates per patch of a stem with one or several convolutions."""
    total, stride = 0, 1
    for layer in embed.proj.modules():
        if isinstance(layer, nn.Conv2d):
            stride *= layer.stride[0]
            total += layer.weight.numel() * (embed.patch_size[0] // stride) * (embed.patch_size[1] // stride)
    return total


def stem_macs_of_patches(model: Any, height: int, width: int) -> int:
    """``stem_macs`` for patches of another size."""
    convolution = model.patch_embed.proj
    if not isinstance(convolution, nn.Conv2d):
        raise ValueError(
            f"The stem of this {type(model).__name__} cannot change its patch size, got {height} x {width}. "
            "Build the model with that patch_size."
        )
    return convolution.weight[:, :, 0, 0].numel() * height * width


def head_macs(model: Any) -> tuple[int, int]:
    """MACs of pooling and classifier: (per image, per token that the head reads)."""
    classifier = linear_macs(model.head, getattr(model, "head_dist", None))
    if model.attn_pool is not None:
        per_image, per_token = _attention_pool_macs(model.attn_pool)
        return per_image + classifier, per_token
    return (0, classifier) if model.global_pool == "" else (classifier, 0)


def _attention_pool_macs(pool: Any) -> tuple[int, int]:
    """MACs of timm's latent attention pooling: (per image, per token that it reads)."""
    width = pool.kv.out_features // 2
    per_token = pool.kv.weight.numel() + 2 * pool.latent_len * width
    return pool.latent_len * linear_macs(pool.q, pool.proj, pool.mlp), per_token
