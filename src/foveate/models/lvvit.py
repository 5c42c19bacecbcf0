"""LV-ViT (Jiang et al., 2021), the second backbone of DynamicViT, as timm models.

A DeiT with a convolutional stem, MLP ratio 3, no qkv bias, residual branches divided by a constant (2 in LV-ViT-S), and
a second head on the patch tokens that predicts a class for each; the prediction is y = FC(x_class) + max_i FC_aux(x_i)
/ 2. When tokens are removed the maximum is over those that are left. Norms and initial weights are the published
code's: LayerNorm with eps 1e-5, class token and both heads drawn with standard deviation 0.02.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar

import torch
from timm.layers import LayerNorm, PatchEmbed, to_2tuple, trunc_normal_
from timm.models import build_model_with_cfg, generate_default_cfgs, register_model
from timm.models.vision_transformer import Block, VisionTransformer
from torch import Tensor, nn

from foveate.adapters import linear_macs, register_family
from foveate.adapters.stream import Encoded, Stream
from foveate.adapters.timm_vit import TimmVit
from foveate.adapters.timm_weights import convert_weights
from foveate.methods.validation import check_sizes, shown
from foveate.models.untrained import untrained

NORM_EPS = 1e-5
NORM_EPS_BEFORE = 1e-6
"""What models had whose saved folders name no ``norm_eps``."""

STEM_NAMES = {"conv1": 0, "bn1": 1, "conv2": 3, "bn2": 4, "conv3": 6, "bn3": 7, "proj": 9}
"""Layers of the published code's stem, and their places in ours."""


class Divided(nn.Module):
    """Its input divided by a constant, as residual branches are in LV-ViT."""

    def __init__(self, divisor: float) -> None:
        super().__init__()
        self.divisor = divisor

    def forward(self, x: Tensor) -> Tensor:
        return x / self.divisor

    def extra_repr(self) -> str:
        return f"{self.divisor:g}"


class DividedBlock(Block):
    """timm's block with both residual branches divided."""

    def __init__(self, *args: Any, divisor: float = 2.0, **options: Any) -> None:
        super().__init__(*args, **options)
        self.ls1 = self.ls2 = Divided(divisor)  # type: ignore[assignment]


