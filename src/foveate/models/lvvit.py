"""LV-ViT-S (Jiang et al., 2021), the second backbone of DynamicViT, as a timm model.

A DeiT-S with a convolutional stem, 16 blocks of MLP ratio 3 without qkv bias, halved residual branches, and a second
head that predicts a class for each patch token. The prediction is y = FC(x_class) + max_i FC_aux(x_i) / 2. If tokens
are removed, the maximum is over the remaining ones.
"""

from __future__ import annotations

from typing import Any

import torch
from timm.layers import PatchEmbed, to_2tuple
from timm.models import build_model_with_cfg, generate_default_cfgs, register_model
from timm.models.vision_transformer import Block, VisionTransformer
from torch import Tensor, nn

from foveate.adapters import linear_macs, register_family
from foveate.adapters.engine import Stream
from foveate.adapters.timm_vit import TimmVit
from foveate.models.untrained import untrained

STEM_WIDTH = 64


class Halved(nn.Module):
    """Halves its input, as LV-ViT does with residual branches."""

    def forward(self, x: Tensor) -> Tensor:
        return x * 0.5


class HalvedBlock(Block):
    """timm's block with both residual branches halved."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.ls1 = self.ls2 = Halved()  # type: ignore[assignment]


def stem(in_chans: int, width: int, patch_size: int) -> nn.Sequential:
    """Three convolutions at half resolution, then one that makes patches."""
    layers: list[nn.Module] = []
    for channels, kernel, stride in ((in_chans, 7, 2), (STEM_WIDTH, 3, 1), (STEM_WIDTH, 3, 1)):
        layers += [nn.Conv2d(channels, STEM_WIDTH, kernel, stride, kernel // 2, bias=False)]
        layers += [nn.BatchNorm2d(STEM_WIDTH), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers, nn.Conv2d(STEM_WIDTH, width, patch_size // 2, patch_size // 2))


class LVViT(VisionTransformer):
    """A ViT with the stem and the second head of LV-ViT."""

    def __init__(self, patch_size: Any = 16, in_chans: int = 3, embed_dim: int = 384, **options: Any) -> None:
        side, other = to_2tuple(patch_size)
        if side % 2 or side != other:
            raise ValueError(f"LV-ViT's stem needs square patches of even size, got {patch_size}.")
        options = {"qkv_bias": False, "mlp_ratio": 3.0, "block_fn": HalvedBlock, **options}
        _check_pooling(options.get("global_pool"), options.get("num_classes", 1000))
        super().__init__(patch_size=side, in_chans=in_chans, embed_dim=embed_dim, **options)
        assert type(self.patch_embed) is PatchEmbed
        self.patch_embed.proj = stem(in_chans, embed_dim, side)  # type: ignore[assignment]
        self.aux_head = self._aux_head(self.num_classes)

    def _aux_head(self, num_classes: int) -> nn.Module:
        return nn.Linear(self.embed_dim, num_classes) if num_classes > 0 else nn.Identity()

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

    def predict(self, tokens: Tensor, weights: Tensor | None, pre_logits: bool = False) -> Tensor:
        return LVViT.forward_head(self.model, tokens, pre_logits, weights)


def _check_pooling(wanted: str | None, num_classes: int) -> None:
    """Raise ``ValueError`` for a pooling: the two heads read the class token and every other token."""
    if wanted not in (None, "token") and not (wanted == "" and num_classes == 0):
        raise ValueError(
            f"LV-ViT predicts from its class token and the strongest other token; it has no pooling {wanted!r}. "
            "Leave global_pool out."
        )


CONFIG = untrained(
    first_conv="patch_embed.proj.0",
    classifier=("head", "aux_head"),
    paper_ids="arXiv:2104.10858",
    paper_name="All Tokens Matter: Token Labeling for Training Better Vision Transformers",
)
default_cfgs = generate_default_cfgs({"lvvit_small.untrained": CONFIG})  # timm reads this name


@register_model
def lvvit_small(pretrained: bool = False, **options: Any) -> VisionTransformer:
    """LV-ViT-S: 16 blocks of width 384 with 6 heads."""
    shape = {"embed_dim": 384, "depth": 16, "num_heads": 6}
    return build_model_with_cfg(LVViT, "lvvit_small", pretrained, **(shape | options))
