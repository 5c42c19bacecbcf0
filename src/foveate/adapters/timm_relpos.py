"""timm's BEiT and VisionTransformerRelPos: a bias on each pair of tokens, from a table or a small network."""

from __future__ import annotations

from typing import Any

import torch
from timm.layers import RelPosBias, RelPosMlp
from timm.models import beit, vision_transformer_relpos
from timm.models.beit import Beit
from timm.models.vision_transformer_relpos import VisionTransformerRelPos
from torch import Tensor, nn

from foveate.adapters.blocks import BlockPieces, Heads, linear_macs
from foveate.adapters.pair_bias import BiasRows, PairBias, bias_of_pairs
from foveate.adapters.positions import PositionSource
from foveate.adapters.registry import register_family
from foveate.adapters.timm_blocks import TimmBlock, TimmPostNormBlock
from foveate.adapters.timm_encoder import TimmEncoder


class Biased(BlockPieces):
    """Pieces of a block whose attention has a bias for each pair of tokens."""

    argument = "shared_rel_pos"
    """Name under which the block takes the bias that all blocks share."""

    def whole(self, x: Tensor, rows: Any = None) -> Tensor:
        if rows is None:
            return self.block(x)
        if rows.index is not None:
            return self.whole_in_pieces(x, rows)
        return self.block(x, **{self.argument: rows.source.shared})

    def placed(self, heads: Heads, query_rows: Any, key_rows: Any) -> tuple[Heads, Tensor | None]:
        if query_rows is None:
            return heads, None
        assert isinstance(query_rows, BiasRows)
        return heads, bias_of_pairs(query_rows, key_rows).to(heads.q.dtype)


class TimmRelPosBlock(Biased, TimmBlock):
    """timm's ``RelPosBlock``."""


class TimmRelPosPostNormBlock(Biased, TimmPostNormBlock):
    """timm's ``ResPostRelPosBlock``."""


class TimmBeitBlock(Biased, TimmBlock):
    """The block of timm's ``Beit``."""

    argument = "shared_rel_pos_bias"


class TimmBiased(TimmEncoder):
    """What both have in common: images of one size, and a source of biases."""

    def embed_with_positions(self, images: Tensor, **options: Any) -> tuple[Tensor, PositionSource | None]:
        grid = self.grid_for(*images.shape[-2:])
        return self._embedded(images), self._biases(grid)

    def _embedded(self, images: Tensor) -> Tensor:
        model = self.model
        x = model.patch_embed(images)
        return x if model.cls_token is None else torch.cat([model.cls_token.expand(x.shape[0], -1, -1), x], dim=1)

    def _biases(self, grid: tuple[int, int]) -> PositionSource | None:
        raise NotImplementedError


@register_family
class TimmRelPos(TimmBiased):
    """timm's ``VisionTransformerRelPos``."""

    title = "timm VisionTransformerRelPos"
    modules = ("vision_transformer_relpos",)
    block_forwards = (
        vision_transformer_relpos.RelPosBlock.forward,
        vision_transformer_relpos.ResPostRelPosBlock.forward,
    )
    attention_forwards = (vision_transformer_relpos.RelPosAttention.forward,)

    @classmethod
    def matches(cls, model: nn.Module) -> bool:
        return isinstance(model, VisionTransformerRelPos)

    @property
    def known_class(self) -> type:
        return VisionTransformerRelPos

    def pieces(self) -> list[BlockPieces]:
        post = vision_transformer_relpos.ResPostRelPosBlock
        return [(TimmRelPosPostNormBlock if isinstance(b, post) else TimmRelPosBlock)(b) for b in self.model.blocks]

    def _biases(self, grid: tuple[int, int]) -> PositionSource:
        shared = self.model.shared_rel_pos
        return PairBias(grid, None if shared is None else shared.get_bias(), self._own)

    def _own(self, block: int) -> Tensor | None:
        bias = self.model.blocks[block].attn.rel_pos
        return None if bias is None else bias.get_bias()

    def head_macs(self) -> tuple[int, int]:
        """The networks that compute biases cost the same for every image; they are counted here."""
        per_image, per_token = super().head_macs()
        found = [self.model.shared_rel_pos, *(block.attn.rel_pos for block in self.model.blocks)]
        return per_image + sum(_bias_macs(bias) for bias in found), per_token

    def build_options(self) -> dict[str, Any]:
        model = self.model
        own = {"class_token": model.cls_token is not None, "fc_norm": not isinstance(model.fc_norm, nn.Identity)}
        return super().build_options() | own


@register_family
class TimmBeit(TimmBiased):
    """timm's ``Beit``."""

    title = "timm Beit (BEiT, BEiT v2)"
    modules = ("beit",)
    block_forwards = (beit.Block.forward,)
    attention_forwards = (beit.Attention.forward,)

    @classmethod
    def matches(cls, model: nn.Module) -> bool:
        return isinstance(model, Beit)

    @property
    def known_class(self) -> type:
        return Beit

    def pieces(self) -> list[BlockPieces]:
        return [TimmBeitBlock(block) for block in self.model.blocks]

    def _embedded(self, images: Tensor) -> Tensor:
        x = super()._embedded(images)
        return self.model.pos_drop(x if self.model.pos_embed is None else x + self.model.pos_embed)

    def _biases(self, grid: tuple[int, int]) -> PositionSource | None:
        shared = self.model.rel_pos_bias
        if shared is None and self.model.blocks[0].attn.relative_position_bias_table is None:
            return None
        return PairBias(grid, None if shared is None else shared(), self._own)

    def _own(self, block: int) -> Tensor | None:
        attn = self.model.blocks[block].attn
        return None if attn.relative_position_bias_table is None else attn._get_rel_pos_bias()


def _bias_macs(bias: RelPosBias | RelPosMlp | None) -> int:
    """MACs of one bias: a table needs none, a network runs once for each pair of offsets."""
    if not isinstance(bias, RelPosMlp):
        return 0
    rows, columns = bias.window_size
    return linear_macs(bias.mlp) * (2 * rows - 1) * (2 * columns - 1)
