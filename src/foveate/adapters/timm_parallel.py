"""timm's parallel blocks: attention and MLP side by side, or several of each, split into pieces.

Tokens are reduced after attention wherever there is an "after": behind both branches of ``ParallelScalingBlock``, whose
attention and MLP read the same tokens, and between the attentions and the MLPs of ``ParallelThingsBlock``.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from foveate.adapters.blocks import BlockPieces, Heads, linear_macs
from foveate.adapters.timm_blocks import after_attention, attention_shape, keys_values, project, queries
from foveate.costs import BlockShape


class TimmParallelScaling(BlockPieces):
    """timm's ``ParallelScalingBlock``: one projection for attention and MLP, one update from both."""

    def normed(self, x: Tensor) -> Tensor:
        return self.block.in_norm(x)

    def queries(self, normed: Tensor) -> Tensor:
        return self.block.q_norm(self._heads(self._projected(normed, 1, 2))[0]).transpose(1, 2)

    def keys_values(self, normed: Tensor) -> tuple[Tensor, Tensor]:
        k, v = self._heads(self._projected(normed, 2, 4))
        return self.block.k_norm(k).transpose(1, 2), v.transpose(1, 2)

    def after_attention(self, attended: Tensor, normed: Tensor) -> Tensor:
        block = self.block
        mlp = self._projected(normed, 0, 1)
        mlp = block.mlp_drop(block.mlp_act(mlp if block.mlp_bias is None else mlp + block.mlp_bias))
        attended = attended.transpose(1, 2).flatten(2)
        if block.out_proj is not None:
            return block.drop_path(block.ls(block.out_proj(torch.cat([attended, mlp], dim=-1))))
        return block.drop_path(block.ls(block.attn_out_proj(attended) + block.mlp_out_proj(mlp)))

    def mlp(self, x: Tensor) -> Tensor:
        return x

    @property
    def scale(self) -> float:
        return float(self.block.scale)

    @property
    def attention_dropout(self) -> float:
        return float(self.block.attn_drop.p) if self.block.training else 0.0

    def shape(self) -> BlockShape:
        block = self.block
        hidden, width, *_ = block.in_split
        dim = block.in_proj.in_features
        out = linear_macs(block.out_proj, block.attn_out_proj, block.mlp_out_proj)
        return BlockShape(dim, block.num_heads, block.head_dim, dim * width, 2 * dim * width, dim * hidden + out, 0)

    def _projected(self, normed: Tensor, start: int, stop: int) -> Tensor:
        """Parts ``start`` to ``stop`` of the projection: MLP, queries, keys, values."""
        layer, sizes = self.block.in_proj, self.block.in_split
        rows = slice(sum(sizes[:start]), sum(sizes[:stop]))
        return linear(normed, layer.weight[rows], None if layer.bias is None else layer.bias[rows])

    def _heads(self, x: Tensor) -> tuple[Tensor, ...]:
        b, n, _ = x.shape
        return x.view(b, n, -1, self.block.num_heads, self.block.head_dim).unbind(2)


class TimmParallelThings(BlockPieces):
    """timm's ``ParallelThingsBlock``: several attentions, then several MLPs; its heads are those of all attentions.

    Every attention has a norm of its own, so what they read together is the residual stream itself.
    """

    def normed(self, x: Tensor) -> Tensor:
        return x

    def queries(self, normed: Tensor) -> Tensor:
        return torch.cat([queries(branch.attn, branch.norm(normed)) for branch in self.block.attns], dim=1)

    def keys_values(self, normed: Tensor) -> tuple[Tensor, Tensor]:
        found = [keys_values(branch.attn, branch.norm(normed)) for branch in self.block.attns]
        return torch.cat([k for k, _ in found], dim=1), torch.cat([v for _, v in found], dim=1)

    def project(self, normed: Tensor) -> Heads:
        found = [project(branch.attn, branch.norm(normed)) for branch in self.block.attns]
        return Heads(*(torch.cat(parts, dim=1) for parts in zip(*found, strict=True)))

    def after_attention(self, attended: Tensor, normed: Tensor) -> Tensor:
        branches = self.block.attns
        updates = [
            branch.drop_path(branch.ls(after_attention(branch.attn, part, branch.norm(normed))))
            for branch, part in zip(branches, attended.chunk(len(branches), dim=1), strict=True)
        ]
        return torch.stack(updates).sum(dim=0)

    def mlp(self, x: Tensor) -> Tensor:
        return x + torch.stack([branch(x) for branch in self.block.ffns]).sum(dim=0)

    @property
    def scale(self) -> float:
        return float(self.block.attns[0].attn.scale)

    @property
    def attention_dropout(self) -> float:
        attn = self.block.attns[0].attn
        return float(attn.attn_drop.p) if attn.training else 0.0

    def shape(self) -> BlockShape:
        found = [attention_shape(branch.attn, linear_macs(mlp)) for branch, mlp in self._branches()]
        names = ("heads", "query_macs", "key_value_macs", "proj_macs", "mlp_macs")
        total = {name: sum(getattr(shape, name) for shape in found) for name in names}
        return BlockShape(dim=found[0].dim, head_dim=found[0].head_dim, **total)

    def _branches(self) -> list[tuple[Any, Any]]:
        return list(zip(self.block.attns, self.block.ffns, strict=True))
