"""Bad requests get an error that says the fact, the value and the way out, and leave the model untouched."""

import pytest
import torch

import foveate as fv
from zoo import DEPTH, IMAGE, PATCHES, images, make


@pytest.mark.parametrize(
    ("family", "method", "schedule", "options", "match"),
    [
        (
            "timm-cls",
            fv.ToMe(),
            fv.KeepRate(0.5, blocks=(3, 6, 9)),
            {},
            r"blocks=\(3, 6, 9\) but the model has 4 blocks",
        ),
        ("timm-cls", fv.TopK(), fv.Keep({1: 400}), {}, "400 tokens after block 1, but only 36"),
        ("timm-cls", fv.TopK(), fv.Keep([36, 20, 30, 30]), {}, "asks for 30 tokens after block 2, but only 20"),
        ("timm-cls", fv.TopK(), fv.Keep([36, 20]), {}, "lists 2 counts but the model has 4 blocks"),
        ("timm-cls", fv.ToMe(), fv.Keep({1: 10}), {}, "ToMe can reach 18 at the lowest"),
        ("timm-mean", fv.EViT(), fv.KeepRate(0.5), {}, "no class token"),
        ("timm-mean", fv.TopK(), fv.Keep({3: 0}), {}, "head reads patch tokens. Keep at least 1"),
        ("timm-mean", fv.ToMe(), fv.Keep({}), {"exact_last_block": True}, "reads only prefix tokens"),
        ("timm-cls", fv.ToMe(), None, {}, "ToMe needs a schedule"),
        ("timm-cls", fv.ToMe, fv.Keep({}), {}, r"an instance such as ToMe\(\)"),
        ("timm-cls", fv.Keep({}), fv.ToMe(), {}, "method must be an instance"),
        ("timm-cls", fv.ToMe(), [9, 9], {}, "schedule must be a Keep"),
        ("timm-cls", fv.ToMe(), fv.Budget(0.01), {}, r"Budget\(0.01\) cannot be met by ToMe"),
    ],
)
def test_a_bad_request_is_refused_and_the_model_stays(family, method, schedule, options, match):
    model, untouched = make(family), make(family)
    with pytest.raises((ValueError, TypeError), match=match):
        fv.reduce_(model, method, schedule, **options)
    assert type(model) is type(untouched)
    assert not hasattr(model, "foveate")
    with torch.no_grad():
        assert torch.equal(model(images()), untouched(images()))


def test_reducing_twice_says_how_to_restore():
    model = fv.reduce_(make("timm-cls"), fv.ToMe(), fv.RemovePerBlock(2))
    with pytest.raises(ValueError, match=r"already reduced by ToMe.*restore_\(model\)"):
        fv.reduce_(model, fv.EViT(), fv.KeepRate(0.5))
    assert model.foveate.method == fv.ToMe()


def test_restoring_an_untouched_model_is_an_error():
    with pytest.raises(ValueError, match="is not reduced"):
        fv.restore_(make("timm-cls"))


@pytest.mark.parametrize("family", ["timm-cls", "hf-vit", "torchvision"])
@pytest.mark.parametrize(
    ("shape", "match"),
    [
        ((0, 3, IMAGE, IMAGE), "batch is empty"),
        ((2, 3, 20, 28), "20 x 28, the model takes 24 x 24"),
        ((3, IMAGE, IMAGE), r"Images must be a tensor \(batch, channels, height, width\)"),
    ],
)
def test_bad_images_get_words(family, shape, match):
    model = fv.reduce_(make(family), fv.ToMe(), fv.RemovePerBlock(2))
    with pytest.raises(ValueError, match=match):
        model(torch.zeros(shape))


@pytest.mark.parametrize("size", [(224,), (1, IMAGE, IMAGE), (3, IMAGE, 25)])
def test_cost_refuses_sizes_the_model_does_not_take(size):
    with pytest.raises(ValueError, match=r"image_size|channels|image is"):
        fv.cost(make("timm-cls"), size)


@pytest.mark.parametrize("block", [DEPTH, -DEPTH - 1])
def test_a_block_that_does_not_exist_is_an_index_error(block):
    with pytest.raises(IndexError, match="4 blocks"):
        fv.features(make("timm-cls"), images(), block=block)
    with pytest.raises(IndexError, match="4 blocks"):
        fv.trace(make("timm-cls"), images()).after(block)


def test_keeping_no_patch_is_legal_where_the_head_reads_the_class_token():
    model = fv.reduce_(make("timm-cls"), fv.TopK(), fv.Keep({2: 0}))
    assert fv.cost(model).tokens == (37, 37, 1, 1)
    assert model(images()).isfinite().all()
    assert fv.features(model, images()).isfinite().all()
    assert (fv.trace(model, images()).owner(3) == -1).all()


@pytest.mark.parametrize("fraction", [0.5, 0.65, 0.8, 0.95])
@pytest.mark.parametrize("method", [fv.ToMe(), fv.EViT(), fv.TopK(), fv.RandomSelect()], ids=lambda m: m.name)
@pytest.mark.parametrize("exact", [False, True])
def test_a_budget_is_met_within_one_percent(fraction, method, exact):
    import timm

    model = timm.create_model("vit_tiny_patch16_224")
    whole = fv.cost(model).macs
    if exact and fraction > 0.94:
        with pytest.raises(fv.PlanError, match="cannot be met"):
            fv.reduce_(model, method, fv.Budget(fraction), exact_last_block=True)
        return
    fv.reduce_(model, method, fv.Budget(fraction), exact_last_block=exact)
    assert fv.cost(model).macs / whole == pytest.approx(fraction, rel=0.01)


def test_deit_small_costs_what_the_papers_print():
    import timm

    model = timm.create_model("deit_small_patch16_224")
    assert fv.cost(model, (3, 224, 224)).macs == pytest.approx(4.60e9, rel=1e-3)
    fv.reduce_(model, fv.EViT(), fv.KeepRate(0.7, blocks=(3, 6, 9)))
    assert fv.cost(model).tokens == (197,) * 3 + (140,) * 3 + (100,) * 3 + (72,) * 3


def test_the_exact_last_block_saves_seven_percent_of_a_vit_tiny():
    import timm

    model = timm.create_model("vit_tiny_patch16_224")
    whole = fv.cost(model).macs
    fv.reduce_(model, fv.ToMe(), fv.Keep({}), exact_last_block=True)
    assert 1 - fv.cost(model).macs / whole == pytest.approx(0.07, abs=0.005)


def test_the_trace_names_the_token_of_every_patch():
    model = fv.reduce_(make("timm-cls"), fv.EViT(fuse=False), fv.Keep({1: 10}))
    trace = fv.trace(model, images())
    owner = trace.owner(1)
    assert owner.shape == (3, PATCHES)
    assert ((owner >= 0).sum(1) == 10).all()
    for image in range(3):
        kept = trace.steps[1].src[image]
        assert owner[image, kept].tolist() == list(range(10))
    fused = fv.trace(fv.reduce_(make("timm-cls"), fv.EViT(), fv.Keep({1: 10})), images()).owner(3)
    assert (fused >= 0).all()
    assert ((fused == 9).sum(1) == PATCHES - 9).all()
