"""Folders that foveate 0.1 saved still load, and give the outputs they gave then."""

import json
from pathlib import Path

import pytest
import torch

import foveate as fv

FOLDER = Path(__file__).parent / "fixtures" / "saved_by_0_1"
LOGITS = json.loads((FOLDER / "logits.json").read_text())

REDUCTIONS = {
    "plain": fv.Reduction(),
    "tome_budget": fv.Reduction(fv.ToMe(proportional_attention=False), fv.Budget(0.65), exact_last_block=True),
    "evit_keep_rate": fv.Reduction(fv.EViT(fuse=False), fv.KeepRate(0.5, blocks=(1,)), unit_qk="learned"),
    "dynamicvit": fv.Reduction(fv.DynamicViT(), fv.Keep({1: 6})),
    "hvt": fv.Reduction(fv.HVTPool()),
    "clustr": fv.Reduction(),
    "hf_random": fv.Reduction(fv.RandomSelect(seed=3), fv.RemovePerBlock(3)),
    "torchvision_importance": fv.Reduction(fv.ImportanceSelect(), fv.Keep([16, 9, 9])),
}

# distances that 0.1 rounded chose another cluster than in float64, which the present code equals to 5e-9
ROUNDED_BY_0_1 = {"clustr": 3e-5}


def image(size: int) -> torch.Tensor:
    return torch.linspace(-1, 1, 3 * size * size).view(1, 3, size, size).sin()


@pytest.mark.parametrize("name", REDUCTIONS)
def test_a_folder_of_0_1_loads_with_its_reduction_and_its_outputs(name, tmp_path):
    model = fv.load(FOLDER / name)
    family = fv.inspect(model)
    assert family.reduction == REDUCTIONS[name]
    with torch.no_grad():
        logits = family.logits(model(image(LOGITS[name]["size"])))[0]
        saved = torch.tensor(LOGITS[name]["logits"])
        torch.testing.assert_close(logits, saved, rtol=1e-4, atol=ROUNDED_BY_0_1.get(name, 1e-5))
        again = fv.load(fv.save(model, tmp_path / "again"))
        assert torch.equal(family.logits(again(image(LOGITS[name]["size"])))[0], logits)
    assert fv.inspect(again).reduction == REDUCTIONS[name]


def test_what_0_1_rounded_is_right_now():
    model = fv.load(FOLDER / "clustr")
    x = image(LOGITS["clustr"]["size"])
    with torch.no_grad():
        single = model(x).double()
        torch.testing.assert_close(single, model.double()(x.double()), rtol=0, atol=1e-6)


def test_every_folder_is_tested():
    assert {path.name for path in FOLDER.iterdir() if path.is_dir()} == set(REDUCTIONS) == set(LOGITS)
