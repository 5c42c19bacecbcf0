"""Small models of every supported family, and every registered method in its variants."""

from __future__ import annotations

import copy
import dataclasses
import typing
from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple

import torch
import transformers
from timm.layers import Attention, HybridEmbed, SwiGLU
from timm.models.beit import Beit
from timm.models.deepseek_vit import DeepseekVitClassifier
from timm.models.deit import VisionTransformerDistilled
from timm.models.eva import Eva
from timm.models.gemma4_vit import Gemma4VitClassifier
from timm.models.naflexvit import NaFlexVit
from timm.models.qwen3_vit import Qwen3VitEncoder
from timm.models.vision_transformer import (
    ParallelScalingBlock,
    ParallelThingsBlock,
    ResPostBlock,
    VisionTransformer,
)
from timm.models.vision_transformer_relpos import VisionTransformerRelPos
from torch import Tensor, nn
from torchvision.models import VisionTransformer as TorchvisionViT

import foveate as fv
from foveate.methods import RepresentationShift, Site, all_methods
from foveate.models import LVViT

IMAGE, PATCH, DIM, DEPTH, HEADS, CLASSES = 24, 4, 32, 4, 2, 7
GRID = (IMAGE // PATCH, IMAGE // PATCH)
PATCHES = GRID[0] * GRID[1]
SITES = (1, 2)  # blocks that reduce in the contract's schedule
SHALLOW = 3  # blocks where tracing each takes time: one as it is, one that reduces, one that reduces what was reduced


def _timm(cls: type = VisionTransformer, **options: Any) -> nn.Module:
    size = {"img_size": IMAGE, "patch_size": PATCH, "embed_dim": DIM, "num_heads": HEADS}
    return cls(**(size | {"num_classes": CLASSES} | options))


def _encoder(cls: type, **options: Any) -> Any:
    model = cls(img_size=IMAGE, patch_size=PATCH, embed_dim=DIM, num_heads=HEADS, **options)
    model.pretrained_cfg = {"input_size": (3, IMAGE, IMAGE)}  # some models keep no size of their own
    return model


_GEMMA = {"head_dim": DIM // HEADS, "intermediate_size": 2 * DIM, "position_embedding_size": 16}
_HF_SIZE = {
    "hidden_size": DIM,
    "num_attention_heads": HEADS,
    "image_size": IMAGE,
    "patch_size": PATCH,
}


def _hf(name: str, config: str, depth: int, attention: str = "sdpa", **options: Any) -> nn.Module:
    made = getattr(transformers, config)(**_HF_SIZE | {"num_hidden_layers": depth, "num_labels": CLASSES} | options)
    return getattr(transformers, name)._from_config(made, attn_implementation=attention)


def _hf_two_towers(name: str, config: str, depth: int) -> nn.Module:
    text = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    vision = _HF_SIZE | {"intermediate_size": 4 * DIM, "num_hidden_layers": depth}
    special = {"vocab_size": 40, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    made = getattr(transformers, config)(vision_config=vision, text_config=text | special, num_labels=CLASSES)
    return getattr(transformers, name)._from_config(made)


def _torchvision(depth: int) -> nn.Module:
    model = TorchvisionViT(IMAGE, PATCH, depth, HEADS, DIM, 4 * DIM, num_classes=CLASSES)
    nn.init.normal_(model.heads.head.weight, std=0.2)  # torchvision starts it at zero, which would hide everything
    return model


_WIDE = {"intermediate_size": 4 * DIM}
_STILL = _WIDE | {"pos_embed_rescale": None}  # in training, DINOv3 draws the scale of its positions at random
_RELATIVE = _WIDE | {"use_relative_position_bias": True, "layer_scale_init_value": 0.4}
_INTERNVL = _WIDE | {"layer_scale_init_value": 0.4, "use_qk_norm": True, "use_mean_pooling": False}
_INTERNVL |= {"image_size": (IMAGE, IMAGE), "patch_size": (PATCH, PATCH)}


class GatedAttention(Attention):
    """timm's attention with its output gate switched on; blocks of timm's own have no argument for that."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options, gated=True)


def _stem(**options: Any) -> HybridEmbed:
    """A convolution, then patches of what it gives."""
    return HybridEmbed(
        nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8)), **options | {"patch_size": PATCH // 2}
    )


_ANY_SIZE = {"dynamic_img_size": True, "init_values": 0.5}  # learned frequencies of a fixed size need float32 in timm
_SHARED_KEYS = {"attn_type": "rope", "qkv_fused": False, "num_heads": 4, "num_kv_heads": 2, "qk_norm": True}
_ROTARY = {"use_rot_pos_emb": True}
_HALF = {"rope_rotate_half": True, "rope_type": "dinov3", "qkv_fused": False, "swiglu_mlp": True, "scale_mlp": True}


class Family(NamedTuple):
    """A kind of block, told apart by the pieces it is run in, and how a small model of a given depth is built."""

    block: str
    build: Callable[..., nn.Module]


# the first family of each kind of block stands for it, so it is the one with most to get wrong
FAMILIES: dict[str, Family] = {
    "timm-registers-layerscale": Family("timm", partial(_timm, reg_tokens=4, init_values=0.3, no_embed_class=True)),
    "timm-cls": Family("timm", _timm),
    "timm-mean": Family("timm", partial(_timm, class_token=False, global_pool="avg")),
    "timm-cls-mean": Family("timm", partial(_timm, global_pool="avg", pool_include_prefix=True)),
    "timm-map": Family("timm", partial(_timm, class_token=False, global_pool="map")),
    "timm-registers-map": Family("timm", partial(_timm, class_token=False, reg_tokens=4, global_pool="map")),
    "timm-tokens": Family("timm", partial(_timm, global_pool="", num_classes=0)),
    "timm-distilled": Family("timm", partial(_timm, VisionTransformerDistilled)),
    "timm-qknorm": Family("timm", partial(_timm, qk_norm=True, scale_attn_norm=True)),
    "timm-prenorm": Family("timm", partial(_timm, pre_norm=True, qkv_bias=False)),
    "timm-postnorm": Family("timm", partial(_timm, block_fn=ResPostBlock, init_values=0.5)),
    "timm-gated": Family("timm", partial(_timm, attn_layer=GatedAttention)),
    "timm-swiglu": Family("timm", partial(_timm, mlp_layer=SwiGLU)),
    "timm-dynamic": Family("timm", partial(_timm, dynamic_img_size=True)),
    "timm-lvvit": Family("timm", partial(_timm, LVViT)),
    "timm-hybrid": Family("timm", partial(_timm, embed_layer=_stem)),
    "timm-parallel-scaling": Family(
        "timm-scaling", partial(_timm, block_fn=ParallelScalingBlock, qkv_bias=False, qk_norm=True, init_values=0.5)
    ),
    "timm-parallel-things": Family("timm-things", partial(_timm, block_fn=ParallelThingsBlock, init_values=0.5)),
    "timm-rope-mixed": Family(
        "timm-rope",
        partial(_timm, Eva, **_ROTARY, rope_type="mixed", rope_grid_indexing="xy", **_ANY_SIZE, num_reg_tokens=2),
    ),
    "timm-rope-dinov3": Family(
        "timm-rope",
        partial(_timm, Eva, **_ROTARY, **_HALF, global_pool="token", use_abs_pos_emb=False, scale_attn_inner=True),
    ),
    "timm-rope-shared-keys": Family(
        "timm-rope",
        partial(_timm, Eva, **_ROTARY, **_SHARED_KEYS, global_pool="map", dynamic_img_size=True, class_token=False),
    ),
    "timm-rope-postnorm": Family("timm-rope", partial(_timm, Eva, **_ROTARY, use_post_norm=True)),
    "timm-rope-qwen": Family("timm-rope", partial(_encoder, Qwen3VitEncoder, out_features=5, pos_embed_grid_size=6)),
    "timm-rope-deepseek": Family("timm-rope", partial(_timm, DeepseekVitClassifier)),
    "timm-gemma": Family(
        "timm-gemma", partial(_encoder, Gemma4VitClassifier, **_GEMMA, num_kv_heads=1, num_classes=CLASSES)
    ),
    "timm-rope-naflex": Family(
        "timm-rope", partial(_encoder, NaFlexVit, rope_type="axial", attn_gated=True, num_classes=CLASSES)
    ),
    "timm-relpos": Family(
        "timm-bias", partial(_timm, VisionTransformerRelPos, class_token=True, global_pool="token", init_values=0.5)
    ),
    "timm-beit": Family(
        "timm-bias",
        partial(_timm, Beit, use_rel_pos_bias=True, use_shared_rel_pos_bias=True, init_values=0.5),
    ),
    "hf-vit": Family("hf-vit", partial(_hf, "ViTForImageClassification", "ViTConfig", **_WIDE)),
    "hf-vit-eager": Family(
        "hf-vit", partial(_hf, "ViTForImageClassification", "ViTConfig", attention="eager", **_WIDE)
    ),
    "hf-vit-model": Family("hf-vit", partial(_hf, "ViTModel", "ViTConfig", **_WIDE)),
    "hf-deit": Family("hf-vit", partial(_hf, "DeiTForImageClassification", "DeiTConfig", **_WIDE)),
    "hf-deit-teacher": Family("hf-vit", partial(_hf, "DeiTForImageClassificationWithTeacher", "DeiTConfig", **_WIDE)),
    "hf-dinov2": Family(
        "hf-dinov2", partial(_hf, "Dinov2ForImageClassification", "Dinov2Config", layerscale_value=0.4)
    ),
    "hf-dinov2-model": Family(
        "hf-dinov2", partial(_hf, "Dinov2Model", "Dinov2Config", layerscale_value=0.4, use_swiglu_ffn=True)
    ),
    "hf-dinov2-registers": Family(
        "hf-dinov2",
        partial(_hf, "Dinov2WithRegistersForImageClassification", "Dinov2WithRegistersConfig", layerscale_value=0.4),
    ),
    "hf-clip-vision": Family("hf-clip", partial(_hf, "CLIPVisionModel", "CLIPVisionConfig", **_WIDE)),
    "hf-clip-eager": Family("hf-clip", partial(_hf, "CLIPVisionModel", "CLIPVisionConfig", attention="eager", **_WIDE)),
    "hf-clip-projection": Family(
        "hf-clip", partial(_hf, "CLIPVisionModelWithProjection", "CLIPVisionConfig", projection_dim=16, **_WIDE)
    ),
    "hf-clip-classifier": Family("hf-clip", partial(_hf_two_towers, "CLIPForImageClassification", "CLIPConfig")),
    "hf-siglip-vision": Family("hf-clip", partial(_hf, "SiglipVisionModel", "SiglipVisionConfig", **_WIDE)),
    "hf-siglip-classifier": Family("hf-clip", partial(_hf_two_towers, "SiglipForImageClassification", "SiglipConfig")),
    "hf-dinov3": Family(
        "hf-dinov3",
        partial(_hf, "DINOv3ViTModel", "DINOv3ViTConfig", layerscale_value=0.4, num_register_tokens=2, **_STILL),
    ),
    "hf-beit": Family(
        "hf-beit",
        partial(_hf, "BeitForImageClassification", "BeitConfig", use_shared_relative_position_bias=True, **_RELATIVE),
    ),
    "hf-data2vec": Family(
        "hf-beit",
        partial(
            _hf,
            "Data2VecVisionForImageClassification",
            "Data2VecVisionConfig",
            use_mean_pooling=False,
            **_RELATIVE,
        ),
    ),
    "hf-internvl": Family(
        "hf-vit",
        partial(_hf, "InternVLVisionModel", "InternVLVisionConfig", **_INTERNVL),
    ),
    "hf-dpt": Family("hf-vit", partial(_hf, "DPTModel", "DPTConfig", **_WIDE)),
    "hf-yolos": Family(
        "hf-yolos",
        partial(_hf, "YolosModel", "YolosConfig", num_detection_tokens=3, **_WIDE | {"image_size": [IMAGE] * 2}),
    ),
    "torchvision": Family("torchvision", _torchvision),
}

ONE_PER_LIBRARY = ("timm-registers-layerscale", "hf-dinov2", "torchvision")
ONE_PER_BLOCK = tuple(
    next(name for name, family in FAMILIES.items() if family.block == block)
    for block in dict.fromkeys(family.block for family in FAMILIES.values())
)
WITHOUT_PREFIX = "timm-mean"


def make(family: str, depth: int = DEPTH) -> Any:
    """A fresh model of that family in evaluation mode; always the same weights."""
    return copy.deepcopy(made(family, depth))


@cache
def made(family: str, depth: int = DEPTH) -> nn.Module:
    torch.manual_seed(sorted(FAMILIES).index(family))
    model = FAMILIES[family].build(depth=depth)
    with torch.no_grad():  # away from the tidy initial values under which mistakes cancel
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model.eval()


def defaults() -> list[fv.Method]:
    """Every registered method as it comes."""
    return [cls() for cls in all_methods().values()]


def variants() -> list[fv.Method]:
    """Every registered method with each of its switches turned and each other choice made once."""
    made: list[fv.Method] = [fv.Mixture(fv.FreeSlice(Site.PRE_BLOCK), RepresentationShift())]  # at two sites
    for default in defaults():
        kinds = typing.get_type_hints(type(default))
        for field in dataclasses.fields(default):
            if field.name == "proportional_attention" and default != fv.ToMe():
                continue  # only the engine reads it, and ``_one_per_kind_of_method`` covers what it does with it
            if isinstance(field.default, bool):
                made.append(dataclasses.replace(default, **{field.name: not field.default}))
            kind = kinds[field.name]
            choices = list(Site) if kind is Site else typing.get_args(kind) if "Literal" in str(kind) else ()
            made += [dataclasses.replace(default, **{field.name: c}) for c in choices if c != field.default]
    return made


def family_of(model: nn.Module) -> Any:
    """What foveate knows of a model: its blocks and their pieces, its embedding, its shape."""
    return fv.inspect(model)


def num_prefix(model: nn.Module) -> int:
    return family_of(model).num_prefix


def blocks_of(model: nn.Module) -> list[nn.Module]:
    return family_of(model).blocks


def encoded(model: nn.Module, x: Tensor, **options: Any) -> Any:
    """The run through embedding and blocks, without the head."""
    return family_of(model).encode(x, **options)


def fits(method: fv.Method, family: str) -> bool:
    return not method.needs_class_token or family_of(made(family)).has_cls


def schedule_for(method: fv.Method) -> fv.Schedule | None:
    own = method.own_counts(DEPTH, GRID)
    return fv.KeepRate(0.6, blocks=SITES) if own is None else None


def reduced(family: str, method: fv.Method, depth: int = DEPTH, **options: Any) -> Any:
    model = make(family, depth)
    torch.manual_seed(7)  # for what a method learns; building a model draws numbers too
    return fv.reduce_(model, method, schedule_for(method), **options)


@cache
def shared(family: str, method: fv.Method) -> Any:
    """``reduced``, made once: for laws that only look at a model or run it, and leave it as it was."""
    return reduced(family, method)


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
