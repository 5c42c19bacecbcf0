"""Small models of every supported family, and every registered method in its variants: what the contract runs over."""

from __future__ import annotations

import copy
import dataclasses
import typing
from collections.abc import Callable, Iterable
from functools import cache, partial
from typing import Any

import torch
import transformers
from timm.layers import Attention, SwiGLU
from timm.models.deit import VisionTransformerDistilled
from timm.models.vision_transformer import ResPostBlock, VisionTransformer
from torch import Tensor, nn
from torchvision.models import VisionTransformer as TorchvisionViT

import foveate as fv
from foveate.adapters import find_adapter
from foveate.methods import Site, all_methods
from foveate.models import LVViT

IMAGE, PATCH, DIM, DEPTH, HEADS, CLASSES = 24, 4, 32, 4, 2, 7
GRID = (IMAGE // PATCH, IMAGE // PATCH)
PATCHES = GRID[0] * GRID[1]
SITES = (1, 2)  # blocks that reduce in the contract's schedule


def _timm(cls: type = VisionTransformer, **options: Any) -> nn.Module:
    size = {"img_size": IMAGE, "patch_size": PATCH, "embed_dim": DIM, "depth": DEPTH, "num_heads": HEADS}
    return cls(**(size | {"num_classes": CLASSES} | options))


_HF_SIZE = {
    "hidden_size": DIM,
    "num_hidden_layers": DEPTH,
    "num_attention_heads": HEADS,
    "image_size": IMAGE,
    "patch_size": PATCH,
}


def _hf(name: str, config: str, attention: str = "sdpa", **options: Any) -> nn.Module:
    made = getattr(transformers, config)(**_HF_SIZE, num_labels=CLASSES, **options)
    return getattr(transformers, name)._from_config(made, attn_implementation=attention)


def _hf_two_towers(name: str, config: str) -> nn.Module:
    text = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    vision = _HF_SIZE | {"intermediate_size": 4 * DIM}
    special = {"vocab_size": 40, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    made = getattr(transformers, config)(vision_config=vision, text_config=text | special, num_labels=CLASSES)
    return getattr(transformers, name)._from_config(made)


def _torchvision() -> nn.Module:
    model = TorchvisionViT(IMAGE, PATCH, DEPTH, HEADS, DIM, 4 * DIM, num_classes=CLASSES)
    nn.init.normal_(model.heads.head.weight, std=0.2)  # torchvision starts it at zero, which would hide everything
    return model


_WIDE = {"intermediate_size": 4 * DIM}


class GatedAttention(Attention):
    """timm's attention with its output gate switched on; blocks of timm's own have no argument for that."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options, gated=True)


FAMILIES: dict[str, Callable[[], nn.Module]] = {
    "timm-cls": _timm,
    "timm-mean": partial(_timm, class_token=False, global_pool="avg"),
    "timm-cls-mean": partial(_timm, global_pool="avg", pool_include_prefix=True),
    "timm-map": partial(_timm, class_token=False, global_pool="map"),
    "timm-registers-map": partial(_timm, class_token=False, reg_tokens=4, global_pool="map"),
    "timm-tokens": partial(_timm, global_pool="", num_classes=0),
    "timm-distilled": partial(_timm, VisionTransformerDistilled),
    "timm-registers-layerscale": partial(_timm, reg_tokens=4, init_values=0.3, no_embed_class=True),
    "timm-qknorm": partial(_timm, qk_norm=True, scale_attn_norm=True),
    "timm-prenorm": partial(_timm, pre_norm=True, qkv_bias=False),
    "timm-postnorm": partial(_timm, block_fn=ResPostBlock, init_values=0.5),
    "timm-gated": partial(_timm, attn_layer=GatedAttention),
    "timm-swiglu": partial(_timm, mlp_layer=SwiGLU),
    "timm-dynamic": partial(_timm, dynamic_img_size=True),
    "timm-lvvit": partial(_timm, LVViT),
    "hf-vit": partial(_hf, "ViTForImageClassification", "ViTConfig", **_WIDE),
    "hf-vit-eager": partial(_hf, "ViTForImageClassification", "ViTConfig", attention="eager", **_WIDE),
    "hf-vit-model": partial(_hf, "ViTModel", "ViTConfig", **_WIDE),
    "hf-deit": partial(_hf, "DeiTForImageClassification", "DeiTConfig", **_WIDE),
    "hf-deit-teacher": partial(_hf, "DeiTForImageClassificationWithTeacher", "DeiTConfig", **_WIDE),
    "hf-dinov2": partial(_hf, "Dinov2ForImageClassification", "Dinov2Config", layerscale_value=0.4),
    "hf-dinov2-model": partial(_hf, "Dinov2Model", "Dinov2Config", layerscale_value=0.4, use_swiglu_ffn=True),
    "hf-dinov2-registers": partial(
        _hf, "Dinov2WithRegistersForImageClassification", "Dinov2WithRegistersConfig", layerscale_value=0.4
    ),
    "hf-clip-vision": partial(_hf, "CLIPVisionModel", "CLIPVisionConfig", **_WIDE),
    "hf-clip-eager": partial(_hf, "CLIPVisionModel", "CLIPVisionConfig", attention="eager", **_WIDE),
    "hf-clip-projection": partial(_hf, "CLIPVisionModelWithProjection", "CLIPVisionConfig", projection_dim=16, **_WIDE),
    "hf-clip-classifier": partial(_hf_two_towers, "CLIPForImageClassification", "CLIPConfig"),
    "hf-siglip-vision": partial(_hf, "SiglipVisionModel", "SiglipVisionConfig", **_WIDE),
    "hf-siglip-classifier": partial(_hf_two_towers, "SiglipForImageClassification", "SiglipConfig"),
    "torchvision": _torchvision,
}

ONE_PER_LIBRARY = ("timm-registers-layerscale", "hf-dinov2", "torchvision")


def make(family: str) -> Any:
    """A fresh model of that family in evaluation mode; always the same weights."""
    return copy.deepcopy(_made(family))


@cache
def _made(family: str) -> nn.Module:
    torch.manual_seed(sorted(FAMILIES).index(family))
    model = FAMILIES[family]()
    with torch.no_grad():  # away from the tidy initial values under which mistakes cancel
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model.eval()


def defaults() -> list[fv.Method]:
    """Every registered method as it comes."""
    return [cls() for cls in all_methods().values()]


def variants() -> list[fv.Method]:
    """Every registered method with each of its switches turned and each other choice made once."""
    made: list[fv.Method] = []
    for default in defaults():
        kinds = typing.get_type_hints(type(default))
        for field in dataclasses.fields(default):
            if isinstance(field.default, bool):
                made.append(dataclasses.replace(default, **{field.name: not field.default}))
            kind = kinds[field.name]
            choices = list(Site) if kind is Site else typing.get_args(kind) if "Literal" in str(kind) else ()
            made += [dataclasses.replace(default, **{field.name: c}) for c in choices if c != field.default]
    return made


def fits(method: fv.Method, family: str) -> bool:
    return not method.needs_class_token or find_adapter(_made(family)).has_cls(_made(family))


def schedule_for(method: fv.Method) -> fv.Schedule | None:
    own = method.own_counts(DEPTH, GRID)
    return fv.KeepRate(0.6, blocks=SITES) if own is None else None


def reduced(family: str, method: fv.Method, **options: Any) -> Any:
    torch.manual_seed(7)  # for what a method learns
    return fv.reduce_(make(family), method, schedule_for(method), **options)


@cache
def images(batch: int = 3) -> Tensor:
    return torch.randn(batch, 3, IMAGE, IMAGE, generator=torch.Generator().manual_seed(5))


def main_output(model: nn.Module, x: Tensor) -> Tensor:
    """The one tensor that matters most: logits, an embedding, or the tokens."""
    out = model(x)
    if isinstance(out, Tensor):
        return out
    for name in ("logits", "image_embeds", "pooler_output", "last_hidden_state"):
        if getattr(out, name, None) is not None:
            return getattr(out, name)
    raise AssertionError(f"no known output in {type(out)}")


def _pairs(methods: list[fv.Method], families: Iterable[str]) -> list[tuple[fv.Method, str]]:
    return [(method, family) for family in families for method in methods if fits(method, family)]


ALL_PAIRS = _pairs(defaults(), FAMILIES) + _pairs(variants(), ONE_PER_LIBRARY)
"""Every method on every family it fits, and every switch of it on one model per library."""

FEW_PAIRS = (
    _pairs(defaults(), ONE_PER_LIBRARY)
    + _pairs(variants(), ONE_PER_LIBRARY[:1])
    + _pairs([fv.ToMe()], [f for f in FAMILIES if f not in ONE_PER_LIBRARY])
)
"""Every method on one model per library, its switches on one model, and every family with one method: slow rules."""


def pair_id(pair: tuple[fv.Method, str]) -> str:
    method, family = pair
    options = ",".join(
        f"{f.name}={getattr(getattr(method, f.name), 'value', getattr(method, f.name))}"
        for f in dataclasses.fields(method)
        if getattr(method, f.name) != f.default
    )
    return f"{method.name}{f'({options})' if options else ''}-{family}"
