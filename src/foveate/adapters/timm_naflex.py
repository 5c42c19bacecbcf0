"""timm's NaFlexVit, for images: all images of a batch have one grid of patches."""

from __future__ import annotations

from typing import Any

from timm.layers import Attention, AttentionRope
from timm.models.eva import EvaAttention, EvaBlock
from timm.models.naflexvit import NaFlexEmbeds, NaFlexVit
from timm.models.vision_transformer import Block, ResPostBlock
from torch import Tensor, nn

from foveate.adapters.positions import PositionSource
from foveate.adapters.registry import register_family
from foveate.adapters.rotary import RotaryTable
from foveate.adapters.timm_encoder import TimmEncoder
from foveate.adapters.timm_reduced import ReducedTimm, refuse_patches


class ReducedNaFlex(ReducedTimm):
    """Methods of a reduced ``NaFlexVit``, which takes images but no patches with coordinates."""

    def forward(self, x: Any, *patches: Any, **options: Any) -> Any:
        refuse_patches(x, *patches, *options.values())
        return super().forward(x)

    def forward_features(self, patches: Any, *more: Any, **options: Any) -> Tensor:  # type: ignore[override]
        refuse_patches(patches, *more, *options.values())
        return super().forward_features(patches)

    def forward_head(self, patches: Tensor, pre_logits: bool = False, patch_valid: Tensor | None = None) -> Any:
        refuse_patches(patches, patch_valid)
        return super().forward_head(patches, pre_logits)

    def forward_intermediates(
        self, x: Any, *args: Any, patch_coord: Any = None, patch_valid: Any = None, **options: Any
    ) -> Any:
        refuse_patches(x, patch_coord, patch_valid)
        return super().forward_intermediates(x, *args, **options)


@register_family
class TimmNaFlex(TimmEncoder):
    """timm's ``NaFlexVit``."""

    title = "timm NaFlexVit (images of one size in a batch)"
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
