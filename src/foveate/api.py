"""The verbs: reduce a model, put it back, and look at what it costs and keeps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from foveate.adapters import (
    CHILD,
    Reduced,
    Reduction,
    Trace,
    UnitQK,
    UnitScales,
    drop_class_token,
    encode,
    find_adapter,
    reduced_class,
    reduction_of,
    spread_to_patches,
)
from foveate.cost import Cost, CountsItself, PlanError, count, unreduced
from foveate.methods.base import Method
from foveate.methods.cluster_attention import ClusterCount
from foveate.schedule import OwnCounts, Schedule

Model = TypeVar("Model", bound=nn.Module)


def reduce_(
    model: Model,
    method: Method,
    schedule: Schedule | None = None,
    *,
    exact_last_block: bool = False,
    unit_qk: UnitQK | None = None,
) -> Model:
    """Make ``model`` keep fewer tokens, in place; returns it.

    ``schedule`` may be left out where the method fixes its own counts. ``exact_last_block`` computes the last block
    for prefix tokens alone, which is exact where the head reads nothing else; ``forward_features`` then returns
    prefix tokens only. ``unit_qk`` makes attention compare queries and keys of unit length, with a scale of 1
    ("fixed") or one learned in each block ("learned"); such a model is to be trained. On any error the model is left
    as it was.
    """
    adapter = find_adapter(model)
    if isinstance(model, Reduced):
        raise ValueError(
            f"This model is already reduced by {model.foveate.method!r}, {model.foveate.schedule!r}. "
            "Call restore_(model) first."
        )
    if hasattr(model, CHILD):
        raise ValueError(f"The model already has an attribute {CHILD!r}, the name foveate's own child needs.")
    _check_request(method, schedule)
    has_cls = adapter.has_cls(model)
    if method.needs_class_token and not has_cls:
        raise ValueError(
            f"{type(method).__name__} ranks by class-token attention; this model has no class token. "
            "Use ToMe, or TopK, which falls back on the attention a token receives."
        )
    shape = adapter.shape(model, _grid(model))
    if exact_last_block and shape.head_reads_patches:
        raise ValueError("exact_last_block needs a head that reads prefix tokens only; this one reads patch tokens.")
    if exact_last_block and not shape.num_prefix:
        raise ValueError("exact_last_block needs a prefix token (class token); this model has none.")
    if unit_qk not in (None, "fixed", "learned"):
        raise ValueError(f"unit_qk is 'fixed', 'learned' or None; got {unit_qk!r}.")
    scales = None if unit_qk is None else UnitScales(unit_qk, shape)
    reduction = Reduction(method, schedule or OwnCounts(), shape, exact_last_block, scales)
    reference = next(model.parameters())
    model.add_module(CHILD, reduction.to(reference.device, reference.dtype).train(model.training))
    model.__class__ = reduced_class(adapter.mixin, type(model))
    return model


def reschedule_(model: Model, schedule: Schedule) -> Model:
    """Let a reduced ``model`` follow another schedule, in place; what its method has learned stays. Returns it.

    A keep rate that falls during training is a series of these.
    """
    reduction = reduction_of(model)
    if reduction is None:
        raise ValueError(f"This {type(model).__name__} is not reduced. Call reduce_(model, method, schedule).")
    _check_request(reduction.method, schedule)
    reduction.reschedule(schedule)
    return model


def restore_(model: Model) -> Model:
    """Undo ``reduce_``, in place: the original model again, bit for bit."""
    if not isinstance(model, Reduced):
        raise ValueError(f"This {type(model).__name__} is not reduced, so there is nothing to restore.")
    delattr(model, CHILD)
    model.__class__ = model._foveate_base
    return model


def drop_class_token_(model: Model) -> Model:
    """Let ``model`` predict from the mean of its tokens instead of its class token, in place; returns it.

    HVT's head, y = FC(mean(LN(x))), for a ViT or DeiT of timm that exists already; the class token and its position
    are gone, every other weight stays. The model is then to be fine-tuned.
    """
    drop_class_token(model)
    return model


def cost(model: nn.Module, image_size: Sequence[int] | None = None) -> Cost:
    """What one image (channels, height, width) costs, for a reduced or an untouched model.

    A backbone of another kind may count itself: its method ``foveate_cost(image_size)``.
    """
    if isinstance(model, CountsItself):
        return model.foveate_cost(image_size)
    adapter = find_adapter(model)
    grid = _grid(model, image_size)
    shape = adapter.shape(model, grid)
    params = sum(p.numel() for p in model.parameters())
    reduction = reduction_of(model)
    if reduction is None:
        return count(shape, unreduced(shape), None, params)
    return count(shape, reduction.plan_for(grid), reduction.method, params)


@torch.no_grad()
def trace(model: nn.Module, images: Tensor, **embed: Any) -> Trace:
    """Which patches each token holds after each block, for these images.

    ``embed`` goes to the model's embedding (transformers: ``interpolate_pos_encoding=True``).
    """
    reduction = reduction_of(model)
    if reduction is not None and reduction.method.trains_by_masks and reduction.training:
        raise ValueError(f"In training {type(reduction.method).__name__} removes no token. Call model.eval() first.")
    adapter = find_adapter(model)
    encoded = encode(adapter, model, images, record=True, **embed)
    return Trace.of(encoded, adapter.grid(model, *images.shape[-2:]), adapter.num_prefix(model))


def features(model: nn.Module, images: Tensor, block: int = -1, **embed: Any) -> Tensor:
    """Dense features after ``block`` and the final norm, (B, C, H, W): every patch gets its token's features.

    A patch whose token was dropped shows that token as it was when it was dropped.
    """
    adapter = find_adapter(model)
    encoded = encode(adapter, model, images, record=True, **embed)
    depth = len(encoded.blocks)
    if not -depth <= block < depth:
        raise IndexError(f"The model has {depth} blocks (0..{depth - 1}); got block {block}.")
    patches, _ = spread_to_patches(encoded, block % depth, adapter.num_prefix(model))
    rows, columns = adapter.grid(model, *images.shape[-2:])
    return adapter.final_norm(model, patches).unflatten(1, (rows, columns)).permute(0, 3, 1, 2).contiguous()


@torch.no_grad()
def fit_cluster_counts_(model: Model, batches: Iterable[Tensor], passes: int = 2) -> Model:
    """Let the content of images decide how many clusters they have, in place; returns the model.

    Finds the thresholds at which the images of ``batches`` have the asked ``average`` on average. As fewer clusters in
    one block change what the next ones see, it goes over them ``passes`` times.
    """
    counts = [module for module in model.modules() if isinstance(module, ClusterCount)]
    if not counts:
        raise ValueError("No clusters of this model follow the content: reduce it by ClusterAttention(average=0.5).")
    held, training = list(batches), model.training
    model.eval()
    try:
        for _ in range(passes):
            for count in counts:
                count.seen = []
            for images in held:
                model(images)
            for count in counts:
                count.fit()
    finally:
        for count in counts:
            count.seen = None
        model.train(training)
    return model


def _grid(model: nn.Module, image_size: Sequence[int] | None = None) -> tuple[int, int]:
    adapter = find_adapter(model)
    channels, height, width = adapter.image_size(model)
    if image_size is not None:
        if len(image_size) != 3:
            raise ValueError(f"image_size is (channels, height, width); got {tuple(image_size)}.")
        if image_size[0] != channels:
            raise ValueError(
                f"The model takes {channels} channels; image_size={tuple(image_size)} has {image_size[0]}."
            )
        height, width = image_size[1:]
    return adapter.grid(model, height, width)


def _check_request(method: object, schedule: object) -> None:
    """Catch swapped or unfinished arguments with words instead of an AttributeError later."""
    if isinstance(method, type) or not isinstance(method, Method):
        raise TypeError(f"method is an instance such as ToMe(); got {method!r}.")
    if isinstance(schedule, type) or not isinstance(schedule, Schedule | None):
        raise TypeError(f"schedule is one of Keep, KeepRate, RemovePerBlock, Budget; got {schedule!r}.")


__all__ = ["PlanError", "cost", "drop_class_token_", "features", "reduce_", "reschedule_", "restore_", "trace"]
