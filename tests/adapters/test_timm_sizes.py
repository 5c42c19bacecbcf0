"""Images that patches do not divide, as timm takes them: the rest of the image is left out."""

import pytest
import timm
import torch
from timm.models.eva import Eva
from timm.models.vision_transformer import VisionTransformer
from torch.utils.flop_counter import FlopCounterMode

import foveate as fv
from zoo import DIM, HEADS, make, reduced

SMALL = {"patch_size": 5, "embed_dim": DIM, "depth": 3, "num_heads": HEADS, "num_classes": 3}


def counted_macs(model, size):
    with FlopCounterMode(display=False) as counter:
        model(torch.randn(1, 3, *size))
    return counter.get_total_flops() // 2


@pytest.mark.parametrize("kind", [VisionTransformer, Eva])
def test_an_image_that_patches_do_not_divide_is_run_as_timm_runs_it(kind):
    model = kind(img_size=(24, 33), **SMALL).eval()
    x = torch.randn(2, 3, 24, 33)
    family = fv.inspect(model)
    assert family.grid == (4, 6)
    assert family.cost().macs == counted_macs(model, (24, 33))
    with torch.no_grad():
        expected = model(x)
        fv.reduce_(model, fv.ToMe(), fv.Keep({}))
        assert torch.equal(model(x), expected)
    fv.restore_(model)
    fv.reduce_(model, fv.ToMe(), fv.Budget(0.7))
    assert fv.cost(model).macs == counted_macs(model, (24, 33))
    model.set_input_size((18, 22))
    assert fv.inspect(model).grid == (3, 4)
    assert fv.cost(model).macs == counted_macs(model, (18, 22))
    with pytest.raises(ValueError, match="The image is 24 x 33, the model takes 18 x 22"):
        model(x)


def test_a_model_for_any_size_needs_whole_patches_unless_it_pads():
    sizes = {"img_size": 25, **SMALL, "dynamic_img_size": True}
    model = VisionTransformer(**sizes).eval()
    with pytest.raises(ValueError, match="which patches of 5 x 5 do not divide"):
        fv.cost(model, (3, 24, 25))
    padded = fv.reduce_(VisionTransformer(**sizes, dynamic_img_pad=True).eval(), fv.ToMe(), fv.RemovePerBlock(2))
    assert fv.inspect(padded).grid_for(24, 33) == (5, 7)
    assert fv.cost(padded, (3, 24, 33)).macs == counted_macs(padded, (24, 33))


def test_siglip_so400m_at_384_has_27_x_27_patches():
    with torch.device("meta"):
        model = timm.create_model("vit_so400m_patch14_siglip_384", depth=2)
    assert fv.inspect(model).grid == (27, 27)
    assert fv.reduce_(model, fv.ToMe(), fv.Budget(0.8)).foveate.plan.num_patches == 729


def test_a_model_that_cannot_change_its_size_says_so():
    with pytest.raises(ValueError, match="Beit cannot change its image size"):
        reduced("timm-beit", fv.ToMe()).set_input_size(48)
    with pytest.raises(ValueError, match="smaller than a patch of 4 x 4"):
        reduced("timm-cls", fv.ToMe()).set_input_size(3)


def test_a_hybrid_counts_its_stem_at_the_size_it_has():
    model = make("timm-hybrid")
    before = fv.cost(model).macs
    model.set_input_size((48, 24))
    assert fv.inspect(model).grid == (12, 6)
    assert fv.cost(model).macs == counted_macs(model, (48, 24)) > before
