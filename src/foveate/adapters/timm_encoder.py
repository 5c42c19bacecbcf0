"""What timm's plain encoders share: one stack of blocks on a grid of patches, prefix tokens, a head that pools."""

from __future__ import annotations

import inspect
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

from timm.layers import AttentionPoolLatent, GluMlp, HybridEmbed, Mlp, PatchEmbed, SwiGLU
from timm.models.vitamin import GeGluMlp
from torch import Tensor, nn

from foveate.adapters.blocks import BlockPieces
from foveate.adapters.family import UnsupportedModel
from foveate.adapters.pooling import mean_of_patches
from foveate.adapters.positions import PositionSource
from foveate.adapters.stream import Encoded, Stream
from foveate.adapters.timm_blocks import timm_pieces
from foveate.adapters.timm_family import TimmFamily
from foveate.adapters.timm_macs import head_macs, stem_macs
from foveate.adapters.timm_reduced import ReducedTimm
from foveate.core import log_size_bias
from foveate.costs import ModelShape

MLPS = (Mlp, GluMlp, SwiGLU, GeGluMlp)
POOLS = ("token", "avg", "map", "")
FORWARDS = ("forward", "forward_features", "forward_head", "forward_intermediates", "pool", "_pos_embed")
"""Methods that the family replaces, so that a subclass must not override them."""


