"""The registered HVT models: what they compute, and that they behave like any model of timm."""

import pytest
import timm
import torch
from hypothesis import given
from hypothesis import strategies as st
from timm.optim import param_groups_layer_decay, param_groups_weight_decay
from torch import Tensor
from torch.nn.functional import avg_pool1d, max_pool1d, max_pool2d

import foveate as fv
from foveate.models import block_compression, convert_weights
from foveate.models.hvt import ENTRY_POINTS

SIZE, PATCH, DEPTH = 64, 8, 4  # 64 patches: 64 -> 31 -> 15 -> 7 -> 3


def small_hvt(name: str = "hvt_tiny", **options) -> torch.nn.Module:
    torch.manual_seed(0)
    options = {"num_heads": 1, "depth": DEPTH, "img_size": SIZE, "patch_size": PATCH, "num_classes": 5} | options
    return timm.create_model(name, **options).eval()


def photos(size: int = SIZE) -> Tensor:
    return torch.randn(3, 3, size, size, generator=torch.Generator().manual_seed(1))


def hvt_by_loops(model, images: Tensor, pool) -> Tensor:
    """The paper's equations 5 and 6, block after block."""
    x = model.patch_embed(images) + model.pos_embed
    stages = model.foveate.method.stages
    for index, block in enumerate(model.blocks):
        x = block(x)
        if index % (DEPTH // stages) == 0:
            x = pool(x) + model.foveate.learned[str(index)].pos_embed
    return model.head(model.norm(x).mean(dim=1))


@pytest.mark.parametrize("stages", [1, 2, 4])
@pytest.mark.parametrize(("kind", "pool"), [("max", max_pool1d), ("avg", avg_pool1d)])
def test_logits_are_the_papers_equations(stages, kind, pool):
    model = small_hvt(stages=stages, pool=kind)
    expected = hvt_by_loops(model, photos(), lambda x: pool(x.transpose(1, 2), 3, 2).transpose(1, 2))
    torch.testing.assert_close(model(photos()), expected)


def test_pooling_over_rows_and_columns():
    model = small_hvt(stages=2, pool_dim=2)

    def pool(x):
        side = round(x.shape[1] ** 0.5)
        return max_pool2d(x.transpose(1, 2).unflatten(2, (side, side)), 3, 2, padding=1).flatten(2).transpose(1, 2)

    torch.testing.assert_close(model(photos()), hvt_by_loops(model, photos(), pool))


@pytest.mark.parametrize("name", ENTRY_POINTS)
def test_the_papers_names_stand_for_their_models(name):
    with torch.device("meta"):
        model = timm.create_model(name)
    heads = 3 if name in ("hvt_tiny", "hvt_tiny_1") else 6
    assert (len(model.blocks), model.blocks[0].attn.num_heads, model.embed_dim) == (12, heads, 64 * heads)
    digits = [int(part) for part in name.split("_") if part.isdigit()]
    stages = digits[0] if digits else 1
    assert getattr(model, "foveate", None) is None if stages == 0 else model.foveate.method.stages == stages
    assert model.patch_embed.patch_size == ((8, 8) if name.endswith("2d") else (16, 16))
    assert (stages > 0 and model.foveate.method.pool_dim == 2) == name.endswith("2d")
    assert model.cls_token is None
    assert model.pretrained_cfg["architecture"] == name
    assert model.pretrained_cfg["classifier"] == "head"


def test_lengths_are_the_papers():
    with torch.device("meta"):
        lengths = fv.cost(timm.create_model("hvt_small_4")).tokens
        grids = fv.cost(timm.create_model("hvt_small_2_2d")).tokens
    assert lengths == (97,) * 3 + (48,) * 3 + (23,) * 3 + (11,) * 3
    assert grids == (14**2,) * 6 + (7**2,) * 6


def test_features_then_head_is_forward_and_the_classifier_can_change():
    model = small_hvt(stages=2)
    tokens = model.forward_features(photos())
    assert tokens.shape == (3, 15, 64)
    assert torch.equal(model.forward_head(tokens), model(photos()))
    torch.testing.assert_close(model.forward_head(tokens, pre_logits=True), tokens.mean(dim=1))
    model.reset_classifier(7)
    assert model(photos()).shape == (3, 7)
    model.reset_classifier(0)
    torch.testing.assert_close(model(photos()), tokens.mean(dim=1))


def test_optimisers_of_timm_treat_pooled_positions_like_the_models_own():
    model = small_hvt(stages=2)
    groups = param_groups_weight_decay(model, 0.05, no_weight_decay_list=model.no_weight_decay())
    spared = {id(p) for p in groups[0]["params"]}
    assert {id(model.pos_embed), id(model.foveate.learned["0"].pos_embed)} <= spared
    assert id(model.head.weight) not in spared
    by_depth = param_groups_layer_decay(model, layer_decay=0.5)
    scale = {id(p): group["lr_scale"] for group in by_depth for p in group["params"]}
    for block in ("0", "2"):
        assert scale[id(model.foveate.learned[block].pos_embed)] == scale[id(model.blocks[int(block)].norm1.weight)]


def test_every_parameter_learns():
    model = small_hvt(stages=2, pool="conv").train()
    model(photos()).square().sum().backward()
    without = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()]
    assert [name for name in without if not name.endswith("attn.qkv.bias")] == []


