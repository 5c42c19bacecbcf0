"""timm's VisionTransformer and its variants: prefix tokens, LayerScale, qk-norm, gates, post-norm, pooling heads."""

from __future__ import annotations

import inspect
from typing import Any

from timm.layers import Attention, AttentionPoolLatent, GluMlp, Mlp, PatchDropout, PatchEmbed, SwiGLU
from timm.models.deit import VisionTransformerDistilled
from timm.models.vision_transformer import Block, ResPostBlock, VisionTransformer
from torch import Tensor, nn

from foveate.adapters.blocks import BlockPieces
from foveate.adapters.engine import Encoded, Stream
from foveate.adapters.family import UnsupportedModel
from foveate.adapters.pooling import mean_of_patches
from foveate.adapters.registry import register_family
from foveate.adapters.timm_blocks import timm_pieces
from foveate.adapters.timm_family import TimmFamily
from foveate.adapters.timm_macs import head_macs, stem_macs
from foveate.adapters.timm_reduced import ReducedTimm
from foveate.adapters.timm_weights import convert_weights
from foveate.core import log_size_bias
from foveate.costs import ModelShape

POOLS = ("token", "avg", "map", "")
SAVED_OPTIONS = (
    *("num_classes", "in_chans", "img_size", "patch_size", "embed_dim", "depth", "num_heads", "class_token"),
    *("global_pool", "fc_norm", "dynamic_img_size", "drop_rate", "pos_drop_rate", "proj_drop_rate", "attn_drop_rate"),
    *("drop_path_rate", "stages"),  # the last is HVT's
)
FORWARDS = ("forward", "forward_features", "forward_head", "forward_intermediates", "pool", "_pos_embed")
"""Methods that the family replaces, so that a subclass must not override them."""


