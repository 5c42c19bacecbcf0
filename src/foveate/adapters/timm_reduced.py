"""Methods that replace those of a timm VisionTransformer once it is reduced."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from timm.layers import to_2tuple
from timm.models._features import feature_take_indices
from torch import Tensor

from foveate.adapters.pooling import tag_weights, tagged_weights
from foveate.adapters.reduced import CHILD, Reduced
from foveate.adapters.stream import spread_to_patches
from foveate.adapters.timm_macs import stem_macs_of_patches
from foveate.costs import at_grid


class ReducedTimm(Reduced):
    """Methods of timm's VisionTransformer for a reduced model."""

    def forward(self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False) -> Any:
        _refuse_mask(attn_mask, is_causal)
        family = self._family
        return family.head(family.encode(x))

    def forward_features(self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        """The tokens that are left after the last block and norm, (B, P + N', C)."""
        _refuse_mask(attn_mask, is_causal)
        family = self._family
        stream = family.encode(x).stream
        tokens = family.final_norm(stream.tokens)
        # a head that is called separately must know how many patches each token stands for, or which tokens still count
        return tag_weights(tokens, family.token_weights(stream)) if family.reads_weights else tokens

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Any:
        family = self._family
        return family.predict(x, tagged_weights(x) if family.reads_weights else None, pre_logits)

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
            raise ValueError(f"output_fmt must be NCHW or NLC, got {output_fmt!r}.")
        family = self._family
        wanted, _ = feature_take_indices(len(family.blocks), indices)
        encoded = family.encode(x, record=True)
        maps, prefixes = [], []
        for block in sorted(wanted):
            patches, prefix = spread_to_patches(encoded, block, family.num_prefix)
            maps.append(family.final_norm(patches) if norm else patches)
            prefixes.append(family.final_norm(prefix) if norm else prefix)
        if output_fmt == "NCHW":
            grid = family.grid_for(*x.shape[-2:])
            maps = [m.unflatten(1, grid).permute(0, 3, 1, 2).contiguous() for m in maps]
        final = None if intermediates_only else family.features(encoded)
        return _package(maps, prefixes if family.num_prefix else None, final, return_prefix_tokens, output_dict)

    def reset_classifier(self: Any, num_classes: int, global_pool: str | None = None) -> None:
        """Replace the classifier, and the pooling if the plan does not depend on it."""
        _check_pooling(self, global_pool)
        super().reset_classifier(num_classes, global_pool)  # type: ignore[misc]
        self.foveate.shape = replace(self.foveate.shape, head_reads_patches=self._family.head_reads_patches)

    def prune_intermediate_layers(
        self: Any, indices: int | list[int] = 1, prune_norm: bool = False, prune_head: bool = True
    ) -> list[int]:
        """Remove the blocks after the last requested one, and the learned weights of their reductions."""
        if self.foveate.heads_weigh_by_size:
            raise ValueError(
                f"This model was reduced by {self.foveate.method!r} with all its {len(self.blocks)} blocks. "
                "Call restore_(model), prune it, and reduce it again."
            )
        _check_pooling(self, "" if prune_head else None)
        taken = super().prune_intermediate_layers(indices, prune_norm, prune_head)  # type: ignore[misc]
        self.foveate.drop_blocks_from(len(self.blocks))
        return taken

    def set_input_size(self: Any, img_size: Any = None, patch_size: Any = None) -> None:
        """Change the size of images or patches; positions learned by the method are resampled like the model's."""
        embed = self.patch_embed
        if not hasattr(self._foveate_base, "set_input_size"):
            raise ValueError(f"{type(self).__name__} cannot change its image size. Build it with img_size=...")
        size = to_2tuple(img_size) if img_size is not None else embed.img_size
        ph, pw = to_2tuple(patch_size) if patch_size is not None else embed.patch_size
        shape = at_grid(self.foveate.shape, _grid(embed, size, (ph, pw)))
        if (ph, pw) != tuple(embed.patch_size):
            shape = replace(shape, stem_macs_per_patch=stem_macs_of_patches(self, ph, pw))
        resized = self.foveate.resized(shape)  # raises before anything has changed
        resized.drop_blocks_from(len(self.blocks))
        self.foveate.check_learned(resized.modules_by_block)
        frozen = [name for name, parameter in self.named_parameters() if not parameter.requires_grad]
        super().set_input_size(img_size, patch_size)  # type: ignore[misc]
        self.foveate = resized
        for name in frozen:
            self.get_parameter(name).requires_grad_(False)

    def no_weight_decay(self: Any) -> set[str]:
        return super().no_weight_decay() | self.foveate.no_weight_decay()  # type: ignore[misc]

    def group_matcher(self: Any, coarse: bool = False) -> dict[str, Any]:
        """Group the weights of a block's reduction with that block, for layer-wise learning rates."""
        groups = super().group_matcher(coarse)  # type: ignore[misc]
        return groups | {"blocks": [*groups["blocks"], (rf"^{CHILD}\.learned\.(\d+)", None)]}


def _grid(embed: Any, size: tuple[int, int], patch: tuple[int, int]) -> tuple[int, int]:
    """Rows and columns of patches of another size, in images of another size."""
    ratio = getattr(embed, "feature_ratio", (1, 1))  # of a network in front of the patches
    places = [pixels // reduced for pixels, reduced in zip(size, ratio, strict=True)]
    if any(place < side for place, side in zip(places, patch, strict=True)):
        raise ValueError(f"An image of {size[0]} x {size[1]} is smaller than a patch of {patch[0]} x {patch[1]}.")
    rounded = [-(-n // p) if embed.dynamic_img_pad else n // p for n, p in zip(places, patch, strict=True)]
    return rounded[0], rounded[1]


def _package(
    maps: list[Tensor], prefixes: list[Tensor] | None, final: Tensor | None, with_prefix: bool, as_dict: bool
) -> Any:
    """Return intermediates in the form that the options of timm ask for."""
    if as_dict:
        result: dict[str, Any] = {"image_intermediates": maps}
        if with_prefix and prefixes is not None:
            result["image_intermediates_prefix"] = prefixes
        return result if final is None else result | {"image_features": final}
    listed: list[Any] = list(zip(maps, prefixes, strict=True)) if with_prefix and prefixes is not None else maps
    return listed if final is None else (final, listed)


def _check_pooling(model: Any, wanted: str | None) -> None:
    """Raise ``ValueError`` if the head cannot change its pooling to ``wanted``. It can if it does not weigh tokens."""
    if wanted in (None, model.global_pool):
        return
    reducer = model.foveate
    if reducer.heads_weigh_by_size or reducer.exact_last_block or wanted not in ("token", "avg", "map", ""):
        raise ValueError(
            f"This model was reduced for pooling by {model.global_pool!r} and cannot change to {wanted!r}. "
            "Call restore_(model), reset the classifier, and reduce it again."
        )


def refuse_patches(x: Any, *given: Any) -> None:
    """Raise ``ValueError`` for patches with coordinates or masks: a batch may have other grids, and padding."""
    if isinstance(x, dict) or any(value is not None for value in given):
        raise ValueError(
            "A reduced model takes images (batch, channels, height, width), which all have the same grid of patches; "
            "got patches with coordinates or masks. Pass images of each size in a batch of their own."
        )


def _refuse_mask(attn_mask: Tensor | None, is_causal: bool) -> None:
    if attn_mask is not None or is_causal:
        raise ValueError(
            "A reduced model takes no attn_mask and no is_causal, because tokens do not keep their positions."
        )
