"""timm's NaFlexVit: images of one size, or patches of images of many sizes in one batch."""

from __future__ import annotations

from typing import Any

import torch
from timm.layers import Attention, AttentionRope
from timm.models.eva import EvaAttention, EvaBlock
from timm.models.naflexvit import NaFlexEmbeds, NaFlexVit
from timm.models.vision_transformer import Block, ResPostBlock
from torch import Tensor, nn

from foveate.adapters.pooling import tag_weights
from foveate.adapters.positions import PositionSource
from foveate.adapters.ragged import Group, does_nothing, encode_by_size, in_order, padded
from foveate.adapters.registry import register_family
from foveate.adapters.rotary import RotaryTable
from foveate.adapters.timm_encoder import TimmEncoder
from foveate.adapters.timm_reduced import ReducedTimm, refuse_patches


class ReducedNaFlex(ReducedTimm):
    """Methods of a reduced ``NaFlexVit``: images of one size, or patches of images of many sizes, with padding."""

    def forward(  # type: ignore[override]
        self: Any, x: Any, patch_coord: Any = None, patch_valid: Any = None, attn_mask: Tensor | None = None
    ) -> Any:
        given = x if isinstance(x, dict) else {"patches": x, "patch_coord": patch_coord}
        given = {"patch_valid": patch_valid, "attn_mask": attn_mask} | given
        if given.get("patch_coord") is None:
            refuse_patches(x, patch_valid, attn_mask)
            return super().forward(x)
        return self.forward_head(**self.forward_features(**given))

    def forward_features(  # type: ignore[override]
        self: Any, patches: Tensor, patch_coord: Any = None, patch_valid: Any = None, attn_mask: Any = None
    ) -> Any:
        """The tokens that are left, (B, P + N', C); for patches a dictionary like timm's, padded at the end."""
        if patch_coord is None:
            refuse_patches(patches, patch_valid, attn_mask)
            return super().forward_features(patches)
        if does_nothing(self.foveate):
            return self._foveate_base.forward_features(self, patches, patch_coord, patch_valid, attn_mask)
        if attn_mask is not None:
            raise ValueError("A reduced model takes no attn_mask. Mark padding by patch_valid.")
        family = self._family
        groups = encode_by_size(family, unpatched(self.embeds, patches, patch_coord, patch_valid))
        tokens = in_order(groups, [family.final_norm(group.encoded.stream.tokens) for group in groups])
        counts = [len(one) - family.num_prefix for one in tokens]
        length = max(counts)
        valid = torch.arange(length, device=patches.device) < torch.tensor(counts, device=patches.device)[:, None]
        whole = padded(tokens, [None] * len(tokens), family.num_prefix + length)
        if family.reads_weights:
            weights = [group.encoded.stream.size for group in groups]
            sizes = in_order(groups, [_sizes(*pair, family.num_prefix) for pair in zip(groups, weights, strict=True)])
            tag_weights(whole, padded([one.unsqueeze(-1) for one in sizes], [None] * len(sizes), length).squeeze(-1))
        return {"patches": whole, "patch_valid": valid}

    def forward_head(self: Any, patches: Tensor, pre_logits: bool = False, patch_valid: Tensor | None = None) -> Any:
        weighs = self._family.reads_weights and not does_nothing(self.foveate)
        if patch_valid is None or weighs:  # padding has no weight
            return super().forward_head(patches, pre_logits)
        return self._foveate_base.forward_head(self, patches, pre_logits, patch_valid)

    def forward_intermediates(
        self, x: Any, *args: Any, patch_coord: Any = None, patch_valid: Any = None, **options: Any
    ) -> Any:
        refuse_patches(x, patch_coord, patch_valid)
        return super().forward_intermediates(x, *args, **options)


def _sizes(group: Group, size: Tensor | None, prefix: int) -> Tensor:
    """How many patches each token of a group stands for, also if each is one."""
    tokens = group.encoded.stream.tokens
    return torch.ones_like(tokens[:, prefix:, 0]) if size is None else size


