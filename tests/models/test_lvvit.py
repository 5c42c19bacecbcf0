"""LV-ViT: its stem, its two heads, and that tokens can be removed from it."""

import json

import pytest
import timm
import torch
from safetensors.torch import save_file
from torch.utils.flop_counter import FlopCounterMode

import foveate as fv
from foveate.adapters import inspect

OPTIONS_BEFORE = (
    "num_classes",
    "in_chans",
    "img_size",
    "patch_size",
    "embed_dim",
    "depth",
    "num_heads",
    "class_token",
    "global_pool",
    "fc_norm",
)
"""Options in saved folders before ``norm_eps`` was among them."""


def small(**options) -> torch.nn.Module:
    torch.manual_seed(0)
    options = {"img_size": 64, "depth": 3, "embed_dim": 32, "num_heads": 2, "num_classes": 5} | options
    return timm.create_model("lvvit_small", **options).eval()


def photos() -> torch.Tensor:
    return torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(1))


def test_the_registered_model_is_the_papers():
    with torch.device("meta"):
        model = timm.create_model("lvvit_small")
    assert (len(model.blocks), model.embed_dim, model.blocks[0].attn.num_heads) == (16, 384, 6)
    assert model.blocks[0].attn.qkv.bias is None
    assert model.blocks[0].mlp.fc1.out_features == 3 * 384
    assert sum(p.numel() for p in model.parameters()) / 1e6 == pytest.approx(26.15, abs=0.01)
    assert fv.cost(model).macs / 1e9 == pytest.approx(6.552, abs=2e-3)
    without = fv.cost(model).macs - 196 * 384 * 1000
    assert without / 1e9 == pytest.approx(6.476, abs=2e-3)
    assert model.pretrained_cfg["classifier"] == ("head", "aux_head")


def test_both_heads_predict_by_hand():
    model = small()
    x = model.patch_embed(photos())
    assert x.shape == (2, 16, 32)
    x = torch.cat([model.cls_token.expand(2, -1, -1), x], dim=1) + model.pos_embed
    for block in model.blocks:
        x = x + 0.5 * block.attn(block.norm1(x))
        x = x + 0.5 * block.mlp(block.norm2(x))
    x = model.norm(x)
    by_token = torch.stack([model.aux_head(x[:, 1 + i]) for i in range(16)]).amax(dim=0)
    torch.testing.assert_close(model(photos()), model.head(x[:, 0]) + by_token / 2)
    torch.testing.assert_close(model.token_predictions(x)[:, 3], model.aux_head(x[:, 4]))


def test_the_maximum_is_over_the_tokens_that_are_left():
    model = fv.reduce_(small(), fv.TopK(), fv.Keep([16, 5, 5]))
    tokens = model.forward_features(photos())
    assert tokens.shape == (2, 6, 32)
    expected = model.head(tokens[:, 0]) + model.aux_head(tokens[:, 1:]).amax(dim=1) / 2
    torch.testing.assert_close(model(photos()), expected)
    assert torch.equal(fv.restore_(model)(photos()), small()(photos()))


@pytest.mark.parametrize("reduced", [False, True])
def test_costs_are_what_torch_counts(reduced):
    model = fv.reduce_(small(), fv.DynamicViT(), fv.KeepRate(0.5, blocks=(1,))) if reduced else small()
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(photos()[:1])
    assert fv.cost(model).macs == counter.get_total_flops() // 2


def test_a_new_classifier_is_two():
    model = small()
    model.reset_classifier(7)
    assert model(photos()).shape == (2, 7)
    assert model.aux_head.out_features == 7
    model.reset_classifier(0)
    assert model(photos()).shape == (2, 32)


def test_it_is_saved_and_loaded(tmp_path):
    model = fv.reduce_(small(), fv.DynamicViT(), fv.KeepRate(0.5, blocks=(1,)))
    assert torch.equal(fv.load(fv.save(model, tmp_path / "m"))(photos()), model(photos()))


def test_the_last_block_needs_its_patches():
    with pytest.raises(ValueError, match="reads patch tokens"):
        fv.reduce_(small(), fv.TopK(), fv.Keep([16, 5, 5]), exact_last_block=True)


def test_odd_patches_are_refused():
    for patches in (7, (16, 8)):
        with pytest.raises(ValueError, match="square patches of even size, got"):
            small(patch_size=patches, img_size=112)


