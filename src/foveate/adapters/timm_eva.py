"""timm's Eva: EVA-02, DINOv3, the Perception Encoder and ViTs with rotary positions, axial or learned."""

from __future__ import annotations

from typing import Any

from timm.layers import AttentionRope
from timm.models.eva import Eva, EvaAttention, EvaBlock, EvaBlockPostNorm
from torch import Tensor, nn

from foveate.adapters.positions import PositionSource
from foveate.adapters.registry import register_family
from foveate.adapters.rotary import RotaryTable
from foveate.adapters.timm_encoder import TimmEncoder


@register_family
class TimmEva(TimmEncoder):
    """timm's ``Eva``."""

    title = "timm Eva (EVA-02, DINOv3, Perception Encoder, RoPE ViT, ...)"
    block_forwards = (EvaBlock.forward, EvaBlockPostNorm.forward)
    attention_forwards = (EvaAttention.forward, AttentionRope.forward)
    modules = ("eva",)
    saved_options = TimmEncoder.saved_options | {"use_fc_norm", "use_post_transformer_norm"}

    @classmethod
    def matches(cls, model: nn.Module) -> bool:
        return isinstance(model, Eva)

    @property
    def known_class(self) -> type:
        return Eva

    @property
    def positions_between_patches(self) -> bool:  # type: ignore[override]
        return self.model.rope is not None

    @property
    def pools_prefix(self) -> bool:
        return self.attention_pool is not None

    @property
    def position_macs_per_patch(self) -> int:
        """Learned frequencies become angles by a multiplication; fixed ones are tables."""
        return int(self.model.rope.freqs.numel()) if self.model.rope_mixed else 0

    def embed_with_positions(self, images: Tensor, **options: Any) -> tuple[Tensor, PositionSource | None]:
        grid, model = self.grid_for(*images.shape[-2:]), self.model
        tokens, table = model._pos_embed(model.patch_embed(images))
        return model.norm_pre(tokens), None if table is None else RotaryTable(grid, table)

    def build_options(self) -> dict[str, Any]:
        model = self.model
        return super().build_options() | {
            "class_token": model.cls_token is not None,
            "use_fc_norm": not isinstance(model.fc_norm, nn.Identity),
            "use_post_transformer_norm": not isinstance(model.norm, nn.Identity),
        }