def stem(in_chans: int, hidden: int, width: int, patch_size: int) -> nn.Sequential:
    """Three convolutions at half the resolution, then one that makes patches."""
    layers: list[nn.Module] = []
    for channels, kernel, stride in ((in_chans, 7, 2), (hidden, 3, 1), (hidden, 3, 1)):
        layers += [nn.Conv2d(channels, hidden, kernel, stride, kernel // 2, bias=False)]
        layers += [nn.BatchNorm2d(hidden), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers, nn.Conv2d(hidden, width, patch_size // 2, patch_size // 2))


class LVViT(VisionTransformer):
    """A ViT with that stem and that second head.

    Args:
        stem_width: channels inside the stem.
        skip: what residual branches are divided by.
        norm_eps: eps of every LayerNorm.
    """

    official_names: ClassVar[Mapping[str, str]] = {
        f"patch_embed.{theirs}.": f"patch_embed.proj.{ours}." for theirs, ours in STEM_NAMES.items()
    }
    """Beginnings of names in published weight files, and what they are here."""

    def __init__(
        self,
        patch_size: Any = 16,
        in_chans: int = 3,
        embed_dim: int = 384,
        stem_width: int = 64,
        skip: float = 2.0,
        norm_eps: float = NORM_EPS,
        **options: Any,
    ) -> None:
        for name, size in (("patch_size", patch_size), ("img_size", options.get("img_size", 224))):
            if not isinstance(size, int) and not (isinstance(size, list | tuple) and len(size) == 2):
                raise ValueError(f"{name} must be a number of pixels, or height and width; got {shown(size)}.")
            check_sizes(**{f"{name}[{place}]": one for place, one in enumerate(to_2tuple(size))})
        side, other = to_2tuple(patch_size)
        if min(to_2tuple(options.get("img_size", 224))) < side:
            raise ValueError(f"Images of img_size={options['img_size']} are smaller than a patch of {side}.")
        sizes = {name: options[name] for name in ("depth", "num_heads") if name in options}
        check_sizes(in_chans=in_chans, embed_dim=embed_dim, **sizes)
        if embed_dim % sizes.get("num_heads", 1):
            raise ValueError(f"embed_dim must be a multiple of num_heads, got {embed_dim} and {sizes['num_heads']}.")
        if side % 2 or side != other:
            raise ValueError(f"LV-ViT's stem needs square patches of even size, got {patch_size}.")
        own = {"block_fn": partial(DividedBlock, divisor=skip), "norm_layer": partial(LayerNorm, eps=norm_eps)}
        options = {"qkv_bias": False, "mlp_ratio": 3.0, **own, **options}
        _check_pooling(options.get("global_pool"), options.get("num_classes", 1000))
        super().__init__(patch_size=side, in_chans=in_chans, embed_dim=embed_dim, **options)
        self.stem_width, self.skip, self.norm_eps = stem_width, skip, norm_eps
        assert type(self.patch_embed) is PatchEmbed
        self.patch_embed.proj = stem(in_chans, stem_width, embed_dim, side)  # type: ignore[assignment]
        self.aux_head = self._aux_head(self.num_classes)

    def init_weights(self, mode: str = "", needs_reset: bool = True) -> None:
        super().init_weights(mode, needs_reset)
        if self.cls_token is not None:
            trunc_normal_(self.cls_token, std=0.02)

    def _aux_head(self, num_classes: int) -> nn.Module:
        """Made behind timm's initialization, so it is drawn here, like the first head."""
        if num_classes <= 0:
            return nn.Identity()
        head = nn.Linear(self.embed_dim, num_classes)
        trunc_normal_(head.weight, std=0.02)
        nn.init.zeros_(head.bias)
        return head

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        _check_pooling(global_pool, num_classes)
        super().reset_classifier(num_classes, global_pool)
        self.aux_head = self._aux_head(num_classes)

    def token_predictions(self, tokens: Tensor) -> Tensor:
        """Predictions of the second head for each patch token, (B, N, classes); token labeling trains these."""
        return self.aux_head(tokens[:, self.num_prefix_tokens :])

    def forward_head(self, x: Tensor, pre_logits: bool = False, keep: Tensor | None = None) -> Tensor:
        """Predict from tokens; ``keep`` (B, N) marks the patch tokens that count if training masks the others."""
        by_class = super().forward_head(x, pre_logits)
        if pre_logits or self.num_classes == 0:
            return by_class
        by_token = self.token_predictions(x)
        if keep is not None:
            by_token = by_token.masked_fill(keep[..., None] == 0, -torch.inf)
        return by_class + by_token.amax(dim=1) / 2


@register_family
class LVViTFamily(TimmVit):
    """LV-ViT, whose head takes any number of patch tokens and counts each once."""

    title = "LV-ViT"
    classifier_names = ("head", "aux_head")

    @classmethod
    def matches(cls, model: nn.Module) -> bool:
        return isinstance(model, LVViT)

    @property
    def known_class(self) -> type:
        return LVViT

    @property
    def head_reads_patches(self) -> bool:
        return True

    @property
    def extra_macs_per_patch(self) -> int:
        return linear_macs(self.model.aux_head)

    @property
    def reads_weights(self) -> bool:
        """The head reads every patch token, so it must skip those that training masks."""
        return self.reducer is not None and self.reducer.masks

    def token_weights(self, stream: Stream) -> Tensor | None:
        return stream.keep if self.reads_weights else None

    saved_options = TimmVit.saved_options | {"stem_width", "skip", "norm_eps"}

    def build_options(self) -> dict[str, Any]:
        model = self.model
        own = {"stem_width": model.stem_width, "skip": model.skip, "norm_eps": model.norm_eps}
        return super().build_options() | own

    @classmethod
    def can_rebuild(cls, architecture: Mapping[str, Any]) -> bool:
        return super().can_rebuild(architecture) and architecture.get("architecture") in list(SIZES)

    @classmethod
    def rebuild(cls, architecture: Mapping[str, Any]) -> nn.Module:
        """A folder without ``norm_eps`` was saved when every norm had 1e-6; its outputs stay as they were."""
        options = {"norm_eps": NORM_EPS_BEFORE} | architecture["options"]
        return super().rebuild({**architecture, "options": options})

    def predict(self, tokens: Tensor, weights: Tensor | None, pre_logits: bool = False) -> Tensor:
        return LVViT.forward_head(self.model, tokens, pre_logits, weights)

    def class_logits(self, encoded: Encoded) -> Tensor:
        """The first head alone: the maximum over tokens is for inference, and the published losses leave it out."""
        return VisionTransformer.forward_head(self.model, self.final_norm(encoded.stream.tokens))

    def patch_logits(self, encoded: Encoded) -> Tensor:
        return self.model.token_predictions(self.final_norm(encoded.stream.tokens))


def _check_pooling(wanted: str | None, num_classes: int) -> None:
    """Raise ``ValueError`` for a pooling: the two heads read the class token and every other token."""
    if wanted not in (None, "token") and not (wanted == "" and num_classes == 0):
        raise ValueError(
            f"LV-ViT predicts from its class token and the strongest other token; it has no pooling {wanted!r}. "
            "Leave global_pool out."
        )


SIZES: dict[str, dict[str, Any]] = {
    "lvvit_tiny": {"embed_dim": 240, "depth": 12, "num_heads": 4, "skip": 1.0},
    "lvvit_small": {"embed_dim": 384, "depth": 16, "num_heads": 6},
    "lvvit_medium": {"embed_dim": 512, "depth": 20, "num_heads": 8},
    "lvvit_large": {"embed_dim": 768, "depth": 24, "num_heads": 12, "skip": 3.0, "stem_width": 128},
}
"""The published code's LV-ViT-T, -S, -M and -L."""

CONFIG = untrained(
    first_conv="patch_embed.proj.0",
    classifier=("head", "aux_head"),
    paper_ids="arXiv:2104.10858",
    paper_name="All Tokens Matter: Token Labeling for Training Better Vision Transformers",
)
WHOLE_IMAGE = CONFIG | {"crop_pct": 1.0}
default_cfgs = generate_default_cfgs(  # timm reads this name
    {f"{name}.untrained": WHOLE_IMAGE if name in ("lvvit_medium", "lvvit_large") else CONFIG for name in SIZES}
)


def _register(name: str, shape: dict[str, Any]) -> Callable[..., nn.Module]:
    """Make the entry point ``name``, which timm calls with what its users write."""

    def entry_point(pretrained: bool = False, **options: Any) -> nn.Module:
        return build_model_with_cfg(LVViT, name, pretrained, pretrained_filter_fn=convert_weights, **(shape | options))

    described = ", ".join(f"{option}={value}" for option, value in shape.items())
    entry_point.__name__, entry_point.__doc__ = name, f"LV-ViT with {described}; see ``LVViT`` for all options."
    return register_model(entry_point)


for _name, _shape in SIZES.items():
    _register(_name, _shape)