class TimmEncoder(TimmFamily):
    """A plain encoder of timm: ``patch_embed``, ``blocks``, ``norm``, and a head that pools tokens."""

    mixin = ReducedTimm
    stems: ClassVar[tuple[type, ...]] = (PatchEmbed,)
    """How patches may be embedded."""
    block_forwards: ClassVar[tuple[Callable[..., Any], ...]] = ()
    """Blocks that the family supports, by their forward methods, so that a subclass that only fixes options passes."""
    attention_forwards: ClassVar[tuple[Callable[..., Any], ...]] = ()
    """The same for the attention in them."""

    # -- supported variants

    @property
    @abstractmethod
    def known_class(self) -> type:
        """The class whose methods the family supports."""

    def check(self) -> None:
        model = self.model
        self._check_class()
        if type(self.stem) not in self.stems:
            raise UnsupportedModel(
                f"{self._name} embeds patches by {_type(self.stem)}. Supported: {_names(self.stems)}."
            )
        if not isinstance(getattr(model, "patch_drop", None), nn.Identity | None):
            raise UnsupportedModel(f"{self._name} drops patches at random. Build it with patch_drop_rate=0.")
        for index, block in enumerate(model.blocks):
            self._check_block(f"block {index} of {self._name}", block)
        self._check_head()

    def _check_class(self) -> None:
        base = self.known_class
        changed = [n for n in FORWARDS if getattr(self.base_class, n, None) is not getattr(base, n, None)]
        if changed:
            raise UnsupportedModel(
                f"{self._name} is a {base.__name__} that overrides {', '.join(changed)}, "
                "so foveate cannot tell what it computes."
            )

    def _check_block(self, where: str, block: Any) -> None:
        if type(block).forward not in self.block_forwards:
            raise UnsupportedModel(f"{where} is a {_type(block)}. Supported: {_owners(self.block_forwards)}.")
        self._check_attention(where, block.attn)
        self._check_mlp(where, block.mlp)

    def _check_attention(self, where: str, attention: Any) -> None:
        if type(attention).forward not in self.attention_forwards:
            raise UnsupportedModel(
                f"{where} has the attention {_type(attention)}. Supported: {_owners(self.attention_forwards)}."
            )

    def _check_mlp(self, where: str, mlp: Any) -> None:
        if type(mlp) not in MLPS:
            raise UnsupportedModel(f"{where} has the MLP {_type(mlp)}. Supported: {_names(MLPS)}.")

    def _check_head(self) -> None:
        pool = self.attention_pool
        if self.model.global_pool not in POOLS or not isinstance(pool, AttentionPoolLatent | None):
            raise UnsupportedModel(
                f"{self._name} pools by {self.model.global_pool!r}, which is not defined for reduced tokens. "
                f"Supported: {', '.join(map(repr, POOLS))}."
            )
        if pool is None:
            return
        if pool.pos_embed is not None:
            raise UnsupportedModel(
                f"The attention pooling of {self._name} has its own positions, which merged tokens lack."
            )
        if "attn_mask" not in inspect.signature(AttentionPoolLatent.forward).parameters:
            raise UnsupportedModel("Attention pooling in this version of timm takes no mask. Use timm 1.0.16 or newer.")

    @property
    def _name(self) -> str:
        return f"{self.base_class.__module__.split('.')[0]}'s {_type(self.model)}"

    # -- the model's parts

    @property
    def stem(self) -> Any:
        """The module that makes tokens of patches."""
        return self.model.patch_embed

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
        return getattr(self.model, "cls_token", None) is not None

    @property
    def image_size(self) -> tuple[int, int, int]:
        height, width = self.stem.img_size
        return int(self.model.in_chans), int(height), int(width)

    @property
    def any_size(self) -> bool:
        """Whether the model takes images of other sizes than the one it was built for."""
        return bool(getattr(self.model, "dynamic_img_size", False))

    def grid_for(self, height: int, width: int) -> tuple[int, int]:
        embed = self.stem
        if not self.any_size and (height, width) != tuple(embed.img_size):
            raise ValueError(
                f"The image is {height} x {width}, the model takes {embed.img_size[0]} x {embed.img_size[1]}. "
                "Resize it, or build the model with img_size=... or dynamic_img_size=True."
            )
        ph, pw = embed.feat_ratio(as_scalar=False)
        if self.any_size and not embed.dynamic_img_pad and (height % ph or width % pw):
            raise ValueError(f"The image is {height} x {width}, which patches of {ph} x {pw} do not divide.")
        rows, columns = embed.dynamic_feat_size((height, width))
        return int(rows), int(columns)

    def shape(self, grid: tuple[int, int] | None = None) -> ModelShape:
        per_image, per_token = self.head_macs()
        prefix_read = 0 if self.attention_pool is not None and not self.pools_prefix else self.num_prefix
        return ModelShape(
            blocks=tuple(pieces.shape() for pieces in self.pieces()),
            grid=self.grid if grid is None else grid,
            num_prefix=self.num_prefix,
            has_cls=self.has_cls,
            stem_macs_per_patch=stem_macs(self.stem) + self.position_macs_per_patch,
            head_macs=per_image + per_token * prefix_read,
            head_macs_per_patch=per_token + self.extra_macs_per_patch,
            head_reads_patches=self.head_reads_patches,
        )

    def head_macs(self) -> tuple[int, int]:
        """MACs of pooling and classifier: (per image, per token that the head reads)."""
        return head_macs(self.model)

    @property
    def position_macs_per_patch(self) -> int:
        """MACs of computing positions."""
        return 0

    @property
    def extra_macs_per_patch(self) -> int:
        """Further MACs of the head for each patch token, but not for prefix tokens."""
        return 0

    # -- the head

    @property
    def attention_pool(self) -> Any:
        """The attention pooling of the head; None if there is none."""
        return getattr(self.model, "attn_pool", None)

    @property
    def pools_prefix(self) -> bool:
        """Whether a head that averages or attends reads prefix tokens too."""
        return False

    @property
    def head_reads_patches(self) -> bool:
        return self.model.global_pool != "token" or self.attention_pool is not None

    def embed(self, images: Tensor, **options: Any) -> Tensor:
        return self.embed_with_positions(images, **options)[0]

    def position_source(self, images: Tensor, **options: Any) -> PositionSource | None:
        return self.embed_with_positions(images, **options)[1]

    def final_norm(self, tokens: Tensor) -> Tensor:
        return self.model.norm(tokens)

    def features(self, encoded: Encoded) -> Tensor:
        """What ``forward_features`` of the model returns."""
        return self.final_norm(encoded.stream.tokens)

    def head(self, encoded: Encoded) -> Any:
        return self.predict(self.final_norm(encoded.stream.tokens), self.token_weights(encoded.stream))

    def token_weights(self, stream: Stream) -> Tensor | None:
        """Weights of patch tokens (B, N) in the head: how many patches each stands for."""
        return stream.size if self.reads_weights else None

    @property
    def head_averages(self) -> bool:
        """Whether the head averages or attends to patch tokens."""
        return self.attention_pool is not None or self.model.global_pool == "avg"

    @property
    def reads_weights(self) -> bool:
        """Whether a head that is called separately needs the weights of tokens."""
        return self.head_averages and self.reducer is not None and self.reducer.heads_weigh_by_size

    def predict(self, tokens: Tensor, weights: Tensor | None, pre_logits: bool = False) -> Any:
        """Run pooling and classifier on normed tokens (B, P + N, C)."""
        model: Any = self.model
        if not self.reads_weights:
            return self.base_class.forward_head(model, tokens, pre_logits)  # type: ignore[attr-defined]
        skip = 0 if self.pools_prefix else self.num_prefix
        pooled = self._pooled(tokens[:, skip:], weights, self.num_prefix - skip)
        x = model.head_drop(model.fc_norm(pooled))
        return x if pre_logits else model.head(x)

    def _pooled(self, tokens: Tensor, size: Tensor | None, prefix: int) -> Tensor:
        """Mean or attention pooling in which a token counts once for each patch it stands for."""
        if self.attention_pool is None:
            return mean_of_patches(tokens, size, prefix)
        bias = None if size is None else log_size_bias(size, prefix, tokens.dtype)
        return self.attention_pool(tokens, attn_mask=bias)

    @property
    def recomputes(self) -> bool:
        return bool(self.model.grad_checkpointing)

    # -- files

    def build_options(self) -> dict[str, Any]:
        model = self.model
        options = {
            "num_classes": model.num_classes,
            "in_chans": model.in_chans,
            "img_size": list(self.image_size[1:]),
            "embed_dim": model.embed_dim,
            "depth": len(model.blocks),
            "num_heads": self.pieces()[0].shape().heads,
            "global_pool": model.global_pool,
        }
        if not isinstance(self.stem, HybridEmbed):
            options["patch_size"] = list(self.stem.patch_size)
        if getattr(model, "dynamic_img_size", False):
            options["dynamic_img_size"] = True
        return options | drop_rates(model, model.blocks[-1])


def drop_rates(model: Any, last: Any) -> dict[str, float]:
    """All dropout rates of a model and its last block that are above 0, which matter for further training."""
    attn = getattr(last, "attn", None)
    rates = {
        "drop_rate": getattr(getattr(model, "head_drop", None), "p", 0.0),
        "pos_drop_rate": getattr(getattr(model, "pos_drop", None), "p", 0.0),
        "proj_drop_rate": getattr(getattr(attn, "proj_drop", None), "p", 0.0),
        "attn_drop_rate": getattr(getattr(attn, "attn_drop", None), "p", 0.0),
        "drop_path_rate": getattr(getattr(last, "drop_path1", None), "drop_prob", 0.0),
    }
    return {name: float(rate) for name, rate in rates.items() if rate}


def _type(module: Any) -> str:
    return type(module).__name__


def _names(types: tuple[type, ...]) -> str:
    return ", ".join(kind.__name__ for kind in types)


def _owners(forwards: tuple[Callable[..., Any], ...]) -> str:
    """The classes of some forward methods."""
    return ", ".join(forward.__qualname__.split(".")[0] for forward in forwards)
