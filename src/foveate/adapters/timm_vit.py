"""timm's VisionTransformer, in its variants: prefix tokens, LayerScale, qk-norm, gates, post-norm, pooling heads."""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import Any

import timm
from timm.layers import Attention, AttentionPoolLatent, GluMlp, Mlp, PatchDropout, PatchEmbed, SwiGLU, to_2tuple
from timm.models._features import feature_take_indices
from timm.models.deit import VisionTransformerDistilled
from timm.models.vision_transformer import Block, ResPostBlock, VisionTransformer
from torch import Tensor, nn

from foveate.adapters.base import CHILD, Adapter, BlockOps, Reduced, UnsupportedModel, linear_macs
from foveate.adapters.dense import spread_to_patches
from foveate.adapters.engine import encode
from foveate.adapters.heads import mean_of_patches, tag_weights, tagged_weights
from foveate.adapters.timm_blocks import TimmBlock
from foveate.adapters.timm_macs import block_shape, head_macs, stem_macs, stem_macs_of_patches
from foveate.core import log_size_bias
from foveate.cost import ModelShape, at_grid

POOLS = ("token", "avg", "map", "")


class ReducedTimm(Reduced):
    """What a reduced timm model does instead of its own forward methods."""

    def forward(self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False) -> Any:
        _refuse_mask(attn_mask, is_causal)
        tokens, size, keep = _final_tokens(self, x)
        return self._foveate_head(tokens, size, keep=keep)

    def forward_features(self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        """The tokens that are left after the last block and norm, (B, P + N', C)."""
        _refuse_mask(attn_mask, is_causal)
        tokens, size, keep = _final_tokens(self, x)
        # the head, called on its own, must still know how many patches each token stands for, or which still count
        if _head_masks_tokens(self):
            return tag_weights(tokens, keep)
        return tag_weights(tokens, size) if _head_weighs_tokens(self) else tokens

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Any:
        if _head_masks_tokens(self):
            return self._foveate_head(x, None, pre_logits, keep=tagged_weights(x))
        return self._foveate_head(x, tagged_weights(x) if _head_weighs_tokens(self) else None, pre_logits)

    def reset_classifier(self: Any, num_classes: int, global_pool: str | None = None) -> None:
        """A new classifier; another kind of pooling only where the plan does not hang on it."""
        _check_pooling(self, global_pool)
        super().reset_classifier(num_classes, global_pool)  # type: ignore[misc]
        self.foveate.shape = replace(self.foveate.shape, head_reads_patches=_head_reads_patches(self))

    def prune_intermediate_layers(
        self: Any, indices: int | list[int] = 1, prune_norm: bool = False, prune_head: bool = True
    ) -> list[int]:
        """Leave out the blocks behind the last one asked for, and what their reductions have learned."""
        if self.foveate.method.heads_weigh_by_size:
            raise ValueError(
                f"This model was reduced by {self.foveate.method!r} with all its {len(self.blocks)} blocks. "
                "Call restore_(model), prune it, and reduce it again."
            )
        _check_pooling(self, "" if prune_head else None)
        taken = super().prune_intermediate_layers(indices, prune_norm, prune_head)  # type: ignore[misc]
        for block in [block for block in self.foveate.modules_by_block if block >= len(self.blocks)]:
            del self.foveate.learned[str(block)]
        return taken

    def set_input_size(self: Any, img_size: Any = None, patch_size: Any = None) -> None:
        """Take images or patches of another size; positions the method has learned are resampled like the model's."""
        embed = self.patch_embed
        height, width = to_2tuple(img_size) if img_size is not None else embed.img_size
        ph, pw = to_2tuple(patch_size) if patch_size is not None else embed.patch_size
        if height % ph or width % pw:
            raise ValueError(f"The image is {height} x {width}, which patches of {ph} x {pw} do not divide.")
        shape = at_grid(self.foveate.shape, (height // ph, width // pw))
        if (ph, pw) != tuple(embed.patch_size):
            shape = replace(shape, stem_macs_per_patch=stem_macs_of_patches(self, ph, pw))
        resized = self.foveate.resized(shape)  # refuses before anything has changed
        for pruned in [block for block in resized.modules_by_block if block >= len(self.blocks)]:
            del resized.learned[str(pruned)]
        self.foveate.check_learned(resized.modules_by_block)
        frozen = [name for name, parameter in self.named_parameters() if not parameter.requires_grad]
        super().set_input_size(img_size, patch_size)  # type: ignore[misc]
        self.foveate = resized
        for name in frozen:
            self.get_parameter(name).requires_grad_(False)

    def no_weight_decay(self: Any) -> set[str]:
        return super().no_weight_decay() | self.foveate.no_weight_decay()  # type: ignore[misc]

    def group_matcher(self: Any, coarse: bool = False) -> dict[str, Any]:
        """What a block's reduction has learned counts as part of that block, for learning rates by depth."""
        groups = super().group_matcher(coarse)  # type: ignore[misc]
        return groups | {"blocks": [*groups["blocks"], (rf"^{CHILD}\.learned\.(\d+)", None)]}

    def _foveate_head(
        self: Any, tokens: Tensor, size: Tensor | None, pre_logits: bool = False, keep: Tensor | None = None
    ) -> Any:
        if keep is not None and _has_head_on_any_tokens(self):
            return super().forward_head(tokens, pre_logits, keep)  # type: ignore[misc]
        if isinstance(self, VisionTransformerDistilled) or not _head_weighs_tokens(self):
            return super().forward_head(tokens, pre_logits)  # type: ignore[misc]
        skip = 0 if self.pool_include_prefix else self.num_prefix_tokens
        x = self.head_drop(self.fc_norm(_pooled(self, tokens[:, skip:], size, self.num_prefix_tokens - skip)))
        return x if pre_logits else self.head(x)

    def forward_intermediates(
        self: Any,
        x: Tensor,
        indices: int | list[int] | None = None,
        return_prefix_tokens: bool = False,
        norm: bool = False,
        stop_early: bool = False,
        output_fmt: str = "NCHW",
        intermediates_only: bool = False,
        output_dict: bool = False,
        attn_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Any:
        """Feature maps of chosen blocks on the whole patch grid: every patch gets its token's features."""
        _refuse_mask(attn_mask, is_causal)
        if output_fmt not in ("NCHW", "NLC"):
            raise ValueError(f"output_fmt is NCHW or NLC; got {output_fmt!r}.")
        wanted, _ = feature_take_indices(len(self.blocks), indices)
        encoded = encode(TIMM, self, x, record=True)
        maps, prefixes = [], []
        for block in sorted(wanted):
            patches, prefix = spread_to_patches(encoded, block, self.num_prefix_tokens)
            maps.append(self.norm(patches) if norm else patches)
            prefixes.append(self.norm(prefix) if norm else prefix)
        if output_fmt == "NCHW":
            rows, columns = TIMM.grid(self, *x.shape[-2:])
            maps = [m.unflatten(1, (rows, columns)).permute(0, 3, 1, 2).contiguous() for m in maps]
        final = None if intermediates_only else self.norm(encoded.stream.tokens)
        return _package(maps, prefixes if self.num_prefix_tokens else None, final, return_prefix_tokens, output_dict)


def _package(
    maps: list[Tensor], prefixes: list[Tensor] | None, final: Tensor | None, with_prefix: bool, as_dict: bool
) -> Any:
    """timm's several ways to return intermediates."""
    if as_dict:
        result: dict[str, Any] = {"image_intermediates": maps}
        if with_prefix and prefixes is not None:
            result["image_intermediates_prefix"] = prefixes
        return result if final is None else result | {"image_features": final}
    listed: list[Any] = list(zip(maps, prefixes, strict=True)) if with_prefix and prefixes is not None else maps
    return listed if final is None else (final, listed)


def _final_tokens(model: Any, images: Tensor) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Tokens after the last norm, the patches each stands for, and which of them count, in training by masks."""
    stream = encode(TIMM, model, images).stream
    return model.norm(stream.tokens), stream.size, stream.keep


def _head_masks_tokens(model: Any) -> bool:
    """Whether tokens that training only masks must be hidden from a head that reads each of them."""
    reduction = model.foveate
    return _has_head_on_any_tokens(model) and reduction.method.trains_by_masks and reduction.training


def _has_head_on_any_tokens(model: Any) -> bool:
    return bool(getattr(type(model), "head_on_any_tokens", False))


def _head_weighs_tokens(model: Any) -> bool:
    averages = model.attn_pool is not None or model.global_pool == "avg"
    return averages and model.foveate.method.heads_weigh_by_size


def _head_reads_patches(model: Any) -> bool:
    return model.global_pool != "token" or model.attn_pool is not None or hasattr(model, "aux_head")


def _check_pooling(model: Any, wanted: str | None) -> None:
    """Whether the head may pool by ``wanted`` from now on: where tokens are not weighed it is as free as in timm."""
    if wanted in (None, model.global_pool):
        return
    reduction = model.foveate
    if reduction.method.heads_weigh_by_size or reduction.exact_last_block or wanted not in POOLS:
        raise ValueError(
            f"This model was reduced for pooling by {model.global_pool!r} and cannot change to {wanted!r}. "
            "Call restore_(model), reset the classifier, and reduce it again."
        )


def _pooled(model: Any, tokens: Tensor, size: Tensor | None, prefix: int) -> Tensor:
    """Mean or attention pooling in which a token counts as often as it stands for a patch."""
    if model.attn_pool is None:
        return mean_of_patches(tokens, size, prefix)
    bias = None if size is None else log_size_bias(size, prefix, tokens.dtype)
    return model.attn_pool(tokens, attn_mask=bias)


def _refuse_mask(attn_mask: Tensor | None, is_causal: bool) -> None:
    if attn_mask is not None or is_causal:
        raise ValueError("A reduced model takes no attn_mask and no is_causal: tokens do not keep their places.")


class TimmAdapter(Adapter):
    family = "timm VisionTransformer (ViT, DeiT, DINOv2, CLIP, SigLIP, ...)"
    library = "timm"
    mixin = ReducedTimm
    _ops = TimmBlock()

    def matches(self, model: nn.Module) -> bool:
        return isinstance(model, VisionTransformer)

    def check(self, model: Any) -> None:
        self._check_class(model)
        if type(model.patch_embed) is not PatchEmbed:
            raise UnsupportedModel(f"{_who(model)} embeds patches by {_type(model.patch_embed)}; PatchEmbed is known.")
        if isinstance(model.patch_drop, PatchDropout):
            raise UnsupportedModel(f"{_who(model)} drops patches at random. Build it with patch_drop_rate=0.")
        for i, block in enumerate(model.blocks):
            self._check_block(model, i, block)
        self._check_head(model)

    @staticmethod
    def _check_block(model: Any, index: int, block: Any) -> None:
        """By their forward methods, so that a subclass that only fixes options passes."""
        where = f"block {index} of {_who(model)}"
        if type(block).forward not in (Block.forward, ResPostBlock.forward):
            raise UnsupportedModel(f"{where} is a {_type(block)}. Known: Block, ResPostBlock.")
        if type(block.attn).forward is not Attention.forward:
            raise UnsupportedModel(f"{where} attends by {_type(block.attn)}. Known: Attention.")
        if type(block.mlp) not in (Mlp, GluMlp, SwiGLU):
            raise UnsupportedModel(f"{where} has the MLP {_type(block.mlp)}. Known: Mlp, GluMlp, SwiGLU.")

    @staticmethod
    def _check_class(model: Any) -> None:
        base = VisionTransformerDistilled if isinstance(model, VisionTransformerDistilled) else VisionTransformer
        ours = ("forward", "forward_features", "forward_head", "forward_intermediates", "pool", "_pos_embed")
        # a class may say that its own head takes any number of patch tokens, and counts each once (LV-ViT)
        own_head = {"forward_head"} if _has_head_on_any_tokens(model) else set()
        changed = [name for name in ours if getattr(type(model), name) is not getattr(base, name)]
        changed = [name for name in changed if name not in own_head]
        if changed:
            raise UnsupportedModel(
                f"{_who(model)} is a {base.__name__} that overrides {', '.join(changed)}, "
                "so foveate cannot know what it computes."
            )

    @staticmethod
    def _check_head(model: Any) -> None:
        if model.global_pool not in POOLS or not isinstance(model.attn_pool, AttentionPoolLatent | None):
            raise UnsupportedModel(
                f"{_who(model)} pools by {model.global_pool!r}, which is not defined for reduced tokens. "
                f"Defined: {', '.join(map(repr, POOLS))}."
            )
        if model.attn_pool is None:
            return
        if model.attn_pool.pos_embed is not None:
            raise UnsupportedModel(
                f"The attention pooling of {_who(model)} has positions of its own, which merged tokens lack."
            )
        if "attn_mask" not in inspect.signature(AttentionPoolLatent.forward).parameters:
            raise UnsupportedModel("This timm's attention pooling takes no mask. Use timm 1.0.16 or newer.")

    def ops(self, model: Any) -> BlockOps:
        return self._ops

    def num_prefix(self, model: Any) -> int:
        return int(model.num_prefix_tokens)

    def has_cls(self, model: Any) -> bool:
        return model.cls_token is not None

    def blocks(self, model: Any) -> list[nn.Module]:
        return list(model.blocks)

    def grid(self, model: Any, height: int, width: int) -> tuple[int, int]:
        embed: PatchEmbed = model.patch_embed
        if not model.dynamic_img_size and embed.img_size is not None and (height, width) != tuple(embed.img_size):
            raise ValueError(
                f"The image is {height} x {width}, the model takes {embed.img_size[0]} x {embed.img_size[1]}. "
                "Resize it, or build the model with img_size=... or dynamic_img_size=True."
            )
        ph, pw = embed.patch_size
        if not embed.dynamic_img_pad and (height % ph or width % pw):
            raise ValueError(f"The image is {height} x {width}, which patches of {ph} x {pw} do not divide.")
        rows, columns = embed.dynamic_feat_size((height, width))
        return int(rows), int(columns)

    def image_size(self, model: Any) -> tuple[int, int, int]:
        height, width = model.patch_embed.img_size
        return int(model.in_chans), int(height), int(width)

    def shape(self, model: Any, grid: tuple[int, int]) -> ModelShape:
        per_token, per_image = head_macs(model)
        prefix_read = 0 if model.attn_pool is not None and not model.pool_include_prefix else self.num_prefix(model)
        return ModelShape(
            blocks=tuple(block_shape(block) for block in model.blocks),
            grid=grid,
            num_prefix=self.num_prefix(model),
            has_cls=self.has_cls(model),
            stem_macs_per_patch=stem_macs(model.patch_embed),
            head_macs=per_image + per_token * prefix_read,
            head_macs_per_patch=per_token + linear_macs(getattr(model, "aux_head", None)),
            head_reads_patches=_head_reads_patches(model),
        )

    def embed(self, model: Any, images: Tensor, **options: Any) -> Tensor:
        self.grid(model, *images.shape[-2:])
        return model.norm_pre(model._pos_embed(model.patch_embed(images)))

    def final_norm(self, model: Any, tokens: Tensor) -> Tensor:
        return model.norm(tokens)

    def checkpointing(self, model: Any) -> bool:
        return bool(model.grad_checkpointing)

    def recipe(self, model: Any) -> dict[str, Any] | None:
        architecture = (getattr(model, "pretrained_cfg", None) or {}).get("architecture")
        if not architecture:
            return None
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
        options |= _drop_rates(model) | getattr(model, "recipe_options", {})  # the last are an architecture's own
        return {"library": "timm", "architecture": architecture, "options": options}

    def rebuild(self, recipe: dict[str, Any]) -> nn.Module:
        return timm.create_model(recipe["architecture"], pretrained=False, **recipe["options"])


def _drop_rates(model: Any) -> dict[str, float]:
    """Dropout of all kinds, where there is any: it matters to further training."""
    last = model.blocks[-1]
    rates = {
        "drop_rate": getattr(model.head_drop, "p", 0.0),
        "pos_drop_rate": getattr(model.pos_drop, "p", 0.0),
        "proj_drop_rate": getattr(last.attn.proj_drop, "p", 0.0),
        "attn_drop_rate": getattr(last.attn.attn_drop, "p", 0.0),
        "drop_path_rate": getattr(last.drop_path1, "drop_prob", 0.0),
    }
    return {name: float(rate) for name, rate in rates.items() if rate}


def _who(model: Any) -> str:
    return f"{type(model).__module__.split('.')[0]}'s {type(model).__name__}"


def _type(module: Any) -> str:
    return type(module).__name__


TIMM = TimmAdapter()
ReducedTimm._foveate_adapter = TIMM
