"""Weights that nobody trained: a checkpoint that lacks some is not judged, and what is not known is not said."""

import json

import pytest
import transformers
from safetensors.torch import load_file, save_file

from foveate.cli import show
from foveate.cli.requests import Loaded
from foveate.models.by_name import load_with_report
from foveate_cli.main import main
from small_runs import make_images

LACKED = "encoder.layer.1"


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    return str(make_images(tmp_path_factory.mktemp("photos")))


@pytest.fixture(scope="module")
def lacking(tmp_path_factory):
    """A classifier of transformers whose file lacks three tensors of its second block."""
    folder = tmp_path_factory.mktemp("lacking")
    config = transformers.Dinov2Config(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, image_size=32, patch_size=8, num_labels=2
    )
    transformers.Dinov2ForImageClassification(config).save_pretrained(folder)
    tensors = load_file(folder / "model.safetensors")
    for name in [name for name in tensors if LACKED in name][:3]:
        del tensors[name]
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return f"hf:{folder}"


@pytest.mark.parametrize(
    "command",
    [
        ("compare", "--methods", "topk", "--budgets", "0.8"),
        ("eval",),
        ("search", "--for", "agreement>=0.9"),
    ],
    ids=lambda command: command[0],
)
def test_a_checkpoint_that_lacks_weights_is_not_judged(capsys, tmp_path, photos, lacking, command):
    out = [] if command[0] == "eval" else ["--out", str(tmp_path / "out")]
    assert main([command[0], lacking, "--data", photos, *command[1:], *out]) == 2
    err = capsys.readouterr().err.splitlines()[-1]
    assert "has 3 parameters that nobody trained (dinov2." in err
    assert "foveate train linear-probe" in err
    assert ("--untrained" in err) == (command[0] != "search")  # which has no such option
    assert list(tmp_path.iterdir()) == []


def test_it_is_no_teacher_either(capsys, tmp_path, photos, lacking):
    options = [
        "--set",
        "reduction.method=none",
        "reduction.keep_rate=0",
        "reduction.blocks=[]",
        "model.pretrained=true",
    ]
    line = ["train", "distill-all", "--data", photos, "--model", lacking, "--teacher", lacking, *options]
    assert main([*line, "--workers", "0", "--out", str(tmp_path / "run")]) == 2
    assert "The teacher" in (err := capsys.readouterr().err)
    assert "has 3 parameters that nobody trained" in err


def test_eval_of_random_weights_gives_speeds_alone(capsys, photos, lacking):
    line = ["eval", lacking, "--data", photos, "--untrained", "--workers", "0"]
    assert main([*line, "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert row.keys() == {"model", "macs", "images_per_second"}
    assert main(line) == 0
    printed = capsys.readouterr().out
    assert "weights are random" in printed
    assert "top-1" not in printed


def test_a_picture_of_it_says_so(lacking):
    model, names = load_with_report(lacking)
    assert show.untrained(Loaded(model, (3, 32, 32), names), model) == " (untrained)"
    assert show.untrained(Loaded(model, (3, 32, 32), ("classifier.weight",)), model) == ""
