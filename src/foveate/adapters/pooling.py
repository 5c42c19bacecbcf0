"""Heads that read patch tokens, each of which may stand for many patches."""

from __future__ import annotations

import torch
from torch import Tensor

_TAG = "_foveate_weights"


def mean_of_patches(tokens: Tensor, size: Tensor | None, prefix: int = 0) -> Tensor:
    """Mean over patches of tokens (B, P + N, C), weighted by ``size`` (B, N); prefix tokens have weight 1."""
    if size is None:
        return tokens.mean(dim=1)
    weight = torch.nn.functional.pad(size, (prefix, 0), value=1.0)
    weight = (weight / weight.sum(dim=1, keepdim=True)).to(tokens.dtype)
    return (tokens * weight.unsqueeze(-1)).sum(dim=1)


def tag_weights(tokens: Tensor, weights: Tensor | None) -> Tensor:
    """Attach the weights (B, N) of patch tokens to the tensor, for a head that is called separately.

    ``forward_head(forward_features(x))`` is common and passes one tensor. A compiled graph loses the attribute, and the
    head then raises an error instead of giving wrong results.
    """
    if not torch.compiler.is_compiling():
        setattr(tokens, _TAG, (weights,))
    return tokens


def tagged_weights(tokens: Tensor) -> Tensor | None:
    """The weights that ``tag_weights`` attached; None if all are equal.

    Raises:
        ValueError: if the tensor has no tag.
    """
    noted: tuple[Tensor | None] | None = getattr(tokens, _TAG, None)
    if noted is None:
        raise ValueError(
            "This head reads patch tokens and needs to know how many patches each stands for. "
            "Pass the output of forward_features unchanged, or call the model as a whole."
        )
    return noted[0]
