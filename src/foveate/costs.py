"""Multiply-accumulates (MACs), counted from shapes: the cost of a model under a plan, the method's own included.

One MAC is one multiplication and addition in a matrix product, a linear layer or a convolution, per image.
Element-wise operations, normalization and softmax are not counted, as in torch's ``FlopCounterMode``; tests check that
both agree.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Literal

from foveate.methods.base import Method, Site, StepShape

Output = Literal["tokens", "grid", "grid-residual", "grid-attention"]
"""What leaves a reduced encoder; see ``Reduction.output``."""


@dataclass(frozen=True)
class BlockShape:
    """Sizes of one block. ``*_macs`` are MACs of linear layers per token."""

    dim: int
    heads: int
    head_dim: int
    query_macs: int  # q, and the gate if there is one
    key_value_macs: int
    proj_macs: int
    mlp_macs: int


@dataclass(frozen=True)
class ModelShape:
    """Everything that a model's cost depends on, as read by its family."""

    blocks: tuple[BlockShape, ...]
    grid: tuple[int, int]  # rows and columns of patches
    num_prefix: int
    has_cls: bool
    stem_macs_per_patch: int
    head_macs: int  # independent of the number of patch tokens
    head_macs_per_patch: int  # for each patch token that the head reads
    head_reads_patches: bool

    @property
    def depth(self) -> int:
        return len(self.blocks)

    @property
    def num_patches(self) -> int:
        return self.grid[0] * self.grid[1]


@dataclass(frozen=True)
class Plan:
    """A resolved schedule: patch tokens after each block or, at the kv site, keys in each block."""

    sites: tuple[Site, ...]  # where each block reduces
    num_patches: int
    counts: tuple[int, ...]
    exact_last_block: bool = False
    soft_blocks: tuple[int, ...] = ()
    """Blocks in which the method acts on tokens that all stay: training modules, or EViT that fuses a single one."""
    output: Output = "tokens"
    unmerge_after: int | None = None
    """The block after which every patch has its own token again; None if there is none."""
    choosing_macs: int = 0
    """Multiply-accumulates of choosing an image's plan among several."""

    def before(self, block: int) -> int:
        """Patch tokens (or keys) available to the reduction in ``block``."""
        return self.num_patches if block == 0 or self.sites[block] is Site.KV else self.tokens_after(block - 1)

    def is_last(self, block: int) -> bool:
        return block == len(self.counts) - 1

    def acts_in(self, block: int) -> bool:
        """Whether anything is reduced in ``block``."""
        if self.is_last(block) and self.output == "grid-attention":
            return False  # its keys are the tokens that are left, its queries all patches
        if self.exact_last_block and self.is_last(block) and self.sites[block] in (Site.POST_ATTN, Site.POST_BLOCK):
            return False  # no patch token leaves this block, so reducing after attention would be useless
        return self.counts[block] < self.before(block) or block in self.soft_blocks

    def tokens_after(self, block: int) -> int:
        """Patch tokens that leave ``block``."""
        if self.exact_last_block and self.is_last(block):
            return 0
        restored = block == self.unmerge_after or (self.is_last(block) and self.output == "grid-attention")
        return self.num_patches if self.sites[block] is Site.KV or restored else self.counts[block]

    @property
    def mean_share(self) -> float:
        """Patch tokens that enter a block, as a share of all patches; the mean over blocks."""
        entering = [self.num_patches, *map(self.tokens_after, range(len(self.counts) - 1))]
        return sum(entering) / (len(entering) * self.num_patches)

    @property
    def read_by_head(self) -> int:
        """Patch tokens that leave the encoder."""
        return self.tokens_after(len(self.counts) - 1) if self.output == "tokens" else self.num_patches


@dataclass(frozen=True)
class Cost:
    """The cost of one image."""

    params: int
    macs: int
    """All multiply-accumulates, the method's own included."""
    reduction_macs: int
    """Multiply-accumulates of the method itself."""
    tokens: tuple[int, ...]
    """Tokens after every block, prefix tokens included."""

    def __str__(self) -> str:
        own = f"{self.reduction_macs / 1e6:.1f} M for reduction"
        return f"{self.macs / 1e9:.3f} GMACs ({own}), {self.params / 1e6:.2f} M parameters"


def count(shape: ModelShape, plan: Plan, method: Method | None, params: int) -> Cost:
    """Count the cost of a model of this shape under a plan.

    Args:
        shape: sizes of the model.
        plan: tokens after each block.
        method: the method that follows the plan; None for an unreduced model.
        params: number of parameters, which the result repeats.
    """
    total = shape.num_patches * shape.stem_macs_per_patch
    own = 0
    for index, block in enumerate(shape.blocks):
        work, extra = block_macs(shape, block, plan, method, index)
        total, own = total + work + extra, own + extra
    total, own = total + plan.choosing_macs, own + plan.choosing_macs
    total += shape.head_macs + shape.head_macs_per_patch * plan.read_by_head
    tokens = tuple(shape.num_prefix + plan.tokens_after(i) for i in range(shape.depth))
    return Cost(params, total, own, tokens)


def block_macs(shape: ModelShape, block: BlockShape, plan: Plan, method: Method | None, index: int) -> tuple[int, int]:
    """(the block's MACs, the method's MACs) for one image."""
    prefix, site, acts = shape.num_prefix, plan.sites[index], plan.acts_in(index)
    incoming = plan.num_patches if index == 0 else plan.tokens_after(index - 1)
    kept = plan.counts[index] if acts else incoming
    queries = prefix + (kept if acts and site is Site.PRE_BLOCK else incoming)
    keys = prefix + kept if acts and site is Site.KV else queries
    through_mlp = prefix + kept if acts and site is Site.POST_ATTN else queries
    if plan.exact_last_block and index == shape.depth - 1:
        queries = through_mlp = prefix
    if plan.output == "grid-attention" and plan.is_last(index):
        queries = through_mlp = prefix + plan.num_patches
    work = queries * (block.query_macs + block.proj_macs) + keys * block.key_value_macs
    work += 2 * queries * keys * block.heads * block.head_dim + through_mlp * block.mlp_macs
    if not acts or method is None:
        return work, 0
    return work, method.in_block(index, shape.depth).macs(step_shape(shape, plan, index))


def step_shape(shape: ModelShape, plan: Plan, index: int) -> StepShape:
    """The sizes of the reduction in one block."""
    block = shape.blocks[index]
    return StepShape(
        plan.before(index),
        plan.counts[index],
        shape.num_prefix,
        block.dim,
        block.heads,
        block.head_dim,
        shape.has_cls,
        shape.grid,
    )


def unreduced(shape: ModelShape) -> Plan:
    """The plan that keeps every token."""
    n, depth = shape.num_patches, shape.depth
    return Plan((Site.POST_ATTN,) * depth, n, (n,) * depth)


def at_grid(shape: ModelShape, grid: tuple[int, int]) -> ModelShape:
    """The shape of the same model on an image with another patch grid."""
    return dataclasses.replace(shape, grid=grid)
