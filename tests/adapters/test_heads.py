"""Heads that read patch tokens, and attention, must count a merged token as often as it stands for a patch."""

import dataclasses
from typing import ClassVar

import pytest
import torch

import foveate as fv
from foveate.adapters import engine
from foveate.core import pool, unpool, weighted_means
from foveate.methods import Method, Site
from zoo import images, main_output, make

READS_PATCHES = [
    "timm-mean",
    "timm-cls-mean",
    "timm-map",
    "timm-registers-map",
    "hf-dinov2",
    "hf-dinov2-registers",
    "hf-clip-classifier",
    "hf-siglip-vision",
    "hf-siglip-classifier",
]


@dataclasses.dataclass(frozen=True)
class MergeTail(Method):
    """Keep the first tokens and merge all the others into the last slot, as their mean: sizes 1, 1, ..., many."""

    proportional_attention: bool = False

    site: ClassVar[Site] = Site.POST_BLOCK

    def assign(self, view, keep):
        batch, n, _ = view.patches.shape
        return weighted_means(torch.arange(n).clamp(max=keep - 1).expand(batch, n), keep)


@dataclasses.dataclass(frozen=True)
class RepeatTail(MergeTail):
    """The same groups, whose tokens become equal but stay apart: what merging must be equivalent to."""

    def combine(self, view, assignment):
        spread = unpool(pool(view.patches, assignment), assignment)
        return torch.cat([view.tokens[:, : view.prefix], spread], dim=1)


@pytest.mark.parametrize("family", READS_PATCHES)
def test_a_merged_token_counts_as_often_as_its_patches(family, monkeypatch):
    merged = fv.reduce_(make(family), MergeTail(), fv.Keep({3: 9}))
    apart = fv.reduce_(make(family), RepeatTail(), fv.Keep({3: 9}))
    with torch.no_grad():
        got = main_output(merged, images())
        monkeypatch.setattr(engine, "size_after", lambda *_: None)  # every token of the second is one patch
        want = main_output(apart, images())
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("family", ["timm-cls", "timm-registers-map", "hf-dinov2", "torchvision"])
def test_later_attention_counts_a_merged_token_as_often_as_its_patches(family, monkeypatch):
    merged = fv.reduce_(make(family), MergeTail(proportional_attention=True), fv.Keep({1: 9}))
    apart = fv.reduce_(make(family), RepeatTail(), fv.Keep({1: 9}))
    with torch.no_grad():
        got = main_output(merged, images())
        monkeypatch.setattr(engine, "size_after", lambda *_: None)
        want = main_output(apart, images())
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("family", ["timm-mean", "timm-cls-mean", "timm-map", "timm-cls", "timm-tokens"])
def test_head_after_features_equals_the_whole_model(family):
    model, x = fv.reduce_(make(family), fv.ToMe(), fv.KeepRate(0.6, blocks=(1, 2))), images()
    with torch.no_grad():
        assert torch.equal(model.forward_head(model.forward_features(x)), model(x))
        pooled = model.forward_head(model.forward_features(x), pre_logits=True)
        torch.testing.assert_close(model.head(pooled), model(x))


def test_an_averaging_head_says_so_when_it_is_not_told_the_sizes():
    model, x = fv.reduce_(make("timm-mean"), fv.ToMe(), fv.KeepRate(0.6, blocks=(1, 2))), images()
    tokens = model.forward_features(x).clone()
    with pytest.raises(ValueError, match="how many patches each stands for"):
        model.forward_head(tokens)


def test_a_mean_head_without_sizes_would_be_wrong():
    """Guards the two tests above: the weights must matter on these images."""
    model, x = fv.reduce_(make("timm-mean"), fv.ToMe(), fv.KeepRate(0.6, blocks=(1, 2))), images()
    with torch.no_grad():
        plain_mean = model.head(model.fc_norm(model.forward_features(x).mean(dim=1)))
        assert (plain_mean - model(x)).abs().max() > 1e-3
