"""An existing DeiT becomes an HVT, its weights move to the registered model and back, with and without class token."""

import pytest
import timm
import torch

import foveate as fv
from foveate.models import convert_weights
from zoo import make

SHAPE = {"embed_dim": 64, "num_heads": 1, "depth": 4, "img_size": 64, "patch_size": 8, "num_classes": 5}
OPTIONS = {name: value for name, value in SHAPE.items() if name != "embed_dim"}


def deit(**options) -> torch.nn.Module:
    torch.manual_seed(3)
    return timm.create_model("deit_tiny_patch16_224", **SHAPE, **options).eval()


def hvt(**options) -> torch.nn.Module:
    torch.manual_seed(4)
    return timm.create_model("hvt_small", **OPTIONS, **options).eval()


def photos() -> torch.Tensor:
    return torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(5))


@pytest.mark.parametrize("pool", ["max", "conv"])
@pytest.mark.parametrize("class_token", [True, False])
def test_weights_go_to_the_registered_model_and_back(class_token, pool):
    ours = deit()
    if not class_token:
        fv.models.drop_class_token_(ours)
    fv.reduce_(ours, fv.HVTPool(stages=2, pool=pool))
    theirs = hvt(stages=2, pool=pool, class_token=class_token)
    assert not torch.equal(theirs(photos()), ours(photos()))
    theirs.load_state_dict(ours.state_dict())
    assert torch.equal(theirs(photos()), ours(photos()))

    with torch.no_grad():
        for parameter in theirs.parameters():  # what fine-tuning would do
            parameter.add_(0.01 * torch.randn_like(parameter))
    ours.load_state_dict(theirs.state_dict())
    assert torch.equal(theirs(photos()), ours(photos()))


def test_prediction_without_the_class_token_is_one_switch_on_both_sides():
    without = fv.models.drop_class_token_(deit())
    model = hvt(stages=0)
    model.load_state_dict(without.state_dict())
    assert torch.equal(model(photos()), without(photos()))
    x = without.norm(without.blocks(without.patch_embed(photos()) + without.pos_embed))
    torch.testing.assert_close(without(photos()), without.head(x.mean(dim=1)))
    with_token = hvt(stages=0, class_token=True)
    with_token.load_state_dict(deit().state_dict())
    assert torch.equal(with_token(photos()), deit()(photos()))


def test_the_class_token_takes_its_position_along():
    before = deit()
    after = fv.models.drop_class_token_(deit())
    assert torch.equal(after.pos_embed, before.pos_embed[:, 1:])
    assert sum(p.numel() for p in before.parameters()) - sum(p.numel() for p in after.parameters()) == 2 * 64
    assert after.forward_features(photos()).shape == (2, 64, 64)


def test_registers_stay_when_the_class_token_goes():
    model = fv.models.drop_class_token_(deit(reg_tokens=2))
    assert model.num_prefix_tokens == 2
    assert fv.cost(model).macs > 0
    tokens = model.forward_features(photos())
    torch.testing.assert_close(model(photos()), model.head(tokens[:, 2:].mean(dim=1)))
    reduced = fv.reduce_(model, fv.ToMe(), fv.RemovePerBlock(4))
    assert reduced.forward_features(photos()).shape == (2, 2 + 64 - 16, 64)


def test_a_model_without_class_token_is_saved_and_loaded(tmp_path):
    model = fv.models.drop_class_token_(deit())
    again = fv.load(fv.save(model, tmp_path / "m"))
    assert torch.equal(again(photos()), model(photos()))


def test_weights_of_a_deit_fit_an_hvt_without_class_token():
    source, model = deit(), hvt(stages=2)
    fresh = model.foveate.learned["0"].pos_embed.clone()
    for weights in (source.state_dict(), {"model": source.state_dict()}):
        model.load_state_dict(convert_weights(weights, model))
    assert torch.equal(model.pos_embed, source.pos_embed[:, 1:])
    assert torch.equal(model.blocks[3].mlp.fc1.weight, source.blocks[3].mlp.fc1.weight)
    assert torch.equal(model.foveate.learned["0"].pos_embed, fresh)
    assert "cls_token" in source.state_dict()


@pytest.mark.parametrize("dims", [1, 2])
def test_weights_of_one_image_size_fit_another(dims):
    small, large = hvt(stages=2, pool_dim=dims), hvt(stages=2, pool_dim=dims)
    large.set_input_size(96)
    with torch.no_grad():
        small.foveate.learned["0"].pos_embed.fill_(0.25)
    for model in (large, small):
        model.load_state_dict(convert_weights(small.state_dict(), model))
        positions = model.foveate.learned["0"].pos_embed
        assert torch.equal(positions, torch.full_like(positions, 0.25))


def test_what_cannot_lose_its_class_token_says_so():
    with pytest.raises(ValueError, match="no class token to drop"):
        fv.models.drop_class_token_(hvt(stages=0))
    with pytest.raises(ValueError, match="This model is reduced"):
        fv.models.drop_class_token_(hvt(stages=2, class_token=True))
    with pytest.raises(fv.UnsupportedModel, match="VisionTransformerDistilled"):
        fv.models.drop_class_token_(timm.create_model("deit_tiny_distilled_patch16_224", **SHAPE))
    with pytest.raises(fv.UnsupportedModel, match="timm's VisionTransformer"):
        fv.models.drop_class_token_(make("torchvision"))
    with pytest.raises(fv.UnsupportedModel, match="attention pooling"):
        fv.models.drop_class_token_(deit(global_pool="map", fc_norm=False))
