"""timm's towers of Gemma 4: norms before and after each half of a block, rotary positions for each axis."""

from __future__ import annotations

from typing import Any

import torch
from timm.models.gemma4_vit import Gemma4Block, Gemma4VitClassifier, Gemma4VitEncoder
from torch import Tensor

from foveate.adapters.blocks import BlockPieces, Heads, linear_macs
from foveate.adapters.positions import PositionSource
from foveate.adapters.registry import register_family
from foveate.adapters.rotary import RotaryTable, rotated
from foveate.adapters.timm_tower import TimmTower
from foveate.costs import BlockShape


class Gemma4Pieces(BlockPieces):
    """timm's ``Gemma4Block``."""

    def whole(self, x: Tensor, rows: Any = None) -> Tensor:
        rows = rows if rows.dim() == 2 else rows.squeeze(1)  # (n, 2 D), or (B, n, 2 D) for tokens of their own
        sine, cosine = rows.expand(x.shape[0], -1, -1).chunk(2, dim=-1)
        return self.block(x, cosine, sine)

    def placed(self, heads: Heads, query_rows: Any, key_rows: Any) -> tuple[Heads, Tensor | None]:
        """One half of the channels turns with columns, the other with rows, each by halves."""
        found = [
            rotated(Heads(*part), _axis(query_rows, axis), _axis(key_rows, axis), 0, half=True)
            for axis, part in enumerate(zip(*(x.chunk(2, dim=-1) for x in heads), strict=True))
        ]
        return Heads(*(torch.cat(parts, dim=-1) for parts in zip(*found, strict=True))), None

    def normed(self, x: Tensor) -> Tensor:
        return self.block.norm1(x)

    def queries(self, normed: Tensor) -> Tensor:
        attn = self.block.attn
        return attn.q_norm(self._heads(attn.q_proj(normed))).transpose(1, 2)

    def keys_values(self, normed: Tensor) -> tuple[Tensor, Tensor]:
        attn = self.block.attn
        k = attn.k_norm(self._heads(attn.k_proj(normed))).transpose(1, 2)
        v = attn.v_norm(self._heads(attn.v_proj(normed))).transpose(1, 2)
        times = attn.num_kv_groups
        return (k, v) if times == 1 else (k.repeat_interleave(times, dim=1), v.repeat_interleave(times, dim=1))

    def after_attention(self, attended: Tensor, normed: Tensor) -> Tensor:
        block = self.block
        update = block.attn.proj_drop(block.attn.o_proj(attended.transpose(1, 2).flatten(2)))
        return block.drop_path(block.norm2(update))

    def mlp(self, x: Tensor) -> Tensor:
        block = self.block
        return x + block.drop_path(block.norm4(block.mlp(block.norm3(x))))

    @property
    def scale(self) -> float:
        return 1.0

    @property
    def attention_dropout(self) -> float:
        attn = self.block.attn
        return float(attn.attn_drop.p) if attn.training else 0.0

    def shape(self) -> BlockShape:
        attn = self.block.attn
        own, others = linear_macs(attn.q_proj), linear_macs(attn.k_proj, attn.v_proj)
        dim, out, mlp = attn.q_proj.linear.in_features, linear_macs(attn.o_proj), linear_macs(self.block.mlp)
        return BlockShape(dim, attn.num_heads, attn.head_dim, own, others, out, mlp)

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.block.attn.head_dim))


@register_family
class TimmGemma4(TimmTower):
    """timm's ``Gemma4VitEncoder`` and ``Gemma4VitClassifier``, for images; not for patches with coordinates."""

    title = "timm Gemma4Vit (the towers of Gemma 4)"
    kinds = (Gemma4VitEncoder, Gemma4VitClassifier)
    block_forwards = (Gemma4Block.forward,)
    projector_name = "pooler"
    modules = ("gemma4_vit",)
    own_options = ("head_dim", "num_kv_heads", "intermediate_size", "position_embedding_size")
    saved_options = TimmTower.saved_options | {*own_options}

    def pieces(self) -> list[BlockPieces]:
        return [Gemma4Pieces(block) for block in self.tower.blocks]

    @property
    def projector(self) -> Any:
        return self.tower.pooler if self.tower.global_pool == "soft" else None

    @property
    def image_size(self) -> tuple[int, int, int]:
        """timm's own for these weights; the model itself has none."""
        ph, pw = self.patch_size
        known = self._config.get("input_size")
        channels = self.tower.patch_embed.input_proj.in_features // (ph * pw)
        side = int(self.tower.pooling_kernel_size) * 16
        return channels, *(known[1:] if known else (side * ph, side * pw))

    @property
    def patch_size(self) -> tuple[int, int]:
        return tuple(self.tower.patch_size)

    @property
    def cell(self) -> int:
        return 1 if self.projector is None else int(self.tower.pooling_kernel_size)

    @property
    def stem_macs_per_patch(self) -> int:
        """Positions are looked up by a multiplication with ones and zeros, and angles are products, too."""
        embed = self.tower.patch_embed
        looked_up = 2 * embed.position_embedding_size * embed.embed_dim
        return linear_macs(embed.input_proj) + looked_up + 2 * int(self.tower.rotary_emb.inv_freq.numel())

    def projector_macs(self, grid: tuple[int, int]) -> int:
        """The pooler multiplies with a matrix of which patch belongs to which cell."""
        return grid[0] * grid[1] * self.projected_tokens(grid) * int(self.tower.embed_dim)

    def embed_with_positions(self, images: Tensor, **options: Any) -> tuple[Tensor, PositionSource | None]:
        grid, tower = self.grid_for(*images.shape[-2:]), self.tower
        tokens, places, _ = tower.patch_embed(images)
        cosine, sine = tower.rotary_emb(tokens, places[:1])
        return tokens, RotaryTable(grid, torch.cat([sine, cosine], dim=-1)[0])

    def project(self, grid: Tensor) -> Tensor:
        tower, (b, rows, columns, _) = self.tower, grid.shape
        places, valid = tower.patch_embed._default_patch_coord(b, rows, columns, grid.device)
        x, _ = tower.pooler(grid.flatten(1, 2), places.flip(dims=(-1,)), ~valid)
        return x if tower.std_bias is None else (x - tower.std_bias) * tower.std_scale

    def features(self, encoded: Any) -> Tensor:
        found = super().features(encoded)
        return found.flatten(1, -2)  # timm's Gemma has no grids

    def head(self, encoded: Any) -> Any:
        if self.projector is None or self.classifies:
            return super().head(encoded)
        return self.project(encoded.stream.tokens.unflatten(1, encoded.stream.positions.source.grid))

    def build_options(self) -> dict[str, Any]:
        block = self.tower.blocks[0]
        own = (block.attn.head_dim, block.attn.num_kv_heads, block.mlp.up_proj.linear.out_features)
        sizes = (*own, self.tower.patch_embed.position_embedding_size)
        return super().build_options() | dict(zip(self.own_options, sizes, strict=True))


def _axis(rows: Tensor, axis: int) -> Tensor:
    """Sines and cosines of one axis, from rows with both."""
    sine, cosine = rows.chunk(2, dim=-1)
    return torch.cat([sine.chunk(2, dim=-1)[axis], cosine.chunk(2, dim=-1)[axis]], dim=-1)
