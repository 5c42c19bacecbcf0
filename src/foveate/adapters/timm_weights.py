"""Weights made to fit a timm model: published names, class token, image size, positions behind HVT's poolings."""

from __future__ import annotations

from collections.abc import Mapping
from math import isqrt
from typing import Any

from timm.models.vision_transformer import checkpoint_filter_fn
from torch import Tensor, nn

from foveate.adapters.official_names import from_official
from foveate.adapters.reduced import CHILD
from foveate.adapters.registry import reducer_of
from foveate.methods.hvt_pool import Grid, PooledStage, resample, shapes_after

CLASSIFIERS = ("head.", "head_dist.", "aux_head.")


def convert_weights(weights: Mapping[str, Any], model: Any) -> dict[str, Tensor]:
    """Weights of a ViT, DeiT, EViT, DynamicViT, HVT or LV-ViT, made to fit ``model``.

    Load them with ``model.load_state_dict``. Names of the published files are replaced by ours. The class token and its
    position go where ``model`` has none. Positions of another number are resampled, as those of a square image. What
    the weights have nothing of, such as the positions behind HVT's poolings in those of a DeiT, stays as ``model`` has
    it.

    Args:
        weights: names and tensors, also one level down, under ``model`` or ``state_dict``.
        model: a timm model, reduced already where the weights are of a reduced one (DynamicViT, HVT).

    Raises:
        ValueError: if the weights have names that ``model`` does not have, or are of an HVT with other stages or
            another pooling, or of a DynamicViT with other stages.
    """
    _check_model(model)
    found = _without_class_token(from_official(unwrapped(weights), model), model)
    _check_positions(found, model)
    learned = _learned(found, model)
    try:
        fitted = dict(checkpoint_filter_fn(found, model)) | learned
    except (AttributeError, IndexError, KeyError, RuntimeError, TypeError) as error:
        raise ValueError(f"timm cannot adapt them: {error}") from error
    _check_names(fitted, model)
    return fitted


def _check_model(model: object) -> None:
    if not isinstance(model, nn.Module) or not hasattr(model, "num_prefix_tokens"):
        raise TypeError(f"model must be a timm ViT, got {type(model).__name__}.")


def _check_names(weights: dict[str, Any], model: nn.Module) -> None:
    """Refuse names the model does not have; loaded without care, what they hold would be missing in silence."""
    unknown = sorted(weights.keys() - model.state_dict().keys())
    unknown = [name for name in unknown if not name.startswith(CLASSIFIERS)]  # those are replaced on purpose
    if unknown:
        raise ValueError(
            f"{len(unknown)} of their names are unknown to this {type(model).__name__}, such as "
            f"{', '.join(unknown[:3])}. Build the model that they belong to."
        )


def unwrapped(weights: Mapping[str, Any]) -> dict[str, Any]:
    """The weights by name; files of DeiT and of many training loops nest them one level down."""
    if not isinstance(weights, Mapping):
        raise TypeError(f"weights must be tensors by name, as from state_dict(); got {type(weights).__name__}.")
    for key in ("model", "state_dict"):
        inner = weights.get(key)
        weights = inner if isinstance(inner, Mapping) else weights
    return dict(weights)


def _without_class_token(weights: dict[str, Any], model: Any) -> dict[str, Any]:
    has_token = getattr(model, "cls_token", None) is not None
    if has_token and "pos_embed" in weights and "cls_token" not in weights:
        raise ValueError(
            f"They have no class token and {weights['pos_embed'].shape[1]} positions; the model has a class token and "
            f"{_length(model)} positions. Build it with class_token=False and global_pool='avg'."
        )
    if has_token or "cls_token" not in weights:
        return weights
    weights = {name: tensor for name, tensor in weights.items() if name != "cls_token"}
    if "pos_embed" in weights and _holds_class_position(weights["pos_embed"].shape[1], model):
        weights["pos_embed"] = weights["pos_embed"][:, 1:]
    return weights


def _holds_class_position(length: int, model: Any) -> bool:
    """Whether one of ``length`` positions is the class token's; a DeiT-III has none for it."""
    own = _length(model)
    return length - 1 == own or (length != own and _square(length - _prefix(model)) is None)


def _check_positions(weights: dict[str, Any], model: Any) -> None:
    """Raise ``ValueError`` for positions that timm would mistake for a square grid."""
    length, own = weights["pos_embed"].shape[1] if "pos_embed" in weights else None, _length(model)
    if length is None or own is None or length == own:
        return
    if _square(length - _prefix(model)) is None:
        raise ValueError(
            f"They have {length} positions, the model has {own}. Positions are resampled from a square grid, but "
            f"{length - _prefix(model)} patches do not form one. Build the model for the image size of the weights, "
            "load them, and call its set_input_size."
        )


def _learned(weights: dict[str, Any], model: nn.Module) -> dict[str, Tensor]:
    """Tensors under ``foveate.``: from the weights if they have any, else from ``model``."""
    own = {name: tensor for name, tensor in model.state_dict().items() if name.startswith(f"{CHILD}.")}
    found = {name for name in weights if name.startswith(f"{CHILD}.")}
    if not found:
        return own
    if found != own.keys():
        differing = sorted(found ^ own.keys())
        raise ValueError(
            f"They are from a model with other stages or another pooling: {len(differing)} names are in only one of "
            f"the two, such as {', '.join(differing[:3])}. Build the model with the stages and pool of the weights."
        )
    reducer = reducer_of(model)
    assert reducer is not None
    stages = {f"{CHILD}.learned.{block}.pos_embed": stage for block, stage in reducer.modules_by_block.items()}
    grid = _square(weights["pos_embed"].shape[1] - _prefix(model)) if "pos_embed" in weights else None
    return {name: _fitted(name, weights[name], tensor, stages.get(name), grid) for name, tensor in own.items()}


def _fitted(name: str, found: Tensor, own: Tensor, stage: nn.Module | None, grid: Grid | None) -> Tensor:
    """A tensor under ``foveate.``; positions that differ in number are resampled from the ``grid`` of the weights."""
    if found.shape == own.shape:
        return found
    if not isinstance(stage, PooledStage):
        raise ValueError(f"{name} has shape {tuple(found.shape)} in the weights and {tuple(own.shape)} in the model.")
    rows, columns = (0, 0) if grid is None else shapes_after(grid, stage.poolings, stage.pool_dim)[-1]
    if grid is None or rows * columns != found.shape[1]:
        raise ValueError(
            f"{name} has {found.shape[1]} positions in the weights, {own.shape[1]} in the model, and no square image "
            f"pooled with pool_dim={stage.pool_dim} has that many. Build the model for the image size of the weights, "
            "load them, and call its set_input_size."
        )
    return resample(found, grid, stage.grid, stage.poolings, stage.pool_dim)


def _square(patches: int) -> Grid | None:
    side = isqrt(max(patches, 0))
    return (side, side) if side and side * side == patches else None


def _length(model: Any) -> int | None:
    """Number of the model's positions; None if it has none."""
    return None if getattr(model, "pos_embed", None) is None else int(model.pos_embed.shape[1])


def _prefix(model: Any) -> int:
    """Number of positions that belong to prefix tokens."""
    return 0 if getattr(model, "no_embed_class", False) else int(model.num_prefix_tokens)
