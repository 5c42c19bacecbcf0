"""Towers of language models, and models for patches of many grids: what their heads read, and what is refused."""

import pytest
import torch
from timm.models.deepseek_vit import DeepseekVitClassifier, DeepseekVitEncoder
from timm.models.gemma4_vit import Gemma4VitClassifier, Gemma4VitEncoder
from timm.models.naflexvit import NaFlexVit
from timm.models.qwen3_vit import Qwen3VitClassifier, Qwen3VitEncoder
from torch.utils.flop_counter import FlopCounterMode

import foveate as fv
from zoo import CLASSES, DIM, GRID, HEADS, IMAGE, PATCH, PATCHES, images, make, reduced

SMALL = {"img_size": IMAGE, "patch_size": PATCH, "embed_dim": DIM, "depth": 3, "num_heads": HEADS}
GEMMA = {"head_dim": DIM // HEADS, "intermediate_size": DIM, "position_embedding_size": 16}
FLEX = {"pos_embed_grid_size": GRID, "global_pool": "avg", "reg_tokens": 2, "num_classes": CLASSES}
BUILT = {
    "encoder without a projector": lambda: Qwen3VitEncoder(**SMALL, global_pool=""),
    "encoder that averages": lambda: Qwen3VitEncoder(**SMALL, global_pool="avg"),
    "classifier behind a projector": lambda: Qwen3VitClassifier(**SMALL, encoder_pool="merge", num_classes=CLASSES),
    "classifier of every token": lambda: DeepseekVitClassifier(**SMALL, global_pool="", num_classes=CLASSES),
    "padded cells": lambda: DeepseekVitEncoder(**SMALL | {"img_size": 20}, out_features=6),
    "pooled classifier": lambda: Gemma4VitClassifier(**SMALL, **GEMMA, encoder_pool="soft", num_classes=CLASSES),
    "pooled tokens": lambda: Gemma4VitEncoder(**SMALL, **GEMMA, standardize=True),
    "registers and a mean": lambda: NaFlexVit(**SMALL, **FLEX),
}


@pytest.mark.parametrize("name", BUILT)
def test_every_kind_of_head_gets_what_it_reads(name):
    torch.manual_seed(0)
    model = BUILT[name]().eval()
    size = 20 if name == "padded cells" else IMAGE
    x = torch.randn(2, 3, size, size)
    with torch.no_grad():
        expected = model(x)
        fv.reduce_(model, fv.ToMe(), fv.Keep({}))
        assert torch.equal(model(x), expected)
    fv.restore_(model)
    fv.reduce_(model, fv.ToMe(), fv.KeepRate(0.6, blocks=(1,)))
    with FlopCounterMode(display=False) as counter:
        got = model(x[:1])
    assert got.shape[1:] == expected.shape[1:]
    assert fv.cost(model, (3, size, size)).macs == counter.get_total_flops() // 2
    assert not torch.allclose(got, expected[:1])


def test_the_projector_reads_every_patch_and_a_mean_the_tokens():
    assert reduced("timm-rope-qwen", fv.ToMe()).foveate.plan.read_by_head == PATCHES
    assert reduced("timm-gemma", fv.ToMe()).foveate.plan.read_by_head < PATCHES
    with pytest.raises(ValueError, match="reads a feature for every patch, and output='tokens' leaves fewer"):
        reduced("timm-rope-qwen", fv.ToMe(), output="tokens")


def test_features_and_head_apart_equal_the_whole_classifier():
    for family in ("timm-rope-deepseek", "timm-gemma"):
        model = reduced(family, fv.ToMe())
        with torch.no_grad():
            torch.testing.assert_close(model.forward_head(model.forward_features(images())), model(images()))
    maps = reduced("timm-rope-qwen", fv.ToMe()).forward_intermediates(images(2), indices=2, intermediates_only=True)
    assert [tuple(m.shape) for m in maps] == [(2, DIM, *GRID)] * 2


def test_patches_with_coordinates_or_masks_are_refused():
    """A batch of them may have several grids, and padding that must not be kept."""
    patches = torch.randn(2, PATCHES, PATCH * PATCH * 3)
    coordinates = (
        torch.stack(torch.meshgrid(*map(torch.arange, GRID), indexing="ij"), -1).flatten(0, 1).expand(2, -1, -1)
    )
    valid = torch.ones(2, PATCHES, dtype=torch.bool)
    for family in ("timm-rope-naflex", "timm-gemma"):
        plain, model = make(family), reduced(family, fv.ToMe())
        with torch.no_grad():
            plain({"patches": patches, "patch_coord": coordinates, "patch_valid": valid})
        for run in (
            lambda model=model: model({"patches": patches, "patch_coord": coordinates, "patch_valid": valid}),
            lambda model=model: model(patches, patch_coord=coordinates, patch_valid=valid),
            lambda model=model: model.forward_features(patches, coordinates, valid),
        ):
            with pytest.raises(ValueError, match=r"takes images .* same grid of patches"):
                run()


def test_sizes_that_do_not_fit_are_named():
    with pytest.raises(ValueError, match="The image is 20 x 24; height and width must be multiples of 8 and 8"):
        fv.cost(make("timm-rope-qwen"), (3, 20, 24))
    with pytest.raises(ValueError, match="multiples of 12 and 12"):
        fv.cost(BUILT["pooled tokens"](), (3, 32, 24))
