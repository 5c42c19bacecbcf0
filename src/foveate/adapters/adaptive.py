"""Different counts for different images: every image of a batch follows the level that fits it.

The blocks before the first reduction run for the whole batch. There each image's level is chosen, and from there on the
images of one level run together as an ordinary batch with an ordinary plan. Nothing is padded or masked on the way, so
fewer tokens are really fewer, and the result for an image does not depend on the others.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from foveate.adapters.reduced import Reducer, check_whole
from foveate.adapters.stream import BlockOutput, Encoded, Step, Stream
from foveate.core.graphs import in_graph
from foveate.costs import Plan, at_grid, count, unreduced
from foveate.methods.validation import check_type
from foveate.plans import level_plans
from foveate.schedules import Adaptive

if TYPE_CHECKING:
    from foveate.adapters.engine import Runner

Model = TypeVar("Model", bound=nn.Module)
SHARDED = "An Adaptive schedule runs blocks in halves and in groups; use a fixed one, such as fv.Budget(0.5)"


def adaptive_schedule(reducer: Reducer | None) -> Adaptive | None:
    """The schedule of a model whose images may get different counts; None for any other model."""
    schedule = None if reducer is None else reducer.schedule
    return schedule if isinstance(schedule, Adaptive) else None


def plans_of_levels(reducer: Reducer, grid: tuple[int, int]) -> tuple[Plan, ...]:
    """The plan of each level for a patch grid."""
    reduction, schedule = reducer.reduction, adaptive_schedule(reducer)
    assert schedule is not None
    assert reduction.method is not None
    shape = reducer.shape if grid == reducer.shape.grid else at_grid(reducer.shape, grid)
    output = reduction.output or "tokens"
    return level_plans(shape, reduction.method, schedule, reduction.exact_last_block, output, reduction.merge_unmerge)


def first_block(plans: tuple[Plan, ...]) -> int:
    """The first block that reduces; the same for all levels but those that keep every token."""
    return min(block for plan in plans for block in range(len(plan.counts)) if plan.acts_in(block))


def encode_adaptive(runner: Runner, reducer: Reducer, stream: Stream, record: bool) -> Encoded:
    """Run all blocks, with a plan of its own for each image.

    Raises:
        ValueError: in a graph, whose shapes are fixed; if the threshold was not fitted; or if several images are to be
            recorded, whose counts may differ.
    """
    schedule, embedded = adaptive_schedule(reducer), stream.tokens
    assert schedule is not None
    if in_graph():
        raise ValueError(no_graph(schedule))
    check_whole(runner.pieces[first_block(plans_of_levels(reducer, runner.grid))].block, SHARDED)
    if schedule.threshold is None:
        raise ValueError(f"{schedule!r} has no threshold yet. Fit it on some images: fv.fit_adaptive_(model, images).")
    if record and embedded.shape[0] > 1:
        raise ValueError(
            f"The images of a batch may keep different numbers of tokens under {schedule!r}. Trace one at a time."
        )
    plans = plans_of_levels(reducer, runner.grid)
    first = first_block(plans)
    outputs, half, scores, costs = _until(runner, stream, first)
    levels = schedule.choose(costs, [plan.counts[first] for plan in plans])
    groups = []
    for level in sorted(set(levels.tolist())):
        members = (levels == level).nonzero().squeeze(1)
        part = copy.copy(runner)  # the same pieces with another plan
        part.plan = plans[level]
        found = {name: score[members] for name, score in scores.items()}
        encoded = _finish(part, half._replace(tokens=half.tokens[members]), found, first, outputs if record else None)
        groups.append((members, encoded))
    return _together(groups, embedded, runner.prefix)


def no_graph(schedule: Adaptive) -> str:
    """Why a graph cannot hold this schedule, and what to do."""
    return (
        f"{schedule!r} chooses the number of tokens for every image, but torch.export, ONNX, OpenVINO, torch.compile "
        "and torch.jit.trace need fixed shapes. Use a fixed schedule there: "
        f"fv.reschedule_(model, fv.Budget({schedule.fraction}))."
    )


@torch.no_grad()
def fit_adaptive_(model: Model, images: Tensor | Iterable[Tensor]) -> Model:
    """Fit the threshold of an ``Adaptive`` schedule, in place, so that these images meet its budget on average.

    Args:
        model: a model that is reduced with ``Adaptive(fraction)``.
        images: (B, C, H, W) as the model reads them, or batches of these; a hundred are enough.

    Returns:
        The model. Its schedule now has the threshold, and is saved with it.

    Raises:
        ValueError: if the model has no ``Adaptive`` schedule, there are no images, or they differ in size.
    """
    from foveate.adapters.engine import Runner, start_run  # the engine imports this file
    from foveate.adapters.registry import inspect

    family = inspect(model)
    reducer, schedule = family.reducer, adaptive_schedule(family.reducer)
    if reducer is None or schedule is None:
        raise ValueError("This model has no Adaptive schedule. Call reduce_(model, method, fv.Adaptive(0.5)) first.")
    if not isinstance(images, Tensor | Iterable) or isinstance(images, str):
        raise TypeError(f"images must be a tensor (B, C, H, W) or batches of it, got {type(images).__name__}.")
    training, found, grids = model.training, [], set()
    model.eval()
    try:
        for batch in [images] if isinstance(images, Tensor) else images:
            _check_batch(batch, model)
            runner, stream = start_run(family, batch)
            assert isinstance(runner, Runner)
            grids.add(runner.grid)
            plans = plans_of_levels(reducer, runner.grid)
            found.append(_until(runner, stream, first_block(plans))[3])
    finally:
        model.train(training)
    if len(grids) != 1:
        raise ValueError(f"fit_adaptive_ needs at least one image, and all of one size; got {len(grids)} sizes.")
    firsts = [plan.counts[first_block(plans)] for plan in plans]
    shape = at_grid(reducer.shape, grids.pop())
    macs = [count(shape, plan, reducer.method, 0).macs for plan in plans]
    target = schedule.fraction * count(shape, unreduced(shape), None, 0).macs
    reducer.reschedule(schedule.fitted(torch.cat(found), firsts, macs, target))
    return model


def predict_grouped(model: nn.Module, batches: Iterable[Tensor], pool: int = 64) -> Iterator[Tensor]:
    """Predict batch by batch, with images of several batches grouped by the number of tokens they keep.

    A batch of 16 has only a few images of each level, and small groups use a processor badly. Here ``pool`` images run
    up to the first reduction together, and each level's images from there on. Results are those of ``model(batch)``.

    Args:
        model: a model whose output is one tensor, in evaluation mode; with any other schedule nothing is grouped.
        batches: images (B, C, H, W), all of one size.
        pool: images that are grouped at once; memory grows with it.

    Yields:
        The output of each batch, in order.

    Raises:
        ValueError: if ``pool`` is below 1 or the model does not return a tensor.
    """
    if isinstance(pool, bool) or not isinstance(pool, int) or pool < 1:
        raise ValueError(f"pool must be a whole number of at least 1, got {pool!r}.")
    check_type(nn.Module, "a model", model=model)
    check_type(Iterable, "batches of images", batches=batches)
    held: list[Tensor] = []
    for batch in batches:
        _check_batch(batch, model)
        held.append(batch)
        if sum(map(len, held)) >= pool:
            yield from _predicted(model, held)
            held = []
    if held:
        yield from _predicted(model, held)


def _check_batch(batch: object, model: nn.Module) -> None:
    """Raise a ValueError for what is not a batch of images of the model's type."""
    dtype = next(model.parameters(), torch.empty(0)).dtype
    if not isinstance(batch, Tensor) or batch.dim() != 4 or batch.dtype != dtype:
        found = f"{tuple(batch.shape)} of {batch.dtype}" if isinstance(batch, Tensor) else type(batch).__name__
        raise ValueError(f"A batch must be images (B, C, H, W) of {dtype}, got {found}.")