@pytest.mark.parametrize(("dims", "sides", "reductions"), [(1, [8] * 3, [8] * 3), (2, [8, 4, 2], [8, 16, 32])])
def test_features_only_gives_the_pyramid(dims, sides, reductions):
    pyramid = small_hvt(stages=2, pool_dim=dims, features_only=True)
    maps = pyramid(photos())
    assert [tuple(m.shape) for m in maps] == [(3, 64, side, side) for side in sides]
    assert pyramid.feature_info.channels() == [64] * 3
    assert pyramid.feature_info.reduction() == reductions
    whole = small_hvt(stages=2, pool_dim=dims)
    x = whole.blocks[0](whole.patch_embed(photos()) + whole.pos_embed)
    torch.testing.assert_close(maps[0].flatten(2).transpose(1, 2), x)
    last = maps[2].flatten(2).transpose(1, 2)
    end = fv.inspect(whole).encode(photos()).stream.tokens
    if dims == 2:
        torch.testing.assert_close(last, end)
    else:  # patch 0 is in token 0 alone, and stays there
        torch.testing.assert_close(last[:, 0], end[:, 0])


@pytest.mark.parametrize("dims", [1, 2])
def test_every_level_is_the_stream_before_its_pooling(dims):
    maps = small_hvt(stages=2, pool_dim=dims, features_only=True)(photos())
    whole = small_hvt(stages=2, pool_dim=dims)
    stream = whole.patch_embed(photos()) + whole.pos_embed
    stream = whole.foveate.learned["0"](whole.blocks[0](stream), (8, 8))
    stream = whole.blocks[2](whole.blocks[1](stream))
    level = maps[1].flatten(2).transpose(1, 2)
    if dims == 2:
        torch.testing.assert_close(level, stream)
    else:  # every patch is the mean of the windows that hold it: 1 is in the first alone, 2 in the first two
        torch.testing.assert_close(level[:, 1], stream[:, 0])
        torch.testing.assert_close(level[:, 2], stream[:, :2].mean(dim=1))


def test_what_no_level_reads_is_left_out():
    pyramid = small_hvt(stages=2, features_only=True, out_indices=(0,))
    assert len(pyramid.model.blocks) == 1
    assert list(pyramid.model.foveate.learned) == ["0"]
    assert list(small_hvt(stages=2, features_only=True).model.foveate.learned) == ["0", "2"]


