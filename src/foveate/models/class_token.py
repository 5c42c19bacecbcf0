"""Remove the class token of an existing model, which then predicts from the mean of its tokens."""

from __future__ import annotations

from typing import Any, TypeVar

from timm.models.deit import VisionTransformerDistilled
from timm.models.vision_transformer import VisionTransformer
from torch import nn

from foveate.adapters import Reduced, UnsupportedModel

Model = TypeVar("Model", bound=nn.Module)


def drop_class_token_(model: Model) -> Model:
    """Make a timm ViT or DeiT predict from the mean of its tokens instead of its class token, in place.

    This is HVT's head: y = FC(mean(LN(x))) instead of FC(LN(x_class)). The class token and its position are removed;
    all other weights and prefix tokens stay. The model then has to be fine-tuned.

    Returns:
        The model.

    Raises:
        UnsupportedModel: if the class token of this model cannot be dropped.
        ValueError: if the model is reduced, or has no class token.
    """
    _drop(model)
    return model


def _drop(model: Any) -> None:
    _check(model)
    if model.pos_embed is not None and not model.no_embed_class:
        positions = model.pos_embed
        model.pos_embed = nn.Parameter(positions.data[:, 1:].clone(), requires_grad=positions.requires_grad)
    model.cls_token = None
    model.has_class_token = False
    model.num_prefix_tokens -= 1
    model.global_pool = "avg"


def _check(model: Any) -> None:
    name = type(model).__name__
    if isinstance(model, Reduced):
        raise ValueError("This model is reduced. Call restore_(model), drop the class token, and reduce it again.")
    if not isinstance(model, VisionTransformer) or isinstance(model, VisionTransformerDistilled):
        raise UnsupportedModel(
            f"The class token can only be dropped from timm's VisionTransformer (ViT, DeiT); this is a {name}."
        )
    if model.cls_token is None:
        raise ValueError(f"This {name} has no class token to drop.")
    if model.attn_pool is not None:
        raise UnsupportedModel(f"This {name} predicts by attention pooling ({model.global_pool!r}), not from a token.")
