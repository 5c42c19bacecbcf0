"""A model that is not understood is refused by name, never silently left as it is."""

import re

import pytest
import timm
import torch
import transformers
from timm.layers import DiffAttention
from timm.models.vision_transformer import ParallelThingsBlock, VisionTransformer
from torch import nn

import foveate as fv
from zoo import DIM, HEADS, IMAGE, PATCH, make

SMALL = {"img_size": IMAGE, "patch_size": PATCH, "embed_dim": DIM, "depth": 2, "num_heads": HEADS, "num_classes": 3}


def refuse(model, match):
    with pytest.raises(fv.UnsupportedModel, match=match) as caught:
        fv.reduce_(model, fv.ToMe(), fv.RemovePerBlock(2))
    assert not hasattr(model, "foveate")
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("swin_tiny_patch4_window7_224", "SwinTransformer"),
        ("hiera_tiny_224", "Hiera"),
        ("cait_xxs24_224", "Cait"),
    ],
)
def test_other_timm_families_are_refused_by_name(name, found):
    with torch.device("meta"):
        model = timm.create_model(name)
    words = refuse(model, found)
    assert re.search("Supported: .*timm VisionTransformer", words)
    assert "torchvision VisionTransformer" in words


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"block_fn": ParallelThingsBlock, "attn_layer": DiffAttention}, "has the attention DiffAttention"),
        ({"attn_layer": DiffAttention}, "has the attention DiffAttention"),
        ({"global_pool": "avgmax"}, "pools by 'avgmax'"),
        ({"global_pool": "max"}, "pools by 'max'"),
        ({"global_pool": "prr"}, "pools by 'prr'"),
        ({"patch_drop_rate": 0.2}, "patch_drop_rate=0"),
    ],
)
def test_variants_without_a_meaning_for_reduced_tokens_are_refused(options, match):
    refuse(VisionTransformer(**SMALL, **options), match)


def test_a_subclass_with_its_own_forward_is_refused():
    class Mine(VisionTransformer):
        def forward_features(self, x, **kwargs):
            return super().forward_features(x) * 2

    refuse(Mine(**SMALL), "overrides forward_features")


def test_a_subclass_that_changes_no_forward_is_accepted():
    class Named(VisionTransformer):
        """Only a name."""

    model = fv.reduce_(Named(**SMALL), fv.ToMe(), fv.RemovePerBlock(2))
    assert isinstance(model, Named)


def test_a_part_that_could_be_reduced_is_pointed_out():
    model = torch.nn.Sequential(make("timm-cls"), torch.nn.ReLU())
    assert "'0' (VisionTransformer) may be supported: reduce_(model[0], ...)" in refuse(model, "Sequential")


def test_transformers_models_with_other_heads_are_refused():
    config = transformers.ViTConfig(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
    assert "'vit' (ViTModel)" in refuse(transformers.ViTForMaskedImageModeling(config), "ViTForMaskedImageModeling")


@pytest.mark.parametrize("model", [nn.Linear(2, 2), nn.Sequential(nn.Conv2d(3, 3, 1))])
def test_a_module_that_is_no_vision_transformer_is_refused(model):
    refuse(model, "foveate does not support torch.nn.modules")


@pytest.mark.parametrize("thing", ["deit_small_patch16_224", None, VisionTransformer])
def test_what_is_no_module_is_a_type_error(thing):
    with pytest.raises(TypeError, match=r"model must be a torch\.nn\.Module"):
        fv.reduce_(thing, fv.ToMe(), fv.RemovePerBlock(2))


@pytest.mark.parametrize("verb", [fv.cost, lambda m: fv.trace(m, None), lambda m: fv.features(m, None)])
def test_every_verb_refuses_alike(verb):
    with pytest.raises(fv.UnsupportedModel, match="Linear"):
        verb(nn.Linear(2, 2))


def test_a_torchvision_subclass_with_its_own_forward_is_refused():
    model = make("torchvision")

    class Mine(type(model)):
        def forward(self, x):
            return super().forward(x) + 1

    model.__class__ = Mine
    refuse(model, "Mine overrides")
