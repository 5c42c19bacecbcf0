"""Weights for HVT: left alone where they fit, resampled where their grid is known, refused in words elsewhere."""

import pytest
import timm
import torch

from foveate.models import convert_weights
from foveate.models.by_name import load_model, load_weights_

OPTIONS = {"num_heads": 1, "depth": 4, "patch_size": 8, "num_classes": 5}


def hvt(img_size=64, **options) -> torch.nn.Module:
    return timm.create_model("hvt_tiny", img_size=img_size, **(OPTIONS | options)).eval()


def deit(**options) -> torch.nn.Module:
    return timm.create_model("deit_tiny_patch16_224", embed_dim=64, img_size=64, **(OPTIONS | options)).eval()


def fits(weights: dict, model: torch.nn.Module) -> bool:
    """Whether the model then holds exactly these weights."""
    model.load_state_dict(convert_weights(weights, model))
    return all(torch.equal(weights[name], tensor) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("size", [64, (96, 192), (64, 128), (96, 208)])
@pytest.mark.parametrize("options", [{"stages": 1, "pool_dim": 2}, {"stages": 2}, {"stages": 2, "class_token": True}])
def test_weights_that_fit_are_left_alone(size, options):
    assert fits(hvt(size, **options).state_dict(), hvt(size, **options))


@pytest.mark.parametrize("wrap", [{"model": None}, {"state_dict": None}, {"model": None, "epoch": 3}])
def test_files_of_training_loops_hold_weights_one_level_down(wrap):
    weights = hvt(stages=2).state_dict()
    wrapped = {key: weights if value is None else value for key, value in wrap.items()}
    model = hvt(stages=2)
    model.load_state_dict(convert_weights(wrapped, model))
    assert torch.equal(model.pos_embed, weights["pos_embed"])


@pytest.mark.parametrize("pool_dim", [1, 2])
def test_a_square_grid_is_resampled_to_any(pool_dim):
    model, other = hvt(stages=2, pool_dim=pool_dim), hvt((96, 160), stages=2, pool_dim=pool_dim)
    other.load_state_dict(convert_weights(model.state_dict(), other))
    model.set_input_size((96, 160))
    for block, stage in model.foveate.learned.items():
        torch.testing.assert_close(other.foveate.learned[block].pos_embed, stage.pos_embed)


@pytest.mark.parametrize("pool_dim", [1, 2])
def test_a_grid_that_cannot_be_known_is_refused(pool_dim):
    with pytest.raises(ValueError, match=r"72 positions, the model has 64.*set_input_size"):
        convert_weights(hvt((48, 96), stages=1, pool_dim=pool_dim).state_dict(), hvt(pool_dim=pool_dim))
    if pool_dim == 2:  # 36 patches look square and were 9 x 4
        with pytest.raises(ValueError, match=r"foveate\.learned\.0\.pos_embed has 10 positions in the weights, 9"):
            convert_weights(hvt((72, 32), pool_dim=2).state_dict(), hvt(48, pool_dim=2))


@pytest.mark.parametrize(
    ("theirs", "ours", "words"),
    [
        ({"stages": 1}, {"stages": 4}, "other stages or another pooling: 3 names.*learned.1.pos_embed"),
        ({"stages": 2}, {"stages": 4}, "other stages or another pooling: 2 names"),
        ({"stages": 4}, {"stages": 2}, "other stages or another pooling: 2 names"),
        ({"stages": 2}, {"stages": 0}, "other stages or another pooling: 2 names"),
        ({"pool": "max"}, {"pool": "conv"}, "2 names.*learned.0.conv.bias"),
        ({"pool": "conv"}, {"pool": "max"}, "2 names.*learned.0.conv.bias"),
        ({"pool_dim": 1}, {"pool_dim": 2}, r"31 positions in the weights, 16 .*pool_dim=2"),
        (
            {"pool": "conv", "pool_dim": 1},
            {"pool": "conv", "pool_dim": 2},
            r"conv.weight is \(64, 64, 3\)|31 positions",
        ),
    ],
)
def test_another_hvt_is_refused_and_nothing_changes(theirs, ours, words, tmp_path):
    path, model = tmp_path / "weights.pth", hvt(**ours)
    torch.save(hvt(**theirs).state_dict(), path)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(ValueError, match=words):
        convert_weights(torch.load(path), model)
    with pytest.raises(ValueError, match=f"weights.pth do not fit this HVT: .*({words})"):
        load_weights_(model, path)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


def test_what_stays_new_is_named(tmp_path):
    path = tmp_path / "deit.pth"
    torch.save({"state_dict": deit(num_classes=3).state_dict()}, path)
    model = hvt(stages=2)
    stays = load_weights_(model, path)
    assert stays == ["head.weight", "head.bias", "foveate.learned.0.pos_embed", "foveate.learned.2.pos_embed"]
    torch.save(hvt(stages=2).state_dict(), path)
    assert load_weights_(model, path) == []


def test_a_class_token_without_a_position_takes_none_along():
    source = deit(no_embed_class=True)
    for model in (hvt(stages=2), hvt(96, stages=2)):
        model.load_state_dict(convert_weights(source.state_dict(), model))
        assert torch.equal(model.pos_embed, source.pos_embed) or model.pos_embed.shape[1] == 144
    larger = hvt(96, stages=2)
    larger.load_state_dict(convert_weights(deit().state_dict(), larger))
    assert larger.pos_embed.shape[1] == 144


def test_what_does_not_fit_is_said_with_the_file(tmp_path):
    path = tmp_path / "hvt.pth"
    torch.save(hvt(stages=0).state_dict(), path)
    with pytest.raises(ValueError, match=r"hvt.pth do not fit .*no class token and 64 positions.* 65 positions"):
        load_weights_(deit(), path)
    torch.save(hvt().state_dict(), path)
    with pytest.raises(ValueError, match=r"hvt\.pth do not fit this VisionTransformer"):
        load_model("vit_tiny_patch16_224", weights=path)
    torch.save({"pos_embed": torch.zeros(1, 49, 64), "patch_embed.proj.weight": torch.zeros(7, 5)}, path)
    with pytest.raises(ValueError, match=r"hvt.pth do not fit .*timm cannot adapt them"):
        load_weights_(hvt(stages=0), path)
