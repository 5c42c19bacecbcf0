"""The main functions: reduce a model, restore it, and see what it costs and which tokens it keeps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar, Unpack

import torch
from torch import Tensor, nn

from foveate.adapters import Encoded, Family, Trace, detach_, inspect, reduced_part, reducer_of, spread_to_patches
from foveate.costs import Cost
from foveate.methods.base import Method
from foveate.methods.validation import shown
from foveate.reductions import Reduction, ReductionOptions, as_reduction
from foveate.schedules import Schedule

Model = TypeVar("Model", bound=nn.Module)


def reduce_(
    model: Model,
    method: Method | str,
    schedule: Schedule | float | str | None = None,
    **options: Unpack[ReductionOptions],
) -> Model:
    """Make ``model`` keep fewer tokens, in place. Short for ``Reduction(method, schedule, ...).apply_(model)``.

    Args:
        model: a model of a supported family; see ``inspect``.
        method: an instance such as ``ToMe()``, or a name with options such as ``"evit:fuse=false"``.
        schedule: how many tokens are left after each block; a number such as 0.5 means ``Budget(0.5)``. Leave it out
            for a method that fixes its own counts.
        options: further fields of ``Reduction``: ``exact_last_block``, ``unit_qk``, ``output``, ``merge_unmerge`` and
            ``positions``.

    Returns:
        The model.

    Raises:
        UnsupportedModel: if foveate does not support the model.
        PlanError: if the model or the method cannot follow the schedule.
        ValueError: if the model is already reduced. After any error the model is unchanged.
    """
    if method is None:
        raise TypeError("reduce_ needs a method such as ToMe(), or a name such as 'tome'; got None.")
    return Reduction(method, schedule, **options).apply_(model)  # type: ignore[arg-type]


def reschedule_(model: Model, schedule: Schedule) -> Model:
    """Change the schedule of a reduced ``model`` in place. Learned weights of its method stay.

    Call it repeatedly to lower the keep rate during training.

    Args:
        model: a reduced model.
        schedule: the new schedule.

    Returns:
        The model.

    Raises:
        ValueError: if the model is not reduced, or cannot follow the schedule.
    """
    reducer = reducer_of(model)
    if reducer is None:
        raise ValueError(f"This {type(model).__name__} is not reduced. Call reduce_(model, method, schedule) first.")
    if schedule is None:
        raise TypeError("reschedule_ needs a schedule: Keep, KeepRate, RemovePerBlock or Budget; got None.")
    reducer.reschedule(reducer.reduction.with_schedule(schedule).schedule)  # type: ignore[arg-type]
    return model


def restore_(model: Model) -> Model:
    """Undo ``reduce_`` in place. The model then gives its original outputs, bit for bit.

    Returns:
        The model.

    Raises:
        ValueError: if the model is not reduced.
    """
    part = reduced_part(model)
    if part is None:
        raise ValueError(f"This {type(model).__name__} is not reduced, so there is nothing to restore.")
    detach_(part)
    return model


def is_reduced(model: nn.Module) -> bool:
    """Whether ``model``, or the encoder inside it, is reduced."""
    return reduced_part(model) is not None


@contextmanager
def reduced(
    model: Model,
    method: Method | str | Reduction,
    schedule: Schedule | float | str | None = None,
    **options: Unpack[ReductionOptions],
) -> Iterator[Model]:
    """Reduce ``model`` inside a ``with`` block and restore it at the end, even after an exception.

    Takes the arguments of ``reduce_``, or a ``Reduction``.
    """
    if method is None:
        raise TypeError("reduced needs a method such as ToMe(), a name such as 'tome', or a Reduction; got None.")
    as_reduction(method, schedule, **options).apply_(model)
    try:
        yield model
    finally:
        if is_reduced(model):
            restore_(model)


def cost(model: nn.Module, image_size: Sequence[int] | None = None) -> Cost:
    """Count multiply-accumulates, parameters and tokens for one image, on a reduced or unreduced model.

    Args:
        model: a model of a supported family.
        image_size: (channels, height, width); by default the size the model was built for.
    """
    return inspect(model).cost(image_size)  # type: ignore[arg-type]


@torch.no_grad()
def trace(model: nn.Module, images: Tensor, **options: Any) -> Trace:
    """Record which patches each token holds after each block.

    Args:
        model: a model of a supported family.
        images: (B, C, H, W) as the model reads them.
        options: for the model's embedding (transformers: ``interpolate_pos_encoding=True``).
    """
    family = inspect(model)
    if family.reducer is not None and family.reducer.masks:
        raise ValueError(
            f"{type(family.reduction.method).__name__} removes no tokens in training mode. Call model.eval() first."
        )
    encoded = _recorded(family, images, options)
    return Trace.of(encoded, family.grid_for(*images.shape[-2:]), family.num_prefix)


def _recorded(family: Family, images: Tensor, options: dict[str, Any]) -> Encoded:
    """Run embedding and blocks; if that fails, the error tells how the images differ from the weights."""
    if isinstance(images, Tensor) and images.dim() == 4 and images.shape[1] != family.image_size[0]:
        raise ValueError(f"The model takes {family.image_size[0]} channels; the images have {images.shape[1]}.")
    try:
        return family.encode(images, record=True, **options)
    except (NotImplementedError, RuntimeError) as error:
        weights = next(family.model.parameters())
        given = (images.dtype, images.device, images.layout)
        if given == (weights.dtype, weights.device, weights.layout):
            raise
        raise ValueError(
            f"The images are {given[0]} on {given[1]} ({given[2]}), but the model's weights are {weights.dtype} on "
            f"{weights.device}. Use images.to(device, dtype)."
        ) from error


def features(model: nn.Module, images: Tensor, block: int | Sequence[int] = -1, **options: Any) -> Any:
    """Compute dense features after ``block`` and the final norm: every patch gets its token's features.

    A patch whose token was dropped gets the features that the token had at that point.

    Args:
        model: a model of a supported family.
        images: (B, C, H, W) as the model reads them.
        block: one block, counted from 0 or from the end, or several.
        options: for the model's embedding (transformers: ``interpolate_pos_encoding=True``).

    Returns:
        (B, C, rows, columns), or a list of these for several blocks.
    """
    family = inspect(model)
    depth = len(family.blocks)
    if not isinstance(block, int | Sequence) or isinstance(block, str | bytes):
        raise TypeError(f"block must be a number or a list of numbers, got {shown(block)}.")
    wanted: list[int] = [block] if isinstance(block, int) else list(block)
    for number in wanted:
        if isinstance(number, bool) or not isinstance(number, int):
            raise TypeError(f"block must be a number or a list of numbers, got {shown(block)}.")
        if not -depth <= number < depth:
            raise IndexError(f"The model has {depth} blocks (0..{depth - 1}); got block {number}.")
    encoded = _recorded(family, images, options)
    grid = family.grid_for(*images.shape[-2:])
    maps = []
    for number in wanted:
        patches, _ = spread_to_patches(encoded, number % depth, family.num_prefix)
        maps.append(family.final_norm(patches).unflatten(1, grid).permute(0, 3, 1, 2).contiguous())
    return maps[0] if isinstance(block, int) else maps
