"""Towers of language models, and models for patches of many grids: what their heads read, and what is refused."""

import pytest
import torch
from timm.models.deepseek_vit import DeepseekVitClassifier, DeepseekVitEncoder
from timm.models.gemma4_vit import Gemma4VitClassifier, Gemma4VitEncoder
from timm.models.naflexvit import NaFlexVit, batch_patchify
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


def places(rows, columns):
    return torch.stack(torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij"), -1).flatten(0, 1)


def picture(number):
    """Pictures of 6 x 6, 4 x 6 and 6 x 6 patches."""
    rows, columns = [(6, 6), (4, 6), (6, 6)][number]
    return torch.randn(1, 3, rows * PATCH, columns * PATCH, generator=torch.Generator().manual_seed(number))


def naflex_batch(numbers=(0, 1, 2), channels_last=True):
    """Their patches, padded to 36."""
    found = {"patches": [], "patch_coord": [], "patch_valid": []}
    for number in numbers:
        cut, (rows, columns) = batch_patchify(picture(number), (PATCH, PATCH), channels_last=channels_last)
        more = PATCHES - rows * columns
        found["patches"].append(torch.nn.functional.pad(cut[0], (0, 0, 0, more), value=7.0))
        found["patch_coord"].append(torch.nn.functional.pad(places(rows, columns), (0, 0, 0, more)))
        found["patch_valid"].append(torch.arange(PATCHES) < rows * columns)
    return {name: torch.stack(values) for name, values in found.items()}


NAFLEX = {
    "rope, mean": lambda: make("timm-rope-naflex"),
    "registers, mean": BUILT["registers and a mean"],
    "class token": lambda: NaFlexVit(**SMALL, **FLEX | {"global_pool": "token", "class_token": True}),
    "attention pooling": lambda: NaFlexVit(**SMALL, **FLEX | {"global_pool": "map"}, pos_embed="factorized"),
    "channels first": lambda: NaFlexVit(**SMALL, **FLEX, patchify_channels_last=False),
}


@pytest.mark.parametrize("name", NAFLEX)
def test_patches_of_many_grids_run_in_one_batch(name):
    """Padding is never a token, and an image gets what it gets alone, as patches or as pixels."""
    torch.manual_seed(0)
    model = NAFLEX[name]().eval()
    last = name != "channels first"
    batch = naflex_batch(channels_last=last)
    with torch.no_grad():
        plain = model(batch)
        with fv.reduced(model, fv.ToMe(), fv.Keep({})):
            assert torch.equal(model(batch), plain)
        fv.reduce_(model, fv.ToMe(), fv.KeepRate(0.5, blocks=(1,)))
        found = model(batch)
        for number in range(3):
            for alone in (naflex_batch([number], last), picture(number)):
                torch.testing.assert_close(model(alone)[0], found[number], rtol=1e-4, atol=1e-5)
        features = model.forward_features(**batch)
        assert features["patch_valid"].sum(dim=1).tolist() == [18, 12, 18]
        torch.testing.assert_close(model.forward_head(**features), found)
        shuffled = torch.randperm(PATCHES, generator=torch.Generator().manual_seed(3))
        mixed = {key: value[:, shuffled] for key, value in batch.items()}
        torch.testing.assert_close(model(mixed), found, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(found, plain)


def test_patches_that_are_no_whole_images_are_refused():
    model, batch = reduced("timm-rope-naflex", fv.ToMe()), naflex_batch()
    batch["patch_valid"][1] = False
    with pytest.raises(ValueError, match="Image 1 of the batch has no visible patch"):
        model(batch)
    batch["patch_valid"][1, :20] = True
    with pytest.raises(ValueError, match="Image 1 of the batch has 20 patches at places of a grid of 4 x 6"):
        model(batch)
    with pytest.raises(ValueError, match="takes no attn_mask"):
        model(naflex_batch() | {"attn_mask": torch.zeros(3, 1, 36, 36)})
    with pytest.raises(ValueError, match=r"takes images .* same grid of patches"):
        model.forward_intermediates(naflex_batch(), output_fmt="NLC")


def test_gemmas_patches_with_coordinates_are_refused():
    batch = naflex_batch([0])
    plain, model = make("timm-gemma"), reduced("timm-gemma", fv.ToMe())
    with torch.no_grad():
        plain(batch)
    for run in (lambda: model(batch), lambda: model.forward_features(*batch.values())):
        with pytest.raises(ValueError, match=r"takes images .* same grid of patches"):
            run()


def test_sizes_that_do_not_fit_are_named():
    with pytest.raises(ValueError, match="The image is 20 x 24; height and width must be multiples of 8 and 8"):
        fv.cost(make("timm-rope-qwen"), (3, 20, 24))
    with pytest.raises(ValueError, match="multiples of 12 and 12"):
        fv.cost(BUILT["pooled tokens"](), (3, 32, 24))