def test_a_head_of_another_kind_is_still_refused():
    class Other(type(small())):
        def forward_head(self, x, pre_logits=False, keep=None):
            return super().forward_head(x, pre_logits, keep) * 2

    model = small()
    model.__class__ = Other
    with pytest.raises(fv.UnsupportedModel, match="overrides forward_head"):
        fv.reduce_(model, fv.TopK(), fv.Keep([16, 5, 5]))


@pytest.mark.parametrize("pool", ["avg", "map", ""])
def test_it_predicts_from_its_class_token_and_not_otherwise(pool):
    with pytest.raises(ValueError, match="has no pooling"):
        small(global_pool=pool)
    with pytest.raises(ValueError, match="has no pooling"):
        small().reset_classifier(7, pool)
    tokens = fv.reduce_(small(num_classes=0, global_pool=""), fv.TopK(), fv.Keep({}))(photos())
    assert tokens.shape == (2, 17, 32)


def test_features_and_head_apart_are_the_whole_also_while_tokens_are_masked():
    model = fv.reduce_(small(), fv.DynamicViT(), fv.KeepRate(0.3, blocks=(1,)))
    model.foveate.train()
    found = []
    for run in (model, lambda x: model.forward_head(model.forward_features(x))):
        torch.manual_seed(3)
        found.append(run(photos()))
    assert torch.equal(*found)
    with pytest.raises(ValueError, match="needs to know how many patches"):
        model.forward_head(model.forward_features(photos()).clone())


def test_a_reduced_one_takes_images_of_another_size():
    model = fv.reduce_(small(), fv.TopK(), fv.KeepRate(0.5, blocks=(1,)))
    model.set_input_size((96, 96))
    larger = torch.randn(1, 3, 96, 96)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(larger)
    assert fv.cost(model).macs == counter.get_total_flops() // 2
    with pytest.raises(ValueError, match="cannot change its patch size, got 8 x 8"):
        model.set_input_size(patch_size=8)


def test_norms_have_the_eps_of_the_published_code():
    norms = [module for module in small().modules() if isinstance(module, torch.nn.LayerNorm)]
    assert len(norms) == 7
    assert {norm.eps for norm in norms} == {1e-5}


def test_folders_saved_with_the_former_eps_keep_their_outputs(tmp_path):
    before = small(norm_eps=1e-6)
    options = {name: value for name, value in inspect(before).build_options().items() if name in OPTIONS_BEFORE}
    architecture = {"library": "timm", "architecture": "lvvit_small", "options": options}
    weights = "model-00000000.safetensors"
    save_file(before.state_dict(), tmp_path / weights)
    manifest = {"format": 1, "weights": weights, "model": architecture, "reduction": None}
    (tmp_path / "foveate.json").write_text(json.dumps(manifest))
    with torch.no_grad():
        assert torch.equal(fv.load(tmp_path)(photos()), before(photos()))
        assert torch.equal(fv.load(fv.save(before, tmp_path / "again"))(photos()), before(photos()))


def test_heads_and_class_token_start_as_in_the_published_code():
    model = small(embed_dim=384, num_heads=6, depth=1, num_classes=1000)
    assert model.cls_token.std().item() == pytest.approx(0.02, rel=0.2)
    for head in (model.head, model.aux_head):
        assert head.weight.std().item() == pytest.approx(0.02, rel=0.01)
        assert not head.bias.any()


@pytest.mark.parametrize(
    ("name", "width", "depth", "heads", "skip", "stem", "millions"),
    [
        ("lvvit_tiny", 240, 12, 4, 1.0, 64, 8.5),
        ("lvvit_small", 384, 16, 6, 2.0, 64, 26),
        ("lvvit_medium", 512, 20, 8, 2.0, 64, 56),
        ("lvvit_large", 768, 24, 12, 3.0, 128, 150),
    ],
)
def test_the_four_sizes_are_those_of_the_published_code(name, width, depth, heads, skip, stem, millions):
    with torch.device("meta"):
        model = timm.create_model(name)
    found = (model.embed_dim, len(model.blocks), model.blocks[0].attn.num_heads, model.skip, model.stem_width)
    assert found == (width, depth, heads, skip, stem)
    assert sum(p.numel() for p in model.parameters()) / 1e6 == pytest.approx(millions, abs=0.3)
    assert model.blocks[0].ls1(torch.ones(())).item() == pytest.approx(1 / skip)
