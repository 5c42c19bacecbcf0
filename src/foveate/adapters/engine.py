"""Runs a reduced model block by block, with the reduction at its site.

Blocks pass a value (``Stream``) to each other and keep no state on the model, so threads, activation checkpointing,
``torch.compile``, export, pickling and deepcopy work without special care. A block that reduces nothing is called
unchanged; one that reduces runs its pieces inside its own ``forward``, so that hooks on it fire. An empty schedule
therefore changes nothing, bit for bit, unless queries and keys are normalized.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.utils.checkpoint import checkpoint

from foveate.adapters.adaptive import adaptive_schedule, encode_adaptive
from foveate.adapters.blocks import BlockPieces, Heads
from foveate.adapters.inside import run_inside
from foveate.adapters.positions import Positions
from foveate.adapters.reduced import Reducer
from foveate.adapters.sizes import counted_after, size_after
from foveate.adapters.stream import BlockOutput, Encoded, Step, Stream, spread
from foveate.adapters.unit_qk import UnitPieces
from foveate.core import (
    Assignment,
    attend,
    attend_and_score,
    attend_masked,
    class_row,
    class_value_row,
    log_size_bias,
    size_strength,
)
from foveate.core.precision import row_norms
from foveate.methods.base import BlockView, Site
from foveate.methods.learned import MaskTrainedMethod

if TYPE_CHECKING:
    from foveate.adapters.family import Family

PICTURE = "Prepare pictures as the model was trained, e.g. by timm.data.create_transform, and stack them."
RECEIVED = frozenset({"attn_received", "attn_from_others"})
"""Scores that need the matrix of attention weights; a method ranks by one of them."""
LEAST_WEIGHT = 1e-9
"""Weight of a masked token in a head that averages: almost zero, with a finite logarithm."""


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
    runner, stream = start_run(family, images, record=record, **options)
    reducer, embedded = family.reducer, stream.tokens
    if reducer is not None and isinstance(runner, Runner) and adaptive_schedule(reducer) is not None:
        return encode_adaptive(runner, reducer, stream, record)
    recompute = family.recomputes and family.model.training
    steps: list[Step] = []
    outputs: list[BlockOutput] = []
    for index in range(len(family.blocks)):
        if recompute:
            output = checkpoint(runner.run, stream, index, steps, use_reentrant=False)
        else:
            output = runner.run(stream, index, steps)
        steps = [] if output.unmerged else [*steps, *([] if output.step is None else [output.step])]
        stream = output.stream
        outputs += [output] if record else []
    return Encoded(embedded, runner.finished(stream, steps), tuple(outputs), runner.own_residual)


def start_run(
    family: Family, images: Tensor, *, record: bool = False, **options: Any
) -> tuple[Runner | _UnreducedRunner, Stream]:
    """Embed images; what runs the blocks, and the stream that enters the first. Arguments and errors of ``encode``."""
    if not isinstance(images, Tensor) or images.dim() != 4:
        found = f"shape {tuple(images.shape)}" if isinstance(images, Tensor) else f"a {type(images).__name__}"
        hint = "A single image is images.unsqueeze(0)." if isinstance(images, Tensor) else PICTURE
        raise ValueError(f"Images must be a tensor (batch, channels, height, width), got {found}. {hint}")
    if images.shape[0] == 0:
        raise ValueError(f"The batch is empty: images have shape {tuple(images.shape)}. Pass at least one image.")
    unknown = sorted(options.keys() - family.embed_options)
    if unknown:
        known = f" It takes {', '.join(sorted(family.embed_options))}." if family.embed_options else ""
        raise TypeError(f"{type(family.model).__name__} has no option {unknown[0]!r}.{known}")
    tokens, source = family.embed_with_positions(images, **options)
    reducer, averages = family.reducer, family.averages_positions
    runner = _UnreducedRunner(family) if reducer is None else Runner(family, reducer, images, record)
    return runner, Stream(tokens, positions=None if source is None else Positions(source, averages))


class _UnreducedRunner:
    """Runs the blocks of an unreduced model."""

    own_residual = False

    def __init__(self, family: Family) -> None:
        self.pieces = family.pieces()

    def run(self, stream: Stream, index: int, steps: Sequence[Step]) -> BlockOutput:
        pieces, rows = self.pieces[index], _rows(stream, index)
        return BlockOutput(stream._replace(tokens=pieces.whole(pieces.entered(stream.tokens, rows), rows)))

    def finished(self, stream: Stream, steps: Sequence[Step]) -> Stream:
        return stream


class Runner:
    """Runs the blocks of a reduced model for one patch grid."""

    def __init__(self, family: Family, reducer: Reducer, images: Tensor, record: bool) -> None:
        self.pieces = family.pieces()
        scales = reducer.unit_scales
        if scales is not None:
            self.pieces = [UnitPieces(pieces, scales.of(index)) for index, pieces in enumerate(self.pieces)]
        self.prefix, self.has_cls = family.num_prefix, family.has_cls
        self.modules, self.masks = reducer.modules_by_block, reducer.masks
        self.grid = family.grid_for(*images.shape[-2:])
        self.plan = reducer.plan_for(self.grid)
        method, depth = reducer.method, reducer.shape.depth
        self.methods = [] if method is None else [method.in_block(index, depth) for index in range(depth)]
        weighs = reducer.shape.head_reads_patches and reducer.heads_weigh_by_size
        averages = family.averages_positions
        self.tracks_size = weighs or averages or (method is not None and method.uses_size)
        self.damping = 0.0 if method is None else method.size_damping
        self.methods_differ_in_attention = len({one.proportional_attention for one in self.methods}) > 1
        self.spreads = self.plan.output != "tokens" or self.plan.unmerge_after is not None
        self.own_residual = self.plan.output in ("grid-residual", "grid-attention")
        self.keeps_steps = record or self.spreads

    def run(self, stream: Stream, index: int, steps: Sequence[Step]) -> BlockOutput:
        """Run one block with its reduction; ``steps`` are the reductions before it that still hold."""
        stream = stream._replace(tokens=self.pieces[index].entered(stream.tokens, _rows(stream, index)))
        if self.plan.output == "grid-attention" and self.plan.is_last(index) and steps:
            return BlockOutput(self._last_block_for_patches(stream, index, steps), unmerged=True)
        output = self._run(stream, index)
        if index != self.plan.unmerge_after:
            return output
        held = [*steps, *([] if output.step is None else [output.step])]
        return output._replace(stream=self._unmerged(output.stream, held), unmerged=True)

    def finished(self, stream: Stream, steps: Sequence[Step]) -> Stream:
        """What leaves the encoder."""
        return stream if self.plan.output == "tokens" else self._unmerged(stream, steps)

    def _unmerged(self, stream: Stream, steps: Sequence[Step]) -> Stream:
        """A token for every patch again, with the features of the token that stood for it."""
        tokens, prefix = stream.tokens, self.prefix
        positions = None if stream.positions is None else Positions(stream.positions.source, stream.positions.averages)
        if steps:
            patches = spread(tokens[:, prefix:], steps, self.own_residual)
            tokens = torch.cat([tokens[:, :prefix], patches], dim=1)
        return Stream(tokens, positions=positions)

    def _run(self, stream: Stream, index: int) -> BlockOutput:
        pieces, acts = self.pieces[index], self.plan.acts_in(index)
        if self.masks:
            return self._masked_block(pieces, stream, index)
        if self.plan.exact_last_block and self.plan.is_last(index):
            return self._last_block_for_prefix(pieces, stream, index)
        if not acts:
            return BlockOutput(self.plain_block(stream, index))
        method = self.methods[index]
        if method.site is Site.POST_ATTN:
            return self._reduce_after_attention(pieces, stream, index)
        if method.site is Site.KV:
            return self._reduce_keys_values(pieces, stream, index)
        if method.site is Site.PRE_BLOCK:
            stream, step = self._reduce(stream, {}, index)
            return BlockOutput(self.plain_block(stream, index), step)
        if "mlp_shift" in method.needs(self.has_cls):
            return BlockOutput(*self._reduce(*self._block_with_shift(pieces, stream, index), index))
        return BlockOutput(*self._reduce(self.plain_block(stream, index), {}, index))

    def _masked_block(self, pieces: BlockPieces, stream: Stream, index: int) -> BlockOutput:
        """Train a method that masks: no token is removed, and masked tokens no longer count."""
        if self.plan.acts_in(index):
            method = self.methods[index]
            assert isinstance(method, MaskTrainedMethod)
            keep = method.decide(self.view(stream, {}, index), stream.keep)
            size = keep.clamp(min=LEAST_WEIGHT) if self.tracks_size else None
            stream = stream._replace(keep=keep, size=size)
        if stream.keep is None:
            return BlockOutput(self.plain_block(stream, index))
        counts, rows = pad(stream.keep, (self.prefix, 0), value=1.0), _rows(stream, index)

        def work(x: Tensor) -> tuple[Tensor, None]:
            normed = pieces.normed(x)
            heads, bias = pieces.placed(pieces.project(normed), rows, rows)
            attended = attend_masked(*heads, counts, bias=bias, scale=pieces.scale, dropout=pieces.attention_dropout)
            tokens = pieces.mlp(x + pieces.after_attention(attended, normed))
            if self.spreads:  # a dropped token keeps its features, as in inference
                tokens = x + counts.unsqueeze(-1).to(tokens.dtype) * (tokens - x)
            return tokens, None

        return BlockOutput(stream._replace(tokens=run_inside(pieces.block, stream.tokens, work)[0]))

    def plain_block(self, stream: Stream, index: int) -> Stream:
        """A block that reduces nothing."""
        pieces = self.pieces[index]
        if stream.bias is None:
            return stream._replace(tokens=pieces.whole(stream.tokens, _rows(stream, index)))

        def work(x: Tensor) -> tuple[Tensor, None]:
            normed = pieces.normed(x)
            return pieces.mlp(_attend_to(pieces, index, stream._replace(tokens=normed), x, normed)), None

        return stream._replace(tokens=run_inside(pieces.block, stream.tokens, work)[0])

    def _block_with_shift(self, pieces: BlockPieces, stream: Stream, index: int) -> tuple[Stream, dict[str, Tensor]]:
        """A block, and how far its MLP moved each patch token, or all of it where both halves run side by side."""

        def work(x: Tensor) -> tuple[Tensor, Tensor]:
            normed = pieces.normed(x)
            between = _attend_to(pieces, index, stream._replace(tokens=normed), x, normed)
            after = pieces.mlp(between)
            start = between if pieces.shape().mlp_macs else x
            return after, row_norms((after - start)[:, self.prefix :])

        tokens, shift = run_inside(pieces.block, stream.tokens, work)
        return stream._replace(tokens=tokens), {"mlp_shift": shift}

    def _reduce_after_attention(self, pieces: BlockPieces, stream: Stream, index: int) -> BlockOutput:
        def work(x: Tensor) -> tuple[Tensor, tuple[Stream, Step | None]]:
            # keep no reference to queries, keys or scores, so that the MLP, which needs the most memory, reuses theirs
            after, step = self._reduce(*self.attention_half(stream._replace(tokens=x), index), index)
            return pieces.mlp(after.tokens), (after._replace(tokens=x), step)

        tokens, (after, step) = run_inside(pieces.block, stream.tokens, work)
        return BlockOutput(after._replace(tokens=tokens), step)

    def rest_of_block(self, index: int, half: Stream, scores: dict[str, Tensor]) -> BlockOutput:
        """Reduce the stream after attention and run the MLP."""
        stream, step = self._reduce(half, scores, index)
        return BlockOutput(stream._replace(tokens=self.pieces[index].mlp(stream.tokens)), step)

    def attention_half(self, stream: Stream, index: int) -> tuple[Stream, dict[str, Tensor]]:
        """The stream after attention, and the scores that the method needs."""
        pieces = self.pieces[index]
        normed = pieces.normed(stream.tokens)
        attended, scores = self._attend_with_scores(pieces, pieces.project(normed), stream, index)
        if "normed" in self.methods[index].needs(self.has_cls):
            scores["normed"] = normed[:, self.prefix :]
        x = stream.tokens + pieces.after_attention(attended, normed)
        return stream._replace(tokens=x), scores

    def _reduce_keys_values(self, pieces: BlockPieces, stream: Stream, index: int) -> BlockOutput:
        def work(x: Tensor) -> tuple[Tensor, Step | None]:
            normed = pieces.normed(x)
            sources, step = self._reduce(Stream(normed, positions=stream.positions), {}, index)
            return pieces.mlp(_attend_to(pieces, index, sources, x, normed, stream.positions)), step

        tokens, step = run_inside(pieces.block, stream.tokens, work)
        return BlockOutput(stream._replace(tokens=tokens), None, step)

    def _last_block_for_patches(self, stream: Stream, index: int, steps: Sequence[Step]) -> Stream:
        """Run the last block with all patches as queries; keys and values are the tokens that are left."""
        pieces, full = self.pieces[index], self._unmerged(stream, steps)

        def work(x: Tensor) -> tuple[Tensor, None]:
            sources = stream._replace(tokens=pieces.normed(x))
            after = _attend_to(pieces, index, sources, full.tokens, pieces.normed(full.tokens), full.positions)
            return pieces.mlp(after), None

        return full._replace(tokens=run_inside(pieces.block, stream.tokens, work)[0])

    def _last_block_for_prefix(self, pieces: BlockPieces, stream: Stream, index: int) -> BlockOutput:
        """Run the last block for prefix tokens only; patch tokens serve as keys and values and end here."""
        step, acts = None, self.plan.acts_in(index)
        if acts and self.methods[index].site is Site.PRE_BLOCK:
            stream, step = self._reduce(stream, {}, index)

        def work(x: Tensor) -> tuple[Tensor, Step | None]:
            normed, key_step = pieces.normed(x), None
            sources = stream._replace(tokens=normed)
            if acts and self.methods[index].site is Site.KV:
                sources, key_step = self._reduce(Stream(normed, positions=stream.positions), {}, index)
            own = None if stream.positions is None else stream.positions.of_no_patch(normed.device)
            after = _attend_to(pieces, index, sources, x[:, : self.prefix], normed[:, : self.prefix], own)
            return pieces.mlp(after), key_step

        tokens, key_step = run_inside(pieces.block, stream.tokens, work)
        return BlockOutput(Stream(tokens), step, key_step)

    def _attend_with_scores(
        self, pieces: BlockPieces, plain: Heads, stream: Stream, index: int
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Attention, and the scores of patch tokens that the method needs."""
        method, scale, rows = self.methods[index], pieces.scale, _rows(stream, index)
        needs = method.needs(self.has_cls)
        heads, pair_bias = pieces.placed(plain, rows, rows)
        bias = _sum(stream.bias, pair_bias)
        scores = {}
        if RECEIVED & needs:
            others, dropout = "attn_from_others" in needs, pieces.attention_dropout
            if needs >= RECEIVED:
                raise ValueError(f"{method.name} needs {' and '.join(sorted(RECEIVED))}; one of them is computed.")
            scored = attend_and_score(*heads, bias=bias, scale=scale, dropout=dropout, from_others=others)
            name = "attn_from_others" if others else "attn_received"
            attended, scores = scored.attended, {name: scored.received, "cls_attn": scored.class_row}
        else:
            attended = attend(*heads, bias=bias, scale=scale, dropout=pieces.attention_dropout)
            if "cls_attn" in needs:
                scores["cls_attn"] = class_row(heads.q, heads.k, bias=bias, scale=scale)
            if "cls_value_attn" in needs:
                scores["cls_value_attn"] = class_value_row(*heads, bias=bias, scale=scale)
        scores = {name: score[:, self.prefix :] for name, score in scores.items() if name in needs}
        if "keys" in needs:
            scores["keys"] = plain.k[:, :, self.prefix :]  # what a token holds, not where it is
        return attended, scores

    def view(self, stream: Stream, scores: dict[str, Tensor], index: int) -> BlockView:
        """What the method sees."""
        module, depth = self.modules.get(index), len(self.pieces)
        return BlockView(
            stream.tokens, self.prefix, stream.size, index, self.has_cls, self.grid, module, depth, **scores
        )

    def _reduce(self, stream: Stream, scores: dict[str, Tensor], index: int) -> tuple[Stream, Step | None]:
        view = self.view(stream, scores, index)
        method = self.methods[index]
        assignment, tokens = method.reduce(view, self.plan.counts[index])
        self._check_count(assignment, index)
        size = size_after(stream.size, assignment, tokens) if self.tracks_size else None
        if self.methods_differ_in_attention:
            counted = counted_after(stream.counted, assignment, tokens, method.proportional_attention)
        else:
            counted = size if method.proportional_attention else None
        bias = None
        if counted is not None:
            strength = size_strength(self.damping, self.plan.mean_share) if self.damping else 1.0
            bias = log_size_bias(counted, self.prefix, tokens.dtype, strength)
        positions = stream.positions
        if positions is not None:
            positions = positions.after(assignment, stream.size, tokens.shape[0], tokens.device)
        step = Step(assignment, view.patches, tokens[:, self.prefix :]) if self.keeps_steps else None
        return Stream(tokens, size, bias, counted, positions=positions), step

    def _check_count(self, assignment: Assignment, index: int) -> None:
        """Check the number of slots: another number than planned would make every cost wrong."""
        planned, method = self.plan.counts[index], self.methods[index]
        fewer_keys = method.site is Site.KV and assignment.num_out < planned  # image content may lead to fewer
        if assignment.num_out != planned and not fewer_keys:
            raise ValueError(
                f"{type(method).__name__}.assign got keep={planned} in block {index} and returned "
                f"{assignment.num_out} slots. Return as many slots as keep."
            )


def _rows(stream: Stream, index: int) -> Any:
    return None if stream.positions is None else stream.positions.rows(index)


def _attend_to(
    pieces: BlockPieces, index: int, sources: Stream, x: Tensor, normed: Tensor, positions: Positions | None = None
) -> Tensor:
    """The residual stream ``x`` after attention with queries from ``normed`` and keys and values from ``sources``.

    ``positions`` are those of the queries; by default those of ``sources``, which then has the same tokens.
    """
    key_rows = _rows(sources, index)
    query_rows = key_rows if positions is None else positions.rows(index)
    if normed is sources.tokens:
        heads = pieces.project(normed)
    else:
        heads = Heads(pieces.queries(normed), *pieces.keys_values(sources.tokens))
    heads, pair_bias = pieces.placed(heads, query_rows, key_rows)
    bias = _sum(sources.bias, pair_bias)
    attended = attend(*heads, bias=bias, scale=pieces.scale, dropout=pieces.attention_dropout)
    return x + pieces.after_attention(attended, normed)


def _sum(one: Tensor | None, other: Tensor | None) -> Tensor | None:
    return other if one is None else one if other is None else one + other
