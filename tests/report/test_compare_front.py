"""How far a comparison goes: smaller budgets until decisions break, and smaller images beside the methods."""

import copy

import pytest
import torch
from torch.nn.functional import interpolate

import foveate as fv
from comparing import QUICK, titles
from foveate.methods.registry import all_methods
from foveate.report.compare import compare, descent
from foveate.report.compare.candidates import DEFAULT_BUDGETS, read_methods
from foveate.report.compare.comparison import Refused
from foveate.report.compare.descent import SMALLER_BUDGETS, further
from foveate.report.compare.smaller_images import smaller_images
from zoo import GRID, IMAGE, PATCH, images, make

pytestmark = pytest.mark.usefixtures("no_clock_and_no_gallery")
ONE = {name: value for name, value in QUICK.items() if name != "budgets"} | {"methods": ("ward",)}


def test_budgets_fall_until_the_first_that_breaks_decisions():
    tried = []
    found = further(lambda budget: budget, [0.8, 0.5], lambda one: tried.append(one) or one > 0.3)
    assert found == [0.4, 0.32, 0.25]  # the last is below 0.3: where the front ends
    assert tried == [0.5, 0.4, 0.32, 0.25]
    assert further(lambda budget: budget, [0.8, 0.5], lambda one: False) == []
    assert list(SMALLER_BUDGETS) == sorted(SMALLER_BUDGETS, reverse=True)
    assert SMALLER_BUDGETS[0] < DEFAULT_BUDGETS[-1]


def test_budgets_end_where_a_method_ends():
    out_of_reach = Refused("ToMe", "ToMe", 0.25, "ToMe cannot go below 0.3.")
    found = further(lambda budget: budget if budget > 0.3 else out_of_reach, [0.5], lambda one: True)
    assert found == [0.4, 0.32]
    assert further(lambda budget: budget, [0.8, out_of_reach], lambda one: True) == []


@pytest.mark.parametrize(("bound", "smaller"), [(0.0, True), (101.0, False)])
def test_a_comparison_without_budgets_goes_on_while_decisions_hold(monkeypatch, bound, smaller):
    monkeypatch.setattr(descent, "HOLDS", bound)
    found = compare(make("timm-cls"), images(8), **ONE)
    budgets = [entry.budget for entry in found.entries if entry.budget is not None]
    assert budgets == sorted(budgets, reverse=True)
    assert (min(budgets) < 0.5) is smaller
    assert found.options["smaller_budgets"] == "until decisions break"
    assert "smaller_budgets" not in compare(make("timm-cls"), images(8), **ONE, budgets=[0.5]).options


def test_images_that_can_be_read_once_are_left_for_the_measurement(monkeypatch):
    monkeypatch.setattr(descent, "HOLDS", 0.0)
    found = compare(make("timm-cls"), iter(images(8).split(4)), **ONE)
    assert found.data["images"] == 8
    assert min(entry.budget for entry in found.entries if entry.budget is not None) == 0.5


def test_smaller_images_are_the_resized_model_on_resized_images():
    model, x = make("timm-cls"), images(3)
    (found,) = smaller_images(model, [0.5]).all
    rows, columns = fv.inspect(found.model).grid
    assert 0.3 < fv.cost(found.model).macs / fv.cost(model).macs < 0.7
    assert (rows, columns) != GRID
    small = copy.deepcopy(model)
    small.set_input_size(img_size=(rows * PATCH, columns * PATCH))
    shrunk = interpolate(x, (rows * PATCH, columns * PATCH), mode="bicubic", antialias=True)
    with torch.no_grad():
        assert torch.allclose(found.model(x), small(shrunk), atol=1e-6)
    assert fv.inspect(model).image_size == (3, IMAGE, IMAGE)  # the model itself does not change
    assert found.model.blocks[0].attn.qkv.weight is model.blocks[0].attn.qkv.weight


def test_a_family_that_cannot_change_its_size_is_refused_once():
    found = smaller_images(make("torchvision"), [0.8, 0.5])
    assert not found.all
    (refused,) = found.refused
    assert "one image size" in refused.reason


def test_smaller_images_stand_beside_all_methods_and_are_never_recommended(monkeypatch):
    monkeypatch.setattr("foveate.report.compare.candidates.default_methods", lambda: ["ToMe"])
    assert "ToMe" in all_methods()
    found = compare(make("timm-cls"), images(4), seconds=0.001, batch_size=4, budgets=(0.7, 0.5))
    assert titles(found)[-2:] == ["Smaller images (baseline) at 0.7", "Smaller images (baseline) at 0.5"]
    best = found.best(0.0)
    assert best.label == "ToMe"
    with pytest.raises(ValueError, match="Smaller images are no reduction"):
        found.entries[-1].apply_(make("timm-cls"))
    assert compare(make("timm-cls"), images(4), **(QUICK | {"methods": read_methods(["ToMe"])})).entries[-1].label
