"""timm's VisionTransformer and its variants: prefix tokens, LayerScale, qk-norm, gates, post-norm, hybrids."""

from __future__ import annotations

from typing import Any

from timm.layers import Attention, HybridEmbed, PatchEmbed
from timm.models.deit import VisionTransformerDistilled
from timm.models.vision_transformer import (
    Block,
    ParallelScalingBlock,
    ParallelThingsBlock,
    ResPostBlock,
    VisionTransformer,
)
from torch import Tensor, nn

from foveate.adapters.blocks import BlockPieces
from foveate.adapters.positions import PositionSource
from foveate.adapters.registry import register_family
from foveate.adapters.timm_blocks import timm_pieces
from foveate.adapters.timm_encoder import TimmEncoder
from foveate.adapters.timm_parallel import TimmParallelScaling, TimmParallelThings
from foveate.adapters.timm_weights import convert_weights


@register_family
class TimmVit(TimmEncoder):
    """timm's ``VisionTransformer``."""

    title = "timm VisionTransformer (ViT, DeiT, DINOv2, CLIP, SigLIP, ...)"
    stems = (PatchEmbed, HybridEmbed)
    block_forwards = (Block.forward, ResPostBlock.forward, ParallelScalingBlock.forward, ParallelThingsBlock.forward)
    attention_forwards = (Attention.forward,)

    @classmethod
    def matches(cls, model: nn.Module) -> bool:
        return isinstance(model, VisionTransformer)

    @property
    def known_class(self) -> type:
        return VisionTransformerDistilled if self._is_distilled else VisionTransformer

    @property
    def _is_distilled(self) -> bool:
        return isinstance(self.model, VisionTransformerDistilled)

    def _check_block(self, where: str, block: Any) -> None:
        if type(block).forward is ParallelScalingBlock.forward:
            return
        if type(block).forward is not ParallelThingsBlock.forward:
            super()._check_block(where, block)
            return
        for branch in block.attns:
            self._check_attention(where, branch.attn)
        for branch in block.ffns:
            self._check_mlp(where, branch.mlp)

    def pieces(self) -> list[BlockPieces]:
        parallel = {ParallelScalingBlock: TimmParallelScaling, ParallelThingsBlock: TimmParallelThings}
        return [parallel.get(type(block), timm_pieces)(block) for block in self.model.blocks]

    @property
    def pools_prefix(self) -> bool:
        return bool(self.model.pool_include_prefix)

    def embed_with_positions(self, images: Tensor, **options: Any) -> tuple[Tensor, PositionSource | None]:
        self.grid_for(*images.shape[-2:])
        model = self.model
        return model.norm_pre(model._pos_embed(model.patch_embed(images))), None

    @property
    def head_averages(self) -> bool:
        return not self._is_distilled and (self.attention_pool is not None or self.model.global_pool == "avg")

    def build_options(self) -> dict[str, Any]:
        model = self.model
        own = {"class_token": model.cls_token is not None, "fc_norm": not isinstance(model.fc_norm, nn.Identity)}
        return super().build_options() | own

    def convert_weights(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        return convert_weights(weights, self.model)
