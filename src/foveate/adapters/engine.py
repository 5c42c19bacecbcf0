"""Runs a reduced model: block after block, with the reduction at its site.

What flows from block to block is a value (``Stream``), never state on the model, so threads, activation
checkpointing, ``torch.compile``, export, pickling and deepcopy need no care. A block in which nothing happens is
called as it is, and an empty schedule therefore changes nothing, bit for bit, unless queries and keys are normalised.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from torch.utils.checkpoint import checkpoint

from foveate.adapters.base import Adapter, BlockOps, Heads, Reduction, reduction_of
from foveate.adapters.unit_qk import UnitHeads
from foveate.core import Assignment, attend, attend_and_score, attend_masked, class_row, log_size_bias, pool_size
from foveate.methods.base import BlockView, Site

LEAST_WEIGHT = 1e-9
"""What a masked token weighs in a head that averages: nothing, but its logarithm is still a number."""


class Stream(NamedTuple):
    """The tokens between two blocks."""

    tokens: Tensor  # (B, P + N, C)
    size: Tensor | None = None  # (B, N) patches each token stands for; None while every token is one patch
    bias: Tensor | None = None  # (B, 1, 1, P + N) log size for attention; None unless the method carries it
    keep: Tensor | None = None  # (B, N) which tokens still count, in training by masks; None where all do


class Step(NamedTuple):
    """One reduction: what went where, and the patch tokens it was applied to."""

    assignment: Assignment
    before: Tensor  # (B, N, C)


class BlockOutput(NamedTuple):
    stream: Stream
    step: Step | None = None  # what was done to the tokens
    key_step: Step | None = None  # what was done to keys and values only


@dataclass(frozen=True)
class Encoded:
    """The end of the last block, before the final norm, and what happened on the way."""

    embedded: Tensor  # (B, P + N, C) tokens that entered the first block
    stream: Stream
    blocks: tuple[BlockOutput, ...]  # empty unless recorded


def encode(adapter: Adapter, model: Any, images: Tensor, *, record: bool = False, **embed_options: Any) -> Encoded:
    """Run embedding and blocks of a model, reduced or not."""
    if images.dim() != 4:
        raise ValueError(f"Images are (batch, channels, height, width); got shape {tuple(images.shape)}.")
    if images.shape[0] == 0:
        raise ValueError(f"The batch is empty: images have shape {tuple(images.shape)}. Give at least one image.")
    listener = _LISTENER.get()
    record = record or listener is not None
    tokens = adapter.embed(model, images, **embed_options)
    reduction = reduction_of(model)
    if reduction is None:
        run = _Untouched(adapter.ops(model)).run
    else:
        grid = adapter.grid(model, *images.shape[-2:])
        run = _Runner(adapter, model, reduction, grid, record).run
    recompute = adapter.checkpointing(model) and model.training
    output, blocks = BlockOutput(Stream(tokens)), []
    for index, block in enumerate(adapter.blocks(model)):
        if recompute:
            output = checkpoint(run, block, output.stream, index, use_reentrant=False)
        else:
            output = run(block, output.stream, index)
        if record:
            blocks.append(output)
    encoded = Encoded(tokens, output.stream, tuple(blocks))
    if listener is not None:
        listener.append(encoded)
    return encoded


_LISTENER: ContextVar[list[Encoded] | None] = ContextVar("foveate_recording", default=None)


@contextmanager
def recording() -> Iterator[list[Encoded]]:
    """Collect what reduced models see inside, block by block, while they are called as usual in this thread."""
    seen: list[Encoded] = []
    token = _LISTENER.set(seen)
    try:
        yield seen
    finally:
        _LISTENER.reset(token)


class _Untouched:
    """Runs the blocks of a model that is not reduced."""

    def __init__(self, ops: BlockOps) -> None:
        self.ops = ops

    def run(self, block: nn.Module, stream: Stream, index: int) -> BlockOutput:
        return BlockOutput(Stream(self.ops.whole(block, stream.tokens)))


class _Runner:
    """Runs single blocks of one reduced model, for one grid of patches."""

    def __init__(self, adapter: Adapter, model: Any, reduction: Reduction, grid: tuple[int, int], record: bool) -> None:
        self.ops: BlockOps = adapter.ops(model)
        self.unit_scales = reduction.unit_scales
        self.prefix = adapter.num_prefix(model)
        self.has_cls = adapter.has_cls(model)
        self.record = record
        self.method = reduction.method
        self.modules = reduction.modules_by_block
        weighs = reduction.shape.head_reads_patches and self.method.heads_weigh_by_size
        self.tracks_size = self.method.uses_size or weighs
        self.masks = self.method.trains_by_masks and reduction.training
        self.grid = grid
        self.plan = reduction.plan_for(grid)

    def run(self, block: nn.Module, stream: Stream, index: int) -> BlockOutput:
        """One block, by the pieces as they are or with queries and keys of unit length."""
        if self.unit_scales is None:
            return self._run(block, stream, index)
        runner = copy.copy(self)
        runner.ops = UnitHeads(self.ops, self.unit_scales.of(index))
        return runner._run(block, stream, index)

    def _run(self, block: nn.Module, stream: Stream, index: int) -> BlockOutput:
        if self.masks:
            return self._masked_block(block, stream, index)
        if self.plan.exact_last_block and index == len(self.plan.counts) - 1:
            return self._last_block_for_prefix(block, stream, index)
        if not self.plan.acts_in(index):
            return BlockOutput(self._plain_block(block, stream))
        if self.method.site is Site.POST_ATTN:
            return self._reduce_after_attention(block, stream, index)
        if self.method.site is Site.KV:
            return self._reduce_keys_values(block, stream, index)
        if self.method.site is Site.PRE_BLOCK:
            stream, step = self._reduce(stream, {}, index)
            return BlockOutput(self._plain_block(block, stream), step)
        return BlockOutput(*self._reduce(self._plain_block(block, stream), {}, index))

    def _masked_block(self, block: nn.Module, stream: Stream, index: int) -> BlockOutput:
        """Training of a method that decides by masks: no token goes, the decided ones stop to count."""
        if self.plan.acts_in(index):
            keep = self.method.decide(self._view(stream, {}, index), stream.keep)
            size = keep.clamp(min=LEAST_WEIGHT) if self.tracks_size else None
            stream = stream._replace(keep=keep, size=size)
        if stream.keep is None:
            return BlockOutput(self._plain_block(block, stream))
        normed = self.ops.normed(block, stream.tokens)
        counts = pad(stream.keep, (self.prefix, 0), value=1.0)
        heads, scale = self.ops.project(block, normed), self.ops.scale(block)
        attended = attend_masked(*heads, counts, scale=scale, dropout=self.ops.attention_dropout(block))
        x = stream.tokens + self.ops.after_attention(block, attended, normed)
        return BlockOutput(stream._replace(tokens=self.ops.mlp(block, x)))

    def _plain_block(self, block: nn.Module, stream: Stream) -> Stream:
        if stream.bias is None:
            return stream._replace(tokens=self.ops.whole(block, stream.tokens))
        normed = self.ops.normed(block, stream.tokens)
        attended = self._attend(block, self.ops.project(block, normed), stream.bias)
        x = stream.tokens + self.ops.after_attention(block, attended, normed)
        return stream._replace(tokens=self.ops.mlp(block, x))

    def _reduce_after_attention(self, block: nn.Module, stream: Stream, index: int) -> BlockOutput:
        # nothing here may hold queries, keys or scores: the MLP, which needs most memory, takes over theirs
        stream, step = self._reduce(*self._attention_half(block, stream), index)
        return BlockOutput(stream._replace(tokens=self.ops.mlp(block, stream.tokens)), step)

    def _attention_half(self, block: nn.Module, stream: Stream) -> tuple[Stream, dict[str, Tensor]]:
        normed = self.ops.normed(block, stream.tokens)
        attended, scores = self._attend_with_scores(block, self.ops.project(block, normed), stream.bias)
        x = stream.tokens + self.ops.after_attention(block, attended, normed)
        return stream._replace(tokens=x), scores

    def _reduce_keys_values(self, block: nn.Module, stream: Stream, index: int) -> BlockOutput:
        normed = self.ops.normed(block, stream.tokens)
        sources, step = self._reduce(Stream(normed), {}, index)
        x = self._attend_to(block, stream.tokens, normed, sources)
        return BlockOutput(stream._replace(tokens=self.ops.mlp(block, x)), None, step)

    def _last_block_for_prefix(self, block: nn.Module, stream: Stream, index: int) -> BlockOutput:
        """The last block where only prefix tokens are read: patch tokens serve as keys and values, and end there."""
        step = key_step = None
        if self.plan.acts_in(index) and self.method.site is Site.PRE_BLOCK:
            stream, step = self._reduce(stream, {}, index)
        normed = self.ops.normed(block, stream.tokens)
        sources = stream._replace(tokens=normed)
        if self.plan.acts_in(index) and self.method.site is Site.KV:
            sources, key_step = self._reduce(Stream(normed), {}, index)
        x = self._attend_to(block, stream.tokens[:, : self.prefix], normed[:, : self.prefix], sources)
        return BlockOutput(Stream(self.ops.mlp(block, x)), step, key_step)

    def _attend_to(self, block: nn.Module, x: Tensor, normed: Tensor, sources: Stream) -> Tensor:
        """The residual stream ``x`` after attending, with queries from ``normed``, to other tokens than its own."""
        heads = Heads(self.ops.queries(block, normed), *self.ops.keys_values(block, sources.tokens))
        return x + self.ops.after_attention(block, self._attend(block, heads, sources.bias), normed)

    def _attend(self, block: nn.Module, heads: Heads, bias: Tensor | None) -> Tensor:
        return attend(*heads, bias=bias, scale=self.ops.scale(block), dropout=self.ops.attention_dropout(block))

    def _attend_with_scores(
        self, block: nn.Module, heads: Heads, bias: Tensor | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Attention, and just the scores the method needs, for patch tokens."""
        needs, scale = self.method.needs(self.has_cls), self.ops.scale(block)
        scores = {}
        if "attn_received" in needs:
            dropout = self.ops.attention_dropout(block)
            scored = attend_and_score(*heads, bias=bias, scale=scale, dropout=dropout)
            attended, scores = scored.attended, {"attn_received": scored.received, "cls_attn": scored.class_row}
        else:
            attended = self._attend(block, heads, bias)
            if "cls_attn" in needs:
                scores["cls_attn"] = class_row(heads.q, heads.k, bias=bias, scale=scale)
        scores = {name: score[:, self.prefix :] for name, score in scores.items() if name in needs}
        if "keys" in needs:
            scores["keys"] = heads.k[:, :, self.prefix :]
        return attended, scores

    def _view(self, stream: Stream, scores: dict[str, Tensor], index: int) -> BlockView:
        module = self.modules.get(index)
        return BlockView(stream.tokens, self.prefix, stream.size, index, self.has_cls, self.grid, module, **scores)

    def _reduce(self, stream: Stream, scores: dict[str, Tensor], index: int) -> tuple[Stream, Step | None]:
        view = self._view(stream, scores, index)
        assignment = self.method.assign(view, self.plan.counts[index])
        tokens = self.method.combine(view, assignment)
        size = _size_after(stream.size, assignment, tokens) if self.tracks_size else None
        bias = None
        if size is not None and self.method.carries_size:
            bias = log_size_bias(size, self.prefix, tokens.dtype)
        return Stream(tokens, size, bias), Step(assignment, view.patches) if self.record else None


def _size_after(size: Tensor | None, assignment: Assignment, tokens: Tensor) -> Tensor | None:
    if assignment.sizes is not None:
        return assignment.sizes
    if size is None and assignment.selects:
        return None  # a selection of single patches: every size is still one
    if size is None:
        size = torch.ones(tokens.shape[0], assignment.num_in, device=tokens.device)
    return pool_size(size, assignment)