def _predicted(model: nn.Module, held: list[Tensor]) -> tuple[Tensor, ...]:
    with torch.inference_mode():
        out = model(torch.cat(held))
    if not isinstance(out, Tensor):
        raise ValueError(f"predict_grouped needs a model that returns a tensor; this one returns {type(out).__name__}.")
    return out.split([len(batch) for batch in held])


def _until(runner: Runner, stream: Stream, first: int) -> tuple[list[BlockOutput], Stream, dict[str, Tensor], Tensor]:
    """Run up to the attention of block ``first``: outputs so far, the stream there, scores, and costs of removals."""
    outputs = []
    for index in range(first):
        outputs.append(BlockOutput(runner.plain_block(stream, index)))
        stream = outputs[-1].stream
    half, scores = runner.attention_half(stream, first)
    costs = runner.methods[first].removal_costs(runner.view(half, scores, first))
    assert costs is not None, "checked when the schedule is resolved"
    return outputs, half, scores, costs.detach()


def _finish(
    runner: Runner, half: Stream, scores: dict[str, Tensor], first: int, outputs: list[BlockOutput] | None
) -> Encoded:
    """Run what follows the attention of block ``first``; ``outputs`` before it, if all are recorded."""
    steps: list[Step] = []
    recorded = list(outputs or ())
    stream = half
    for index in range(first, len(runner.pieces)):
        output = runner.rest_of_block(index, half, scores) if index == first else runner.run(stream, index, steps)
        steps = [] if output.unmerged else [*steps, *([] if output.step is None else [output.step])]
        stream = output.stream
        recorded.append(output)
    return Encoded(
        half.tokens, runner.finished(stream, steps), () if outputs is None else tuple(recorded), runner.own_residual
    )


def _together(groups: list[tuple[Tensor, Encoded]], embedded: Tensor, prefix: int) -> Encoded:
    """The images of all groups in their order; those with fewer tokens end in tokens of size 0."""
    first: Any = groups[0][1]
    streams = [encoded.stream for _, encoded in groups]
    if len(groups) == 1:
        return Encoded(embedded, streams[0], first.blocks, first.own_residual)
    order = torch.cat([members for members, _ in groups]).argsort()
    length = max(stream.tokens.shape[1] for stream in streams)
    tokens = torch.cat([pad(s.tokens, (0, 0, 0, length - s.tokens.shape[1])) for s in streams])[order]
    size = None
    if any(s.size is not None or s.tokens.shape[1] < length for s in streams):
        sizes = [s.tokens.new_ones(s.tokens.shape[:2])[:, prefix:] if s.size is None else s.size for s in streams]
        size = torch.cat([pad(one, (0, length - prefix - one.shape[1])) for one in sizes])[order]
    return Encoded(embedded, Stream(tokens, size), (), first.own_residual)