@register_family
class TimmVit(TimmFamily):
    """timm's ``VisionTransformer``."""

    title = "timm VisionTransformer (ViT, DeiT, DINOv2, CLIP, SigLIP, ...)"
    mixin = ReducedTimm
    saved_options = frozenset(SAVED_OPTIONS)

    @classmethod
    def matches(cls, model: nn.Module) -> bool:
        return isinstance(model, VisionTransformer)

    # -- supported variants

    def check(self) -> None:
        model = self.model
        self._check_class()
        if type(model.patch_embed) is not PatchEmbed:
            raise UnsupportedModel(f"{self._name} embeds patches by {_type(model.patch_embed)}. Supported: PatchEmbed.")
        if isinstance(model.patch_drop, PatchDropout):
            raise UnsupportedModel(f"{self._name} drops patches at random. Build it with patch_drop_rate=0.")
        for index, block in enumerate(model.blocks):
            self._check_block(f"block {index} of {self._name}", block)
        self._check_head()

    def _check_class(self) -> None:
        base = self.known_class
        changed = [name for name in FORWARDS if getattr(self.base_class, name) is not getattr(base, name)]
        if changed:
            raise UnsupportedModel(
                f"{self._name} is a {base.__name__} that overrides {', '.join(changed)}, "
                "so foveate cannot tell what it computes."
            )

    @property
    def known_class(self) -> type:
        """The class whose methods the family supports."""
        return VisionTransformerDistilled if self._is_distilled else VisionTransformer

    def _check_block(self, where: str, block: Any) -> None:
        """Check a block by its forward methods, so that a subclass that only fixes options passes."""
        if type(block).forward not in (Block.forward, ResPostBlock.forward):
            raise UnsupportedModel(f"{where} is a {_type(block)}. Supported: Block, ResPostBlock.")
        if type(block.attn).forward is not Attention.forward:
            raise UnsupportedModel(f"{where} has the attention {_type(block.attn)}. Supported: Attention.")
        if type(block.mlp) not in (Mlp, GluMlp, SwiGLU):
            raise UnsupportedModel(f"{where} has the MLP {_type(block.mlp)}. Supported: Mlp, GluMlp, SwiGLU.")

    def _check_head(self) -> None:
        model = self.model
        if model.global_pool not in POOLS or not isinstance(model.attn_pool, AttentionPoolLatent | None):
            raise UnsupportedModel(
                f"{self._name} pools by {model.global_pool!r}, which is not defined for reduced tokens. "
                f"Supported: {', '.join(map(repr, POOLS))}."
            )
        if model.attn_pool is None:
            return
        if model.attn_pool.pos_embed is not None:
            raise UnsupportedModel(
                f"The attention pooling of {self._name} has its own positions, which merged tokens lack."
            )
        if "attn_mask" not in inspect.signature(AttentionPoolLatent.forward).parameters:
            raise UnsupportedModel("Attention pooling in this version of timm takes no mask. Use timm 1.0.16 or newer.")

    @property
    def _name(self) -> str:
        return f"{self.base_class.__module__.split('.')[0]}'s {_type(self.model)}"

    @property
    def _is_distilled(self) -> bool:
        return isinstance(self.model, VisionTransformerDistilled)

    # -- the model's parts

    @property
    def blocks(self) -> list[nn.Module]:
        return list(self.model.blocks)

    def pieces(self) -> list[BlockPieces]:
        return [timm_pieces(block) for block in self.model.blocks]

    @property
    def num_prefix(self) -> int:
        return int(self.model.num_prefix_tokens)

    @property
    def has_cls(self) -> bool:
        return self.model.cls_token is not None

    @property
    def image_size(self) -> tuple[int, int, int]:
        height, width = self.model.patch_embed.img_size
        return int(self.model.in_chans), int(height), int(width)

    def grid_for(self, height: int, width: int) -> tuple[int, int]:
        embed: PatchEmbed = self.model.patch_embed
        fixed = not self.model.dynamic_img_size and embed.img_size is not None
        if fixed and (height, width) != tuple(embed.img_size):
            raise ValueError(
                f"The image is {height} x {width}, the model takes {embed.img_size[0]} x {embed.img_size[1]}. "
                "Resize it, or build the model with img_size=... or dynamic_img_size=True."
            )
        ph, pw = embed.patch_size
        if not embed.dynamic_img_pad and (height % ph or width % pw):
            raise ValueError(f"The image is {height} x {width}, which patches of {ph} x {pw} do not divide.")
        rows, columns = embed.dynamic_feat_size((height, width))
        return int(rows), int(columns)

    def shape(self, grid: tuple[int, int] | None = None) -> ModelShape:
        per_image, per_token = self.head_macs()
        model = self.model
        prefix_read = 0 if model.attn_pool is not None and not model.pool_include_prefix else self.num_prefix
        return ModelShape(
            blocks=tuple(pieces.shape() for pieces in self.pieces()),
            grid=self.grid if grid is None else grid,
            num_prefix=self.num_prefix,
            has_cls=self.has_cls,
            stem_macs_per_patch=stem_macs(model.patch_embed),
            head_macs=per_image + per_token * prefix_read,
            head_macs_per_patch=per_token + self.extra_macs_per_patch,
            head_reads_patches=self.head_reads_patches,
        )

    def head_macs(self) -> tuple[int, int]:
        """MACs of pooling and classifier: (per image, per token that the head reads)."""
        return head_macs(self.model)

    @property
    def extra_macs_per_patch(self) -> int:
        """Further MACs of the head for each patch token, but not for prefix tokens."""
        return 0

    @property
    def head_reads_patches(self) -> bool:
        return self.model.global_pool != "token" or self.model.attn_pool is not None

    # -- running the model

    def embed(self, images: Tensor, **options: Any) -> Tensor:
        self.grid_for(*images.shape[-2:])
        model = self.model
        return model.norm_pre(model._pos_embed(model.patch_embed(images)))

    def final_norm(self, tokens: Tensor) -> Tensor:
        return self.model.norm(tokens)

    def head(self, encoded: Encoded) -> Any:
        return self.predict(self.final_norm(encoded.stream.tokens), self.token_weights(encoded.stream))

    def token_weights(self, stream: Stream) -> Tensor | None:
        """Weights of patch tokens (B, N) in the head: how many patches each stands for."""
        return stream.size if self.reads_weights else None

    @property
    def reads_weights(self) -> bool:
        """Whether a head that is called separately needs the weights of tokens."""
        averages = self.model.attn_pool is not None or self.model.global_pool == "avg"
        return averages and self.reducer is not None and self.reducer.heads_weigh_by_size

    def predict(self, tokens: Tensor, weights: Tensor | None, pre_logits: bool = False) -> Any:
        """Run pooling and classifier on normed tokens (B, P + N, C)."""
        model: Any = self.model
        if self._is_distilled or not self.reads_weights:
            return self.base_class.forward_head(model, tokens, pre_logits)  # type: ignore[attr-defined]
        skip = 0 if model.pool_include_prefix else self.num_prefix
        pooled = self._pooled(tokens[:, skip:], weights, self.num_prefix - skip)
        x = model.head_drop(model.fc_norm(pooled))
        return x if pre_logits else model.head(x)

    def _pooled(self, tokens: Tensor, size: Tensor | None, prefix: int) -> Tensor:
        """Mean or attention pooling in which a token counts once for each patch it stands for."""
        if self.model.attn_pool is None:
            return mean_of_patches(tokens, size, prefix)
        bias = None if size is None else log_size_bias(size, prefix, tokens.dtype)
        return self.model.attn_pool(tokens, attn_mask=bias)

    @property
    def recomputes(self) -> bool:
        return bool(self.model.grad_checkpointing)

    # -- files

    def build_options(self) -> dict[str, Any]:
        model = self.model
        options = {
            "num_classes": model.num_classes,
            "in_chans": model.in_chans,
            "img_size": list(model.patch_embed.img_size),
            "patch_size": list(model.patch_embed.patch_size),
            "embed_dim": model.embed_dim,
            "depth": len(model.blocks),
            "num_heads": model.blocks[0].attn.num_heads,
            "class_token": model.cls_token is not None,
            "global_pool": model.global_pool,
            "fc_norm": not isinstance(model.fc_norm, nn.Identity),
        }
        if model.dynamic_img_size:
            options["dynamic_img_size"] = True
        return options | _drop_rates(model)

    def convert_weights(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        return convert_weights(weights, self.model)


def _drop_rates(model: Any) -> dict[str, float]:
    """All dropout rates above 0, which matter for further training."""
    last = model.blocks[-1]
    rates = {
        "drop_rate": getattr(model.head_drop, "p", 0.0),
        "pos_drop_rate": getattr(model.pos_drop, "p", 0.0),
        "proj_drop_rate": getattr(last.attn.proj_drop, "p", 0.0),
        "attn_drop_rate": getattr(last.attn.attn_drop, "p", 0.0),
        "drop_path_rate": getattr(last.drop_path1, "drop_prob", 0.0),
    }
    return {name: float(rate) for name, rate in rates.items() if rate}


def _type(module: Any) -> str:
    return type(module).__name__
