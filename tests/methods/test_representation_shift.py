"""Representation shift: the tokens that a block's MLP moves most stay."""

import pytest
import torch

import foveate as fv
from foveate.methods import RepresentationShift
from zoo import images, make


@pytest.mark.parametrize("family", ["timm-cls", "timm-parallel-scaling"])
def test_kept_tokens_are_those_that_move_most(family):
    model, x = make(family, 2), images(2)
    bound = fv.inspect(model)
    with torch.no_grad():
        before = bound.embed(x)
        pieces = bound.pieces()[0]
        normed = pieces.normed(before)
        q, k, v = pieces.project(normed)
        attended = (q @ k.transpose(2, 3) * pieces.scale).softmax(dim=-1) @ v
        between = before + pieces.after_attention(attended, normed)
        after = bound.blocks[0](before)
        start = between if family == "timm-cls" else before  # a block of parallel halves has no between
        shift = (after - start).norm(dim=-1)[:, bound.num_prefix :]
        fv.reduce_(model, RepresentationShift(), fv.Keep({0: 9}))
        kept = fv.trace(model, x).steps[0].src
    assert kept.tolist() == [sorted(image.argsort(descending=True)[:9].tolist()) for image in shift]
