"""What timm users expect of a reduced timm model, beyond the contract."""

import dataclasses
import math
from typing import ClassVar

import pytest
import timm
import torch
from timm.models.vision_transformer import VisionTransformer
from torch import nn

import foveate as fv
from foveate.core import pool, selection
from foveate.methods import LearnedMethod, Site
from zoo import DIM, IMAGE, PATCH, PATCHES, images, make

SCHEDULE = fv.KeepRate(0.6, blocks=(1, 2))
GRID = IMAGE // PATCH


@pytest.mark.parametrize("family", ["timm-cls", "timm-registers-layerscale", "timm-mean", "timm-distilled"])
@pytest.mark.parametrize("output_dict", [False, True])
@pytest.mark.parametrize("prefix_too", [False, True])
def test_forward_intermediates_has_the_layout_of_the_unreduced_model(family, output_dict, prefix_too):
    plain, x = make(family), images()
    model = fv.reduce_(make(family), fv.ToMe(), SCHEDULE)
    options = {"indices": [0, 3], "return_prefix_tokens": prefix_too, "output_dict": output_dict, "norm": True}
    with torch.no_grad():
        want, got = plain.forward_intermediates(x, **options), model.forward_intermediates(x, **options)
    flat_want, flat_got = (torch.utils._pytree.tree_flatten(o) for o in (want, got))
    assert flat_want[1] == flat_got[1]
    maps = got["image_intermediates"] if output_dict else [m[0] if isinstance(m, tuple) else m for m in got[1]]
    assert [m.shape for m in maps] == [(3, DIM, GRID, GRID)] * 2


def test_intermediates_before_the_first_reduction_are_the_unreduced_ones():
    plain, model, x = make("timm-cls"), fv.reduce_(make("timm-cls"), fv.ToMe(), SCHEDULE), images()
    with torch.no_grad():
        for fmt in ("NCHW", "NLC"):
            options = {"indices": [0], "intermediates_only": True, "output_fmt": fmt}
            got, want = (m.forward_intermediates(x, **options)[0] for m in (model, plain))
            assert torch.equal(got, want)


def test_dropped_patches_keep_the_features_they_had_when_they_were_dropped():
    model, x = fv.reduce_(make("timm-cls"), fv.FreeSlice(fv.methods.Site.PRE_BLOCK), fv.Keep({2: 10})), images()
    with torch.no_grad():
        before = model.forward_intermediates(x, [1], intermediates_only=True, output_fmt="NLC")[0]
        after = model.forward_intermediates(x, [3], intermediates_only=True, output_fmt="NLC")[0]
    assert torch.equal(after[:, 10:], before[:, 10:])
    assert not torch.equal(after[:, :10], before[:, :10])


def test_timms_feature_extractor_gets_dense_maps():
    net = timm.create_model("test_vit", features_only=True, out_indices=[0, 1])
    x = torch.randn(1, 3, 160, 160)
    want = [m.shape for m in net(x)]
    fv.reduce_(net.model, fv.ToMe(), fv.RemovePerBlock(20))
    assert [m.shape for m in net(x)] == want


