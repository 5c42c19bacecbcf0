"""``foveate cost``: the numbers of foveate.cost, in a table and as JSON."""

import json
from types import SimpleNamespace

import pytest
import timm
import torch
import torchvision

import foveate as fv
from foveate.cli.output import run_lengths
from foveate.cli.requests import load_from
from foveate.methods.options import parse
from foveate_cli.main import main


@pytest.fixture
def run(capsys):
    """Call the command line: its exit code, stdout and stderr."""

    def call(*argv):
        code = main(argv)
        out, err = capsys.readouterr()
        return SimpleNamespace(code=code, out=out, err=err)

    return call


@pytest.fixture
def cost_rows(run):
    """The rows of ``foveate cost ... --json``."""

    def call(*argv):
        result = run("cost", *argv, "--json")
        assert (result.code, result.err) == (0, "")
        return json.loads(result.out)["rows"]

    return call


def assert_row_is(row, cost, unreduced):
    assert row["macs"] == cost.macs
    assert row["of_unreduced"] == cost.macs / unreduced.macs
    assert row["reduction_macs"] == cost.reduction_macs
    assert row["params"] == cost.params
    assert row["tokens"] == list(cost.tokens)


SCHEDULES = {
    "--keep-rate 0.7": fv.KeepRate(0.7),
    "--keep-rate 0.7 --blocks 1,3": fv.KeepRate(0.7, (1, 3)),
    "--keep 1:80,3:50": fv.Keep({1: 80, 3: 50}),
    "--keep 100,90,80,70,60,50": fv.Keep([100, 90, 80, 70, 60, 50]),
    "--remove 7": fv.RemovePerBlock(7),
    "--budget 0.6": fv.Budget(0.6),
    "--budget 0.8 --blocks 1,4": fv.Budget(0.8, (1, 4)),
}


@pytest.mark.parametrize("words", SCHEDULES)
@pytest.mark.parametrize("exact", [False, True])
def test_json_holds_the_library_s_numbers(cost_rows, words, exact):
    methods = ["EViT:fuse=false,proportional_attention=true", "ToMe"]
    options = [part for method in methods for part in ("--method", method)] + ["--exact-last-block"] * exact
    first, *rest = cost_rows("test_vit", *words.split(), *options)
    model = timm.create_model("test_vit")
    unreduced = fv.cost(model)
    assert_row_is(first, unreduced, unreduced)
    assert fv.Reduction.from_dict(first["reduction"]).is_identity
    for row, text in zip(rest, methods, strict=True):
        fv.reduce_(model, parse(text), SCHEDULES[words], exact_last_block=exact)
        assert_row_is(row, fv.cost(model), unreduced)
        assert fv.Reduction.from_dict(row["reduction"]) == fv.Reduction(text, SCHEDULES[words], exact)
        fv.restore_(model)


def test_without_a_method_the_unreduced_model_alone(cost_rows):
    (row,) = cost_rows("test_vit")
    unreduced = fv.cost(timm.create_model("test_vit"))
    assert_row_is(row, unreduced, unreduced)


def test_the_table_reads_like_the_numbers(run):
    result = run("cost", "test_vit", "--method", "evit", "--method", "evit:fuse=false", "--keep", "1:80,3:50")
    assert result.code == 0
    model = fv.reduce_(timm.create_model("test_vit"), fv.EViT(), fv.Keep({1: 80, 3: 50}))
    lines = [line.split() for line in result.out.splitlines()]
    (evit,) = [line for line in lines if line[:1] == ["EViT"]]
    macs, whole = fv.cost(model).macs, fv.cost(timm.create_model("test_vit")).macs
    assert evit[1:3] == ["keep", "1:80,3:50"]
    assert evit[3:5] == [f"{macs / 1e9:.3f}", f"{macs / whole:.1%}"]
    assert evit[-3:] == ["101", "81x2", "51x3"]
    assert any(line[:1] == ["unreduced"] and line[-1] == "101x6" for line in lines)
    assert any(line[:1] == ["EViT:fuse=false"] for line in lines)


def test_keys_and_values_are_shown_where_only_they_are_reduced(cost_rows, run):
    arguments = ("test_vit", "--method", "free-slice:site=kv", "--keep", "1:80")
    assert cost_rows(*arguments)[1]["keys"] == [100, 80, 100, 100, 100, 100]
    assert "101x6; keys 100 80 100x4" in run("cost", *arguments).out


