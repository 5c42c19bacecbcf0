"""Multiply-accumulates of the parts of timm's VisionTransformer."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import torch
from timm.layers import HybridEmbed, PatchEmbed
from torch import nn
from torch.func import functional_call
from torch.utils.flop_counter import FlopCounterMode

from foveate.adapters.blocks import linear_macs

_COUNTED: WeakKeyDictionary[nn.Module, tuple[Any, int]] = WeakKeyDictionary()
"""MACs per patch of convolutional networks in front of the patches, with the sizes they were counted for."""


def stem_macs(embed: PatchEmbed | HybridEmbed) -> int:
    """Multiply-accumulates per patch of a stem with one or several convolutions, or with a network of them."""
    if isinstance(embed, HybridEmbed):
        return _counted(embed)
    if isinstance(embed.proj, nn.Linear):
        return linear_macs(embed.proj)
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
    pool = getattr(model, "attn_pool", None)
    if pool is not None:
        per_image, per_token = _attention_pool_macs(pool)
        return per_image + classifier, per_token
    return (0, classifier) if model.global_pool == "" else (classifier, 0)


def _attention_pool_macs(pool: Any) -> tuple[int, int]:
    """MACs of timm's latent attention pooling: (per image, per token that it reads)."""
    width = pool.kv.out_features // 2
    per_token = pool.kv.weight.numel() + 2 * pool.latent_len * width
    return pool.latent_len * linear_macs(pool.q, pool.proj, pool.mlp), per_token


def _counted(embed: Any) -> int:
    """MACs per patch of a network in front of the patches, counted by torch without computing any value."""
    sizes = (embed.in_chans, *embed.img_size, *embed.patch_size)
    known, macs = _COUNTED.get(embed, (None, 0))
    if known == sizes:
        return macs
    named = [*embed.named_parameters(), *embed.named_buffers()]
    empty = {name: torch.empty_like(tensor, device="meta") for name, tensor in named}
    images = torch.empty(1, *sizes[:3], device="meta", dtype=next(embed.parameters()).dtype)
    counter = FlopCounterMode(display=False)
    with torch.no_grad(), counter:
        functional_call(embed, empty, images)
    macs = counter.get_total_flops() // 2 // int(embed.num_patches)
    _COUNTED[embed] = (sizes, macs)
    return macs
