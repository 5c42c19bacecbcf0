"""Runs a reduced model block by block, with the reduction at its site.

Blocks pass a value (``Stream``) to each other and keep no state on the model, so threads, activation checkpointing,
``torch.compile``, export, pickling and deepcopy work without special care. A block that reduces nothing is called
unchanged. An empty schedule therefore changes nothing, bit for bit, unless queries and keys are normalized.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.utils.checkpoint import checkpoint

from foveate.adapters.blocks import BlockPieces, Heads
from foveate.adapters.reduced import Reducer
from foveate.adapters.unit_qk import UnitPieces
from foveate.core import Assignment, attend, attend_and_score, attend_masked, class_row, log_size_bias, pool_size
from foveate.methods.base import BlockView, Method, Site
from foveate.methods.learned import MaskTrainedMethod

if TYPE_CHECKING:
    from foveate.adapters.family import Family

RECEIVED = frozenset({"attn_received", "attn_from_others"})
"""Scores that need the matrix of attention weights; a method ranks by one of them."""
LEAST_WEIGHT = 1e-9
"""Weight of a masked token in a head that averages: almost zero, with a finite logarithm."""


class Stream(NamedTuple):
    """The tokens between two blocks."""

    tokens: Tensor  # (B, P + N, C)
    size: Tensor | None = None  # (B, N) patches each token stands for; None while every token is one patch
    bias: Tensor | None = None  # (B, 1, 1, P + N) log size for attention; None unless attention is proportional
    keep: Tensor | None = None  # (B, N) tokens that still count, if training masks them; None if all do


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
    """Tokens after the last block, before the final norm, and what each block did."""

    embedded: Tensor  # (B, P + N, C) tokens that entered the first block
    stream: Stream
    blocks: tuple[BlockOutput, ...]  # empty unless recorded


def encode(family: Family, images: Tensor, *, record: bool = False, **options: Any) -> Encoded:
    """Run the embedding and all blocks of a model, reduced or not.

    Args:
        family: the model.
        images: (B, C, H, W).
        record: whether to keep the output of every block.
        options: for the model's embedding.

    Raises:
        ValueError: if images have a wrong shape or the batch is empty.
        TypeError: if the embedding does not take an option.
    """
    if not isinstance(images, Tensor) or images.dim() != 4:
        found = f"shape {tuple(images.shape)}" if isinstance(images, Tensor) else f"a {type(images).__name__}"
        raise ValueError(f"Images must be a tensor (batch, channels, height, width), got {found}.")
    if images.shape[0] == 0:
        raise ValueError(f"The batch is empty: images have shape {tuple(images.shape)}. Pass at least one image.")
    unknown = sorted(options.keys() - family.embed_options)
    if unknown:
        known = f" It takes {', '.join(sorted(family.embed_options))}." if family.embed_options else ""
        raise TypeError(f"{type(family.model).__name__} has no option {unknown[0]!r}.{known}")
    tokens = family.embed(images, **options)
    reducer = family.reducer
    run = _UnreducedRunner(family).run if reducer is None else _Runner(family, reducer, images, record).run
    recompute = family.recomputes and family.model.training
    output, outputs = BlockOutput(Stream(tokens)), []
    for index in range(len(family.blocks)):
        if recompute:
            output = checkpoint(run, output.stream, index, use_reentrant=False)
        else:
            output = run(output.stream, index)
        if record:
            outputs.append(output)
    return Encoded(tokens, output.stream, tuple(outputs))


class _UnreducedRunner:
    """Runs the blocks of an unreduced model."""

    def __init__(self, family: Family) -> None:
        self.pieces = family.pieces()

    def run(self, stream: Stream, index: int) -> BlockOutput:
        return BlockOutput(Stream(self.pieces[index].whole(stream.tokens)))


class _Runner:
    """Runs the blocks of a reduced model for one patch grid."""

    def __init__(self, family: Family, reducer: Reducer, images: Tensor, record: bool) -> None:
        self.pieces = family.pieces()
        scales = reducer.unit_scales
        if scales is not None:
            self.pieces = [UnitPieces(pieces, scales.of(index)) for index, pieces in enumerate(self.pieces)]
        self.prefix, self.has_cls, self.record = family.num_prefix, family.has_cls, record
        self.modules, self.masks = reducer.modules_by_block, reducer.masks
        self.grid = family.grid_for(*images.shape[-2:])
        self.plan = reducer.plan_for(self.grid)
        self._method = reducer.method
        weighs = reducer.shape.head_reads_patches and reducer.heads_weigh_by_size
        self.tracks_size = weighs or (self._method is not None and self._method.uses_size)

    @property
    def method(self) -> Method:
        assert self._method is not None, "only called if there is a method"
        return self._method

    def run(self, stream: Stream, index: int) -> BlockOutput:
        """Run one block with its reduction."""
        pieces, acts = self.pieces[index], self.plan.acts_in(index)
        if self.masks:
            return self._masked_block(pieces, stream, index)
        if self.plan.exact_last_block and index == len(self.plan.counts) - 1:
            return self._last_block_for_prefix(pieces, stream, index)
        if not acts:
            return BlockOutput(self._plain_block(pieces, stream))
        if self.method.site is Site.POST_ATTN:
            return self._reduce_after_attention(pieces, stream, index)
        if self.method.site is Site.KV:
            return self._reduce_keys_values(pieces, stream, index)
        if self.method.site is Site.PRE_BLOCK:
            stream, step = self._reduce(stream, {}, index)
            return BlockOutput(self._plain_block(pieces, stream), step)
        return BlockOutput(*self._reduce(self._plain_block(pieces, stream), {}, index))

    def _masked_block(self, pieces: BlockPieces, stream: Stream, index: int) -> BlockOutput:
        """Train a method that masks: no token is removed, and masked tokens no longer count."""
        if self.plan.acts_in(index):
            assert isinstance(self.method, MaskTrainedMethod)
            keep = self.method.decide(self._view(stream, {}, index), stream.keep)
            size = keep.clamp(min=LEAST_WEIGHT) if self.tracks_size else None
            stream = stream._replace(keep=keep, size=size)
        if stream.keep is None:
            return BlockOutput(self._plain_block(pieces, stream))
        normed = pieces.normed(stream.tokens)
        counts = pad(stream.keep, (self.prefix, 0), value=1.0)
        heads = pieces.project(normed)
        attended = attend_masked(*heads, counts, scale=pieces.scale, dropout=pieces.attention_dropout)
        x = stream.tokens + pieces.after_attention(attended, normed)
        return BlockOutput(stream._replace(tokens=pieces.mlp(x)))

    def _plain_block(self, pieces: BlockPieces, stream: Stream) -> Stream:
        if stream.bias is None:
            return stream._replace(tokens=pieces.whole(stream.tokens))
        normed = pieces.normed(stream.tokens)
        attended = _attend(pieces, pieces.project(normed), stream.bias)
        x = stream.tokens + pieces.after_attention(attended, normed)
        return stream._replace(tokens=pieces.mlp(x))

    def _reduce_after_attention(self, pieces: BlockPieces, stream: Stream, index: int) -> BlockOutput:
        # keep no reference to queries, keys or scores, so that the MLP, which needs the most memory, can reuse theirs
        stream, step = self._reduce(*self._attention_half(pieces, stream), index)
        return BlockOutput(stream._replace(tokens=pieces.mlp(stream.tokens)), step)

    def _attention_half(self, pieces: BlockPieces, stream: Stream) -> tuple[Stream, dict[str, Tensor]]:
        normed = pieces.normed(stream.tokens)
        attended, scores = self._attend_with_scores(pieces, pieces.project(normed), stream.bias)
        x = stream.tokens + pieces.after_attention(attended, normed)
        return stream._replace(tokens=x), scores

    def _reduce_keys_values(self, pieces: BlockPieces, stream: Stream, index: int) -> BlockOutput:
        normed = pieces.normed(stream.tokens)
        sources, step = self._reduce(Stream(normed), {}, index)
        x = _attend_to(pieces, stream.tokens, normed, sources)
        return BlockOutput(stream._replace(tokens=pieces.mlp(x)), None, step)

    def _last_block_for_prefix(self, pieces: BlockPieces, stream: Stream, index: int) -> BlockOutput:
        """Run the last block for prefix tokens only; patch tokens serve as keys and values and end here."""
        step = key_step = None
        acts = self.plan.acts_in(index)
        if acts and self.method.site is Site.PRE_BLOCK:
            stream, step = self._reduce(stream, {}, index)
        normed = pieces.normed(stream.tokens)
        sources = stream._replace(tokens=normed)
        if acts and self.method.site is Site.KV:
            sources, key_step = self._reduce(Stream(normed), {}, index)
        x = _attend_to(pieces, stream.tokens[:, : self.prefix], normed[:, : self.prefix], sources)
        return BlockOutput(Stream(pieces.mlp(x)), step, key_step)

    def _attend_with_scores(
        self, pieces: BlockPieces, heads: Heads, bias: Tensor | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Attention, and the scores of patch tokens that the method needs."""
        needs, scale = self.method.needs(self.has_cls), pieces.scale
        scores = {}
        if RECEIVED & needs:
            others, dropout = "attn_from_others" in needs, pieces.attention_dropout
            if needs >= RECEIVED:
                raise ValueError(f"{self.method.name} needs {' and '.join(sorted(RECEIVED))}; one of them is computed.")
            scored = attend_and_score(*heads, bias=bias, scale=scale, dropout=dropout, from_others=others)
            name = "attn_from_others" if others else "attn_received"
            attended, scores = scored.attended, {name: scored.received, "cls_attn": scored.class_row}
        else:
            attended = _attend(pieces, heads, bias)
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
        self._check_count(assignment, index)
        tokens = self.method.combine(view, assignment)
        size = _size_after(stream.size, assignment, tokens) if self.tracks_size else None
        bias = None
        if size is not None and self.method.proportional_attention:
            bias = log_size_bias(size, self.prefix, tokens.dtype)
        return Stream(tokens, size, bias), Step(assignment, view.patches) if self.record else None

    def _check_count(self, assignment: Assignment, index: int) -> None:
        """Check the number of slots: another number than planned would make every cost wrong."""
        planned = self.plan.counts[index]
        fewer_keys = self.method.site is Site.KV and assignment.num_out < planned  # image content may lead to fewer
        if assignment.num_out != planned and not fewer_keys:
            raise ValueError(
                f"{type(self.method).__name__}.assign got keep={planned} in block {index} and returned "
                f"{assignment.num_out} slots. Return as many slots as keep."
            )


def _attend(pieces: BlockPieces, heads: Heads, bias: Tensor | None) -> Tensor:
    return attend(*heads, bias=bias, scale=pieces.scale, dropout=pieces.attention_dropout)


def _attend_to(pieces: BlockPieces, x: Tensor, normed: Tensor, sources: Stream) -> Tensor:
    """The residual stream ``x`` after attention with queries from ``normed`` and keys and values from ``sources``."""
    heads = Heads(pieces.queries(normed), *pieces.keys_values(sources.tokens))
    return x + pieces.after_attention(_attend(pieces, heads, sources.bias), normed)


def _size_after(size: Tensor | None, assignment: Assignment, tokens: Tensor) -> Tensor | None:
    if assignment.sizes is not None:
        return assignment.sizes
    if size is None and assignment.selects:
        return None  # a selection of single patches: every size is still 1
    if size is None:
        size = torch.ones(tokens.shape[0], assignment.num_in, device=tokens.device)
    return pool_size(size, assignment)
