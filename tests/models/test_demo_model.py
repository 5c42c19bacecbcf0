"""The model of the built-in demonstration: it comes with the package, and it knows the scenes."""

import json

import pytest
import timm
import torch
from safetensors.torch import load_file, save_file

import foveate as fv
import foveate.models.demo as demo
from foveate.data import Loader, open_data
from foveate.data.preprocessing import Preprocessing
from foveate.data.scenes import NUMBERS, SIZE
from foveate.models.demo import WEIGHTS, about_demo, demo_classes, demo_model
from foveate.models.demo.__main__ import LARGEST, export
from foveate.training.recipe import read_recipe

SCENES = 350  # of the 2,000 on which it reached 76.65 %; drawing them takes longer than looking at them


@pytest.fixture(scope="module")
def model():
    return demo_model()


@pytest.fixture(scope="module")
def batch(model):
    data = open_data(f"scenes:counting,count={SCENES}", "val", classes=demo_classes())
    (found,) = Loader(data, Preprocessing.of(model).evaluation(), SCENES, seed=0, train=False).epoch(0)
    return found


def test_it_is_small_enough_to_ship():
    assert WEIGHTS.stat().st_size < LARGEST == 8_000_000
    assert {tensor.dtype for tensor in load_file(WEIGHTS).values() if tensor.is_floating_point()} == {torch.float16}


def test_it_comes_ready_to_use(model):
    assert not model.training
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert model.num_prefix_tokens == 1  # a class token, which many methods rank patches by
    assert model.patch_embed.num_patches == 144


def test_images_come_as_scenes_are_drawn(model):
    found = Preprocessing.of(model)
    assert (found.height, found.width, found.crop_pct) == (SIZE, SIZE, 1.0)
    assert (found.mean, found.std) == ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))


def test_its_classes_are_the_numbers_that_scenes_show():
    assert demo_classes() == NUMBERS


def test_the_file_says_how_it_was_made():
    facts = about_demo()
    assert set(facts) == {"recipe", "data", "seed", "version", "top1", "classes"}
    assert (facts["recipe"], facts["data"]) == ("scenes", read_recipe("scenes").data.source)
    assert float(facts["top1"]) > 75


def test_it_knows_the_scenes(model, batch):
    with torch.no_grad():
        off = (model(batch.images).argmax(dim=1) - batch.targets).abs()
    assert (off == 0).float().mean() > 0.7
    assert (off <= 1).float().mean() > 0.97  # what it takes for wrong is one object more or less


def test_which_tokens_are_kept_matters(model, batch):
    """What the demonstration is to show: at half of the MACs chance loses count, and the best methods do not."""
    with torch.no_grad():
        some = batch.images[:200]
        whole = model(some).argmax(dim=1)
        changed = {
            method.name: (fv.reduce_(demo_model(), method, fv.Budget(0.5))(some).argmax(dim=1) != whole)
            for method in (fv.TokenPooling(), fv.EViT(), fv.RandomSelect())
        }
    shares = {name: float(found.float().mean()) for name, found in changed.items()}
    assert shares["TokenPooling"] < 0.02, shares
    assert shares["RandomSelect"] > 0.12, shares  # 0.16 on 1,000 scenes
    assert shares["EViT"] > 0.5, shares


def test_it_is_a_model_of_timms_as_well(model):
    ours, fresh = timm.create_model("scenes_vit", pretrained=True), timm.create_model("scenes_vit")
    x = torch.zeros(1, 3, SIZE, SIZE)
    with torch.no_grad():
        assert torch.equal(ours.eval()(x), model(x))
        assert not torch.equal(fresh.eval()(x), model(x))


def test_the_recipe_trains_this_model():
    section = read_recipe("scenes").model
    trained = timm.create_model(section.name, **section.options)
    assert {k: v.shape for k, v in trained.state_dict().items()} == {k: v.shape for k, v in load_file(WEIGHTS).items()}


def test_a_file_that_is_not_there_or_damaged_is_said_in_words(monkeypatch, tmp_path):
    path = tmp_path / "weights.safetensors"
    monkeypatch.setattr(demo, "WEIGHTS", path)
    for content in (None, b"", WEIGHTS.read_bytes()[:100]):
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(ValueError, match="Install foveate again, or train them: foveate train scenes"):
            demo_model()


def test_a_file_without_facts_is_refused(monkeypatch, tmp_path):
    save_file({"x": torch.zeros(1)}, tmp_path / "weights.safetensors")
    monkeypatch.setattr(demo, "WEIGHTS", tmp_path / "weights.safetensors")
    with pytest.raises(ValueError, match="cannot be read"):
        demo_model()


@pytest.fixture
def run(tmp_path, model):
    """What `foveate train scenes` leaves."""
    fv.save(model, tmp_path / "run" / "best")
    (tmp_path / "run" / "best" / "classes.json").write_text(json.dumps(NUMBERS))
    (tmp_path / "run" / "config.json").write_text(
        json.dumps({"run": {"seed": 3}, "data": {"source": "scenes:counting"}})
    )
    lines = [{"val": {"top1": 91.0}}, {"val": {"top1": 97.125}}, {"epoch": 2}]
    (tmp_path / "run" / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return tmp_path / "run"


def test_weights_are_made_from_a_run(run, tmp_path, model):
    facts = export(run, tmp_path / "new.safetensors")
    assert (facts["seed"], facts["top1"], json.loads(facts["classes"])) == ("3", "97.12", list(NUMBERS))
    made = load_file(tmp_path / "new.safetensors")
    for name, tensor in model.state_dict().items():
        assert torch.equal(made[name].float(), tensor)  # the shipped weights have been rounded before
    assert {path.name for path in tmp_path.iterdir()} == {"run", "new.safetensors"}


def test_a_directory_that_is_no_run_leaves_the_weights_alone(run, tmp_path):
    (run / "log.jsonl").unlink()
    with pytest.raises(ValueError, match="not a finished run of `foveate train scenes`"):
        export(run, tmp_path / "new.safetensors")
    assert not (tmp_path / "new.safetensors").exists()


def test_weights_that_half_precision_cannot_hold_are_refused(run, tmp_path, model):
    broken = demo_model()
    with torch.no_grad():
        broken.head.bias[0] = 1e6
    fv.save(broken, run / "best")
    with pytest.raises(ValueError, match=r"head\.bias of .* cannot be written in half precision"):
        export(run, tmp_path / "new.safetensors")