@pytest.mark.parametrize(
    ("size", "channels", "height", "width"),
    [("192", 3, 192, 192), ("192x160", 3, 192, 160), ("4x160x192", 4, 160, 192)],
)
def test_the_model_is_built_for_the_image_size(run, size, channels, height, width):
    document = json.loads(run("cost", "test_vit", "--image-size", size, "--json").out)
    model = timm.create_model("test_vit", img_size=(height, width), in_chans=channels)
    assert document["image_size"] == [channels, height, width]
    assert document["rows"][0]["macs"] == fv.cost(model).macs


def test_torchvision_models(cost_rows):
    row = cost_rows("torchvision:vit_b_32")[0]
    assert row["macs"] == fv.cost(torchvision.models.vit_b_32()).macs


def test_transformers_models(run, tmp_path):
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    config = transformers.ViTConfig(**sizes, image_size=32, patch_size=8)
    classifier = transformers.ViTForImageClassification(config)
    classifier.save_pretrained(tmp_path / "classifier")
    result = run("cost", f"hf:{tmp_path / 'classifier'}", "--json")  # transformers draws progress on stderr
    assert json.loads(result.out)["rows"][0]["macs"] == fv.cost(classifier).macs


def test_transformers_models_without_a_classifier(tmp_path):
    transformers = pytest.importorskip("transformers")
    from foveate.models.by_name import load_model

    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    tower = transformers.SiglipVisionModel(transformers.SiglipVisionConfig(**sizes, image_size=32, patch_size=8))
    tower.save_pretrained(tmp_path)
    assert type(load_model(f"hf:{tmp_path}")) is transformers.SiglipVisionModel


def test_a_saved_model_brings_its_reduction(cost_rows, tmp_path):
    model = fv.reduce_(timm.create_model("test_vit"), fv.EViT(), fv.Keep({1: 80}), exact_last_block=True)
    fv.save(model, tmp_path / "saved")
    unreduced, own, other = cost_rows(str(tmp_path / "saved"), "--method", "tome", "--remove", "3")
    assert unreduced["macs"] == fv.cost(timm.create_model("test_vit")).macs
    assert_row_is(own, fv.cost(model), fv.cost(timm.create_model("test_vit")))
    own, other = (fv.Reduction.from_dict(row["reduction"]) for row in (own, other))
    assert (own.method, own.exact_last_block) == (fv.EViT(), True)
    assert (other.method, other.exact_last_block) == (fv.ToMe(), False)


@pytest.mark.parametrize(
    ("values", "text"), [((197,) * 3 + (140, 140, 1), "197x3 140x2 1"), ((5, 4, 5), "5 4 5"), ((), "")]
)
def test_run_lengths(values, text):
    assert run_lengths(values) == text


def test_a_schedule_can_come_from_a_file(cost_rows, run, tmp_path):
    path = str(fv.save_schedule(fv.Keep({1: 80, 3: 50}), tmp_path / "counts.json"))
    assert cost_rows("test_vit", "--method", "power", "--schedule", path) == cost_rows(
        "test_vit", "--method", "power", "--keep", "1:80,3:50"
    )
    missing = run("cost", "test_vit", "--method", "power", "--schedule", str(tmp_path / "no.json"))
    assert missing.code == 2
    assert "There is no file" in missing.err


def test_a_saved_model_brings_what_its_method_learned(tmp_path):
    model = fv.reduce_(timm.create_model("test_vit"), fv.StridedConv((2,)), unit_qk="learned").eval()
    torch.nn.init.normal_(model.foveate.learned["2"].weight, std=0.1)
    torch.nn.init.constant_(model.foveate.unit_scales.alpha, 3.0)
    fv.save(model, tmp_path / "saved")
    args = SimpleNamespace(model=str(tmp_path / "saved"), pretrained=False, weights=None, image_size=None)
    loaded = load_from(args)
    images = torch.randn(1, *loaded.image_size)
    with torch.no_grad():
        assert torch.equal(loaded.own(images), model(images))
    asked = loaded.reduced(fv.Reduction(fv.TopK(), fv.Keep({1: 9})))  # learned scales belong to the model
    assert torch.equal(asked.foveate.unit_scales.alpha, model.foveate.unit_scales.alpha)
    assert fv.inspect(loaded.model).reduction == fv.Reduction(unit_qk="learned")