@pytest.mark.parametrize("size", [(32, 24), (24, 24), (48, 40)])
def test_dynamic_image_sizes_get_their_own_plan(size):
    model = fv.reduce_(make("timm-dynamic"), fv.ToMe(), fv.KeepRate(0.5, blocks=(1, 2)))
    x = torch.randn(2, 3, *size)
    n = (size[0] // PATCH) * (size[1] // PATCH)
    trace = fv.trace(model, x)
    assert trace.counts[-1] == math.ceil(math.ceil(n / 2) / 2)
    assert fv.features(model, x).shape == (2, DIM, size[0] // PATCH, size[1] // PATCH)
    assert fv.cost(model, (3, *size)).tokens[-1] == 1 + trace.counts[-1]


def test_a_budget_holds_at_every_dynamic_size():
    model = VisionTransformer(
        img_size=64, patch_size=4, embed_dim=DIM, depth=6, num_heads=2, dynamic_img_size=True, num_classes=3
    )
    plain = {s: fv.cost(model, (3, s, s)).macs for s in (64, 96)}
    fv.reduce_(model, fv.ToMe(), fv.Budget(0.6))
    for side, whole in plain.items():
        assert fv.cost(model, (3, side, side)).macs / whole == pytest.approx(0.6, rel=0.01)


def test_masks_are_refused_rather_than_ignored():
    model = fv.reduce_(make("timm-cls"), fv.ToMe(), SCHEDULE)
    with pytest.raises(ValueError, match="attn_mask"):
        model(images(), attn_mask=torch.ones(37, 37, dtype=torch.bool))
    with pytest.raises(ValueError, match="is_causal"):
        model.forward_features(images(), is_causal=True)


def test_the_head_can_be_replaced_after_reducing():
    model = fv.reduce_(make("timm-cls"), fv.ToMe(), SCHEDULE)
    model.reset_classifier(11)
    assert model(images()).shape == (3, 11)
    assert fv.cost(model).macs < fv.cost(fv.restore_(model)).macs


def test_the_kind_of_pooling_cannot_change_under_a_plan_made_for_another():
    model = fv.reduce_(make("timm-cls"), fv.EViT(), SCHEDULE, exact_last_block=True)
    with pytest.raises(ValueError, match=r"cannot change to 'avg'.*restore_"):
        model.reset_classifier(5, "avg")
    assert model.head.out_features == 7
    model.reset_classifier(5, "token")
    assert model(images()).shape == (3, 5)


def test_a_head_that_does_not_weigh_tokens_takes_any_tensor():
    for family in ("timm-mean", "timm-cls"):
        model = fv.reduce_(make(family), fv.HVTPool(2))
        assert torch.equal(model.forward_head(model.forward_features(images()).clone()), model(images()))
    weighing = fv.reduce_(make("timm-mean"), fv.ToMe(), SCHEDULE)
    with pytest.raises(ValueError, match="needs to know how many patches"):
        weighing.forward_head(weighing.forward_features(images()).clone())


def test_the_pooling_of_a_head_that_does_not_weigh_tokens_is_free():
    model = fv.reduce_(make("timm-cls"), fv.HVTPool(2))
    model.reset_classifier(5, "avg")
    tokens = model.forward_features(images())
    torch.testing.assert_close(model(images()), model.head(model.fc_norm(tokens[:, 1:].mean(dim=1))))
    assert model.foveate.shape.head_reads_patches
    model.reset_classifier(0, "")
    assert torch.equal(model(images()), tokens)
    model.reset_classifier(5, "token")
    assert not model.foveate.shape.head_reads_patches
    with pytest.raises(ValueError, match="cannot change to 'max'"):
        model.reset_classifier(5, "max")
    exact = fv.reduce_(make("timm-cls"), fv.HVTPool(2), exact_last_block=True)
    with pytest.raises(ValueError, match="cannot change to 'avg'"):
        exact.reset_classifier(5, "avg")


def test_pruning_leaves_the_first_blocks_as_they_were():
    whole, model = (fv.reduce_(make("timm-dynamic"), fv.HVTPool(4)).eval() for _ in range(2))
    model.load_state_dict(whole.state_dict())
    x = torch.randn(1, 3, 32, 40)  # another size than the plan was made for
    with torch.no_grad():
        expected = whole.forward_intermediates(x, [1], intermediates_only=True)[0]
        assert model.prune_intermediate_layers([1]) == [1]
        assert (len(model.blocks), list(model.foveate.learned)) == (2, ["0", "1"])
        torch.testing.assert_close(model.forward_intermediates(x, [1], intermediates_only=True)[0], expected)
    assert len(fv.cost(model).tokens) == 2
    model.set_input_size((32, 40))
    assert list(model.foveate.learned) == ["0", "1"]
    torch.testing.assert_close(model.forward_intermediates(x, [1], intermediates_only=True)[0], expected)


@pytest.mark.parametrize(("exact", "prune_head"), [(False, False), (False, True), (True, True)])
def test_pruning_is_refused_before_anything_is_cut(exact, prune_head):
    model = make("timm-cls")
    if exact:
        fv.reduce_(model, fv.HVTPool(2), exact_last_block=True)
    else:
        fv.reduce_(model, fv.ToMe(), SCHEDULE)
    before = model(images())
    with pytest.raises(ValueError, match=r"Call restore_\(model\)"):
        model.prune_intermediate_layers([1], prune_head=prune_head)
    assert len(model.blocks) == 4
    assert torch.equal(model(images()), before)


def test_what_was_frozen_stays_frozen_at_another_size():
    model = fv.reduce_(make("timm-cls"), fv.HVTPool(2))
    frozen = {"pos_embed", "patch_embed.proj.weight", "foveate.learned.0.pos_embed"}
    for name in frozen:
        model.get_parameter(name).requires_grad_(False)
    model.set_input_size(img_size=64, patch_size=8)
    assert {name for name, p in model.named_parameters() if not p.requires_grad} == frozen
    plain = make("timm-cls")
    plain.pos_embed.requires_grad_(False)
    assert not fv.models.drop_class_token_(plain).pos_embed.requires_grad
    assert fv.models.drop_class_token_(make("timm-cls")).pos_embed.requires_grad


def test_patches_of_another_size_cost_what_they_cost_in_a_new_model():
    resized = fv.reduce_(make("timm-dynamic"), fv.ToMe(), fv.Budget(0.6))
    resized.set_input_size(img_size=96, patch_size=8)
    fresh = make("timm-dynamic")
    fresh.set_input_size(img_size=96, patch_size=8)
    whole = fv.cost(fresh).macs
    fv.reduce_(fresh, fv.ToMe(), fv.Budget(0.6))
    assert fv.cost(resized) == fv.cost(fresh)
    assert fv.cost(resized, (3, 128, 96)) == fv.cost(fresh, (3, 128, 96))
    assert fv.cost(resized).macs / whole == pytest.approx(0.6, rel=0.02)
    assert resized.foveate.shape == fresh.foveate.shape


@dataclasses.dataclass(frozen=True)
class Scaled(LearnedMethod):
    """A method that learns: it multiplies the channels of the tokens it keeps, by numbers of each block."""

    site: ClassVar[Site] = Site.POST_BLOCK

    def build(self, step, block):
        return nn.ParameterDict({"factor": nn.Parameter(torch.full((step.dim,), 1.0 + block))})

    def assign(self, view, keep):
        return selection(torch.arange(keep).expand(view.tokens.shape[0], keep), view.patches.shape[1])

    def combine(self, view, assignment):
        kept = pool(view.patches, assignment) * view.module["factor"]
        return torch.cat([view.tokens[:, : view.prefix], kept], dim=1)


def test_what_a_method_learns_lives_under_one_prefix_trains_and_goes_with_it():
    plain = make("timm-cls")
    model = fv.reduce_(make("timm-cls"), Scaled(), fv.Keep({1: 20, 2: 10}))
    own = [key for key in model.state_dict() if key not in plain.state_dict()]
    assert own == ["foveate.learned.1.factor", "foveate.learned.2.factor"]
    assert [model.state_dict()[key].mean().item() for key in own] == [2.0, 3.0]
    model(images()).square().sum().backward()
    assert all(model.get_parameter(key).grad.abs().max() > 1e-4 for key in own)
    assert list(fv.restore_(model).state_dict()) == list(plain.state_dict())


def test_distilled_training_still_returns_both_predictions():
    model = fv.reduce_(make("timm-distilled"), fv.ToMe(), SCHEDULE).train()
    model.set_distilled_training(True)
    by_class, by_teacher = model(images())
    assert by_class.shape == by_teacher.shape == (3, 7)


def test_no_dense_features_where_the_last_block_returns_prefix_tokens_only():
    model = fv.reduce_(make("timm-cls"), fv.ToMe(), SCHEDULE, exact_last_block=True)
    with torch.no_grad():
        assert model.forward_features(images()).shape == (3, 1, DIM)
        with pytest.raises(ValueError, match="exact_last_block"):
            fv.features(model, images())
        assert fv.features(model, images(), block=2).shape == (3, DIM, GRID, GRID)
        unreduced_so_far = fv.reduce_(make("timm-cls"), fv.FreeSlice(Site.KV), fv.Keep({3: 5}), exact_last_block=True)
        with pytest.raises(ValueError, match="exact_last_block"):
            fv.features(unreduced_so_far, images())


def test_block_hooks_still_fire_where_nothing_is_reduced():
    model, seen = fv.reduce_(make("timm-cls"), fv.TopK(), fv.Keep({2: 10})), []
    model.blocks[0].register_forward_hook(lambda *args: seen.append(args))
    model(images())
    assert len(seen) == 1


def test_dropout_in_training_reaches_attention():
    model = VisionTransformer(
        img_size=IMAGE, patch_size=PATCH, embed_dim=DIM, depth=2, num_heads=2, num_classes=3, attn_drop_rate=0.5
    )
    fv.reduce_(model, fv.TopK(), fv.Keep({0: PATCHES - 1, 1: PATCHES - 1}))
    nn.init.normal_(model.head.weight)
    torch.manual_seed(0)
    one = model.train()(images())
    assert not torch.equal(one, model(images()))
    assert torch.equal(model.eval()(images()), model(images()))
