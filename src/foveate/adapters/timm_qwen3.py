"""timm's towers of Qwen3-VL and DeepSeek-V4: blocks with rotary positions, and a projector that joins patches."""

from __future__ import annotations

from typing import Any

from timm.models.deepseek_vit import DeepseekVitBlock, DeepseekVitClassifier, DeepseekVitEncoder
from timm.models.eva import EvaBlock
from timm.models.qwen3_vit import Qwen3VitClassifier, Qwen3VitEncoder
from torch import Tensor

from foveate.adapters.blocks import BlockPieces, linear_macs
from foveate.adapters.positions import PositionSource
from foveate.adapters.registry import register_family
from foveate.adapters.rotary import RotaryTable
from foveate.adapters.timm_blocks import TimmRotaryBlock
from foveate.adapters.timm_tower import TimmTower


class JoiningTower(TimmTower):
    """A tower whose projector joins neighboring patches and runs an MLP on them."""

    def pieces(self) -> list[BlockPieces]:
        return [TimmRotaryBlock(block) for block in self.tower.blocks]

    def embed_with_positions(self, images: Tensor, **options: Any) -> tuple[Tensor, PositionSource | None]:
        grid, tower = self.grid_for(*images.shape[-2:]), self.tower
        tokens, table = tower._pos_embed(tower.patch_embed(images))
        return tokens, RotaryTable(grid, table)

    def project(self, grid: Tensor) -> Tensor:
        return self.projector(grid)

    def projector_macs(self, grid: tuple[int, int]) -> int:
        return linear_macs(self.projector) * self.projected_tokens(grid)

    def build_options(self) -> dict[str, Any]:
        return super().build_options() | {"out_features": self.tower.out_features}


@register_family
class TimmQwen3(JoiningTower):
    """timm's ``Qwen3VitEncoder`` and ``Qwen3VitClassifier``."""

    title = "timm Qwen3Vit (the towers of Qwen3-VL, Qwen3.5, Qwen3.8)"
    kinds = (Qwen3VitEncoder, Qwen3VitClassifier)
    block_forwards = (EvaBlock.forward,)
    projector_name = "merger"
    modules = ("qwen3_vit",)

    @property
    def cell(self) -> int:
        return 1 if self.projector is None else int(self.tower.merge_size)


@register_family
class TimmDeepseek(JoiningTower):
    """timm's ``DeepseekVitEncoder`` and ``DeepseekVitClassifier``."""

    title = "timm DeepseekVit (the towers of DeepSeek-V4)"
    kinds = (DeepseekVitEncoder, DeepseekVitClassifier)
    block_forwards = (DeepseekVitBlock.forward,)
    projector_name = "aligner"
    modules = ("deepseek_vit",)

    def grid_for(self, height: int, width: int) -> tuple[int, int]:
        embed = self.tower.patch_embed
        if not embed.dynamic_img_pad:
            return super().grid_for(height, width)
        rows, columns = embed.dynamic_feat_size((height, width))
        return int(rows), int(columns)

    def projected_tokens(self, grid: tuple[int, int]) -> int:
        """The grid is padded to whole cells."""
        side = self.projector.downsample_ratio
        return -(-grid[0] // side) * -(-grid[1] // side)

    def final_norm(self, tokens: Tensor) -> Tensor:
        return self.tower.norm(tokens)