def unpatched(embeds: Any, patches: Tensor, places: Tensor, valid: Tensor | None) -> list[Tensor]:
    """The images (C, H, W) that patches (B, N, P * P * C) were cut from; ``valid`` (B, N) leaves out padding.

    Raises:
        ValueError: for patches of another size than the model's, and for images that are not whole.
    """
    height, width = embeds.patch_size
    shape = (height, width, -1) if embeds.channels_last else (-1, height, width)
    given = patches.shape[2:4] if embeds.channels_last else patches.shape[3:5]
    if patches.dim() == 5 and tuple(given) != (height, width):
        raise ValueError(
            f"A reduced model takes patches of its own size, {height} x {width}; got {given[0]} x {given[1]}."
        )
    if embeds.pos_embed_use_grid_sample:
        raise ValueError("A model with pos_embed_use_grid_sample=True places patches in a way that images do not.")
    shown = torch.ones_like(places[..., 0], dtype=torch.bool) if valid is None else valid.bool()
    images = []
    for number, (own, place, seen) in enumerate(zip(patches, places, shown, strict=True)):
        grid, order = whole_grid(place[seen], number)
        cut = own[seen][order].unflatten(0, grid).flatten(2).unflatten(2, shape)
        cut = cut if embeds.channels_last else cut.movedim(2, -1)  # (rows, columns, P, P, C)
        images.append(cut.permute(4, 0, 2, 1, 3).flatten(3).flatten(1, 2))
    return images


def whole_grid(places: Tensor, number: int) -> tuple[tuple[int, int], Tensor]:
    """Rows and columns of one image from the places (N, 2) of its patches, and their order row by row.

    Raises:
        ValueError: if a patch of the rectangle is missing or there twice.
    """
    if not len(places):
        raise ValueError(f"Image {number} of the batch has no visible patch: its patch_valid is all zero.")
    rows, columns = (int(n) + 1 for n in places.amax(dim=0))
    index = places[:, 0] * columns + places[:, 1]
    order = index.argsort()
    if len(places) != rows * columns or bool((index[order] != torch.arange(len(index), device=index.device)).any()):
        raise ValueError(
            f"Image {number} of the batch has {len(places)} patches at places of a grid of {rows} x {columns}. "
            "A reduced model takes whole rectangles of patches, each once."
        )
    return (rows, columns), order


@register_family
class TimmNaFlex(TimmEncoder):
    """timm's ``NaFlexVit``."""

    title = "timm NaFlexVit (images, or patches of many grids)"
    mixin = ReducedNaFlex
    modules = ("naflexvit",)
    stems = (NaFlexEmbeds,)
    block_forwards = (Block.forward, ResPostBlock.forward, EvaBlock.forward)
    attention_forwards = (Attention.forward, EvaAttention.forward, AttentionRope.forward)
    embedding_names = TimmEncoder.embedding_names | {"embeds"}

    @classmethod
    def matches(cls, model: nn.Module) -> bool:
        return isinstance(model, NaFlexVit)

    @property
    def known_class(self) -> type:
        return NaFlexVit

    @property
    def positions_between_patches(self) -> bool:  # type: ignore[override]
        return self.model.rope is not None

    @property
    def stem(self) -> Any:
        return self.model.embeds

    @property
    def has_cls(self) -> bool:
        return bool(self.model.has_class_token)

    @property
    def any_size(self) -> bool:
        return True

    @property
    def image_size(self) -> tuple[int, int, int]:
        """The size that it was built for, or timm's for these weights, or that of its table of positions."""
        rows, columns = self.stem.pos_embed_grid_size or (16, 16)
        ph, pw = self.stem.patch_size
        known = self._config.get("input_size", (0, rows * ph, columns * pw))[1:]
        height, width = getattr(self.stem, "default_img_size", None) or known
        return int(self.model.in_chans), int(height), int(width)

    @property
    def pools_prefix(self) -> bool:
        return bool(self.model.pool_include_prefix)

    @property
    def position_macs_per_patch(self) -> int:
        return int(self.model.rope.freqs.numel()) if self.model.rope_is_mixed else 0

    def embed_with_positions(self, images: Tensor, **options: Any) -> tuple[Tensor, PositionSource | None]:
        grid, model = self.grid_for(*images.shape[-2:]), self.model
        tokens, _ = model.embeds(images)
        table = None if model.rope is None else model.rope.get_embed(shape=grid)
        return model.norm_pre(tokens), None if table is None else RotaryTable(grid, table)
