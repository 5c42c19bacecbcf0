"""Heads that read patch tokens, when a token may stand for many patches."""

from __future__ import annotations

import torch
from torch import Tensor

_TAG = "_foveate_weights"


def mean_of_patches(tokens: Tensor, size: Tensor | None, prefix: int = 0) -> Tensor:
    """The mean over patches, from tokens (B, P + N, C): each weighted by its ``size`` (B, N), prefix tokens by 1."""
    if size is None:
        return tokens.mean(dim=1)
    weight = torch.nn.functional.pad(size, (prefix, 0), value=1.0)
    weight = (weight / weight.sum(dim=1, keepdim=True)).to(tokens.dtype)
    return (tokens * weight.unsqueeze(-1)).sum(dim=1)


def tag_weights(tokens: Tensor, weights: Tensor | None) -> Tensor:
    """Note on the tensor itself what each patch token weighs (B, N), for a head that is called separately.

    ``forward_head(forward_features(x))`` is common and passes one tensor. A compiled graph cannot carry the note;
    the head then says so instead of reading wrongly.
    """
    if not torch.compiler.is_compiling():
        setattr(tokens, _TAG, (weights,))
    return tokens


def tagged_weights(tokens: Tensor) -> Tensor | None:
    """The note that ``tag_weights`` left; None where all weigh the same."""
    noted: tuple[Tensor | None] | None = getattr(tokens, _TAG, None)
    if noted is None:
        raise ValueError(
            "This head reads patch tokens, and those given do not say how many patches each stands for. "
            "Pass the output of forward_features unchanged, or call the model as a whole."
        )
    return noted[0]