@pytest.mark.parametrize("chosen", [(0,), (2, 0), (-1,), 2])
def test_chosen_levels_are_those_of_the_whole_pyramid(chosen):
    everything = small_hvt(stages=2, features_only=True)(photos())
    some = small_hvt(stages=2, features_only=True, out_indices=chosen)
    expected = everything[-chosen:] if isinstance(chosen, int) else [everything[level] for level in chosen]
    for ours, theirs in zip(some(photos()), expected, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_a_pyramid_has_no_parameter_without_a_gradient():
    pyramid = small_hvt(stages=2, features_only=True, out_indices=(0, 1)).train()
    sum(m.square().sum() for m in pyramid(photos())).backward()
    assert [name for name, p in pyramid.named_parameters() if p.requires_grad and p.grad is None] == []


def test_unpooled_models_have_a_pyramid_of_one_level():
    (only,) = small_hvt(stages=0, features_only=True)(photos())
    assert only.shape == (3, 64, 8, 8)


@pytest.mark.parametrize("dims", [1, 2])
def test_positions_follow_a_new_image_size(dims):
    model = small_hvt(stages=2, pool_dim=dims)
    with torch.no_grad():  # a constant stays the same constant at any size
        model.foveate.learned["0"].pos_embed.fill_(0.5)
    model.set_input_size(128)
    fresh = small_hvt(stages=2, pool_dim=dims, img_size=128)
    assert {k: v.shape for k, v in model.state_dict().items()} == {k: v.shape for k, v in fresh.state_dict().items()}
    assert model(photos(128)).shape == (3, 5)
    positions = model.foveate.learned["0"].pos_embed
    torch.testing.assert_close(positions, torch.full_like(positions, 0.5))
    assert fv.cost(model) == fv.cost(fresh)


def test_a_size_that_cannot_be_pooled_leaves_the_model_as_it_was():
    model = small_hvt(stages=4)
    before = model(photos())
    with pytest.raises(ValueError, match="too few to pool again"):
        model.set_input_size(32)
    with pytest.raises(ValueError, match="smaller than a patch"):
        model.set_input_size(2)
    assert torch.equal(model(photos()), before)


def test_images_of_several_sizes_go_through_a_dynamic_model():
    model = small_hvt(stages=2, dynamic_img_size=True)
    fixed = small_hvt(stages=2, img_size=96)
    fixed.load_state_dict(convert_weights(model.state_dict(), fixed))
    torch.testing.assert_close(model(photos(96)), fixed(photos(96)), atol=1e-4, rtol=1e-4)


def test_no_weights_are_pretended():
    with pytest.raises(RuntimeError, match="No pretrained weights"):
        timm.create_model("hvt_tiny_1", pretrained=True)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"stages": 5}, "more than the model's 4 blocks"),
        ({"stages": 3}, r"does not divide 4 blocks.*Use 3, 6, 9, 12, .*blocks.*or 1, 2, 4 stages"),
        ({"stages": 4, "img_size": 32}, "3 tokens|1 token.*too few to pool again. Use fewer stages"),
        ({"img_size": 60}, "patches of 8 x 8 do not divide images of 60 x 60.*56 x 56 and 64 x 64"),
        ({"pool": "median"}, "HVTPool.pool must be one of max, avg, conv; got 'median'"),
        ({"pool_dim": 3}, "HVTPool.pool_dim must be one of 1, 2; got 3"),
        ({"stages": -1}, "stages must be a whole number of at least 0, got -1"),
        ({"stages": "2"}, "stages must be a whole number of at least 0, got '2'"),
        ({"patch_size": 0}, "all sides must be at least 1, got .*patches of 0 x 0"),
        ({"num_heads": 0}, "num_heads must be at least 1, got 0. Each head is 64 channels"),
    ],
)
def test_bad_input_is_explained(options, words):
    with pytest.raises(ValueError, match=words):
        small_hvt(**options)


@pytest.mark.parametrize("stages", [0, 2])
def test_a_model_is_saved_and_loaded_with_all_its_options(stages, tmp_path, recwarn):
    model = small_hvt("hvt_small", stages=stages, pool="conv")
    again = fv.load(fv.save(model, tmp_path / "m"))
    assert torch.equal(again(photos()), model(photos()))
    assert not [w for w in recwarn if "cannot be rebuilt" in str(w.message)]


@given(tokens=st.floats(1e-3, 1e9), dim=st.floats(1e-3, 1e9))
def test_halving_a_sequence_makes_a_block_two_to_four_times_cheaper(tokens, dim):
    def phi(n):
        return 12 * n * dim**2 + 2 * n**2 * dim

    alpha = block_compression(tokens, dim)
    assert 2 <= alpha <= 4  # both ends are reached in floating point only
    assert alpha == pytest.approx(phi(tokens) / phi(tokens / 2))
    assert block_compression(2 * tokens, dim) >= alpha


def test_the_bound_is_open_and_approached():
    assert 2 < block_compression(1, 10_000) < 2.001
    assert 3.999 < block_compression(10_000_000, 10) < 4
    assert block_compression(196, 384) == pytest.approx(2.0816, abs=1e-4)
    with pytest.raises(ValueError, match="above 0"):
        block_compression(0, 384)


@pytest.mark.parametrize("dims", [1, 2])
def test_a_patch_belongs_to_the_token_it_has_most_weight_in_through_all_poolings(dims):
    """Windows in windows: the weights of all ways from a patch to a token add up."""
    trace = fv.trace(small_hvt(stages=2, pool_dim=dims), photos())
    for block in range(DEPTH):
        src, dst, weight, _ = trace.after(block).edges(trace.batch, trace.device)
        shares = torch.zeros(trace.batch, 64, trace.counts[block])
        for image in range(trace.batch):
            shares[image].index_put_((src[image], dst[image]), weight[image], accumulate=True)
        owner = trace.owner(block)
        held = shares.sum(dim=2) > 0
        assert torch.equal(owner >= 0, held)
        chosen = shares.gather(2, owner.clamp(min=0).unsqueeze(2)).squeeze(2)
        torch.testing.assert_close(chosen[held], shares.amax(dim=2)[held])
