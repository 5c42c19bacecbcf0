"""Segmentation as users type it: trained, evaluated and drawn; nothing is written where it cannot begin."""

import json

import pytest
import torch
from PIL import Image

import foveate as fv
from foveate_cli.main import main
from segments import CLASSES, blocks, write_folder

SMALL = ["image_size=[32,48]", "patch_size=8", "embed_dim=32", "depth=3", "num_heads=2"]
OPTIONS = ["model.pretrained=false", "data.workers=0", *(f"model.options.{option}" for option in SMALL)]
SHORT = ["schedule.steps=40", "schedule.warmup_steps=2", "optimizer.lr=3e-3", "run.eval_epochs=20"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = write_folder(tmp_path_factory.mktemp("pairs"), (("train", 16), ("val", 4)))
    (root / "classes.txt").write_text("\n".join(CLASSES))
    return root


@pytest.fixture(scope="module")
def run(folder, tmp_path_factory):
    """A trained run: 40 steps on images whose colors are their classes."""
    out = tmp_path_factory.mktemp("runs") / "run"
    changes = [*OPTIONS, *SHORT, "data.options.cat_max_ratio=1.0", "data.options.photometric=false"]
    assert main(["train", "segment", "--data", str(folder), "--out", str(out), "--set", *changes]) == 0
    return out


def test_a_run_learns_and_keeps_its_task(run):
    log = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    assert log[-1]["step"] == 40
    assert log[-1]["val"]["pixel_accuracy"] > 60  # dark pixels alone are less than half
    assert json.loads((run / "best" / "task.json").read_text())["task"] == "segmentation"
    assert json.loads((run / "best" / "classes.json").read_text()) == list(CLASSES)
    model = fv.load(run / "best")
    assert model.image_size == (3, 32, 48)
    assert fv.inspect(model).num_classes == 4


@pytest.mark.parametrize("inference", ["whole", "slide"])
def test_a_trained_model_is_evaluated_without_more_words(run, folder, inference, capsys):
    command = ["eval", str(run / "best"), "--data", str(folder), "--workers", "0", "--json"]
    assert main([*command, "--batch-size", "1", "--option", f"inference={inference}"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert row["agreement"] == 100
    assert row["pixel_accuracy"] > 60
    assert 0 < row["miou"] <= 100


def test_reduced_models_are_evaluated_beside_it(run, folder, capsys):
    command = ["eval", str(run / "best"), "--data", str(folder), "--workers", "0", "--json"]
    assert main([*command, "--methods", "ToMe", "EViT", "--budget", "0.8"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert len(rows) == 3
    assert all(row["macs"] < rows[0]["macs"] and row["agreement"] < 100 for row in rows[1:])


def test_settings_are_compared_by_their_pixels(run, folder, tmp_path, capsys):
    out = tmp_path / "report"
    command = ["compare", str(run / "best"), "--task", "segmentation", "--data", str(folder), "--workers", "0"]
    command += ["--methods", "ToMe", "EViT", "--budgets", "0.8", "--seconds", "0.05", "--out", str(out), "--json"]
    assert main(command) == 0
    found = json.loads(capsys.readouterr().out)
    unreduced, *others = found["entries"]
    assert unreduced["agreement"] == unreduced["boundary_agreement"] == 100
    assert len(others) == 2
    assert all(0 < entry["miou"] <= 100 and entry["boundary_agreement"] < entry["agreement"] for entry in others)
    page = (out / "index.html").read_text()
    assert page.count('alt="Unreduced: prediction for') == 4
    assert "What it predicts" in page
    assert "Agreement at boundaries" in page
    header = (out / "results.csv").read_text().splitlines()[0].split(",")
    assert {"miou", "pixel_accuracy", "boundary_accuracy", "boundary_agreement"} <= set(header)


def test_agreement_needs_no_masks(run, folder, tmp_path):
    model = fv.load(run / "best")
    found = fv.compare(model, str(folder / "val" / "images"), methods=["ToMe"], budgets=[0.8], seconds=0.05)
    assert "no labels" in found.data["note"]
    assert found.entries[1].metrics.keys() == {"boundary_agreement"}
    batch = torch.zeros(2, 3, 32, 48)
    assert fv.compare(model, batch, methods=["ToMe"], budgets=[0.8], seconds=0.05).entries[1].agreement is not None


def test_a_run_trains_a_reduced_model(run, folder, tmp_path):
    out = tmp_path / "out"
    changes = ["model.options={}", "model.pretrained=false", "data.workers=0", "schedule.steps=2"]
    changes += ["schedule.warmup_steps=0", "reduction.method=ToMe", "reduction.budget=0.8", "objective.self_kl=1"]
    command = ["train", "segment", "--model", str(run / "best"), "--data", str(folder), "--out", str(out)]
    assert main([*command, "--set", *changes]) == 0
    model = fv.load(out / "model")
    assert fv.inspect(model).reduction.method == fv.ToMe()
    assert fv.cost(model).macs < fv.cost(fv.load(run / "best")).macs


def test_predictions_are_drawn_with_their_names(run, folder, tmp_path, capsys):
    photo = folder / "val" / "images" / "000.png"
    out = tmp_path / "p.png"
    assert main(["show", "predictions", str(run / "best"), str(photo), str(photo), "--out", str(out)]) == 0
    assert Image.open(out).width > 900
    assert main(["show", "tokens", str(run / "best"), str(photo), "--option", "ignore=3"]) == 2
    assert "no --task, --option and --classes" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (["model.name=vit_tiny_patch16_224+semantic-fpn"], "strides double"),
        (["model.name=vit_tiny_patch16_224", "model.options={}"], "not for segmentation. Give its encoder a head"),
        (["data.num_classes=3", "data.source=NO_NAMES"], "do not fit their masks"),
        (["data.options.ignored=3"], "has no option 'ignored'"),
        (["augmentation.mixup=0.5"], "does not use augmentation.mixup"),
        (["model.options.image_size=[3,48]"], "3"),
    ],
)
def test_what_cannot_begin_writes_nothing(folder, tmp_path, changes, words, capsys):
    plain = write_folder(tmp_path / "plain", (("train", 8), ("val", 2)))
    changes = [change.replace("NO_NAMES", str(plain)) for change in changes]
    out = tmp_path / "out"
    code = main(["train", "segment", "--data", str(folder), "--out", str(out), "--set", *OPTIONS, *SHORT, *changes])
    assert code == 2
    assert words in capsys.readouterr().err.replace("\n", " ")
    assert not out.exists()


def test_another_number_of_classes_gives_a_new_classifier(run, tmp_path):
    root = write_folder(tmp_path / "two", (("train", 8), ("val", 2)), classes=2)
    out = tmp_path / "out"
    changes = [
        "model.options={}",
        "model.pretrained=false",
        "data.workers=0",
        "schedule.steps=1",
        "schedule.warmup_steps=0",
    ]
    command = ["train", "segment", "--model", str(run / "best"), "--data", str(root), "--out", str(out)]
    assert main([*command, "--set", *changes]) == 0
    model = fv.load(out / "model")
    assert model.head.classifier.out_channels == 2
    with torch.no_grad():
        assert model(torch.zeros(1, 3, 32, 48)).shape == (1, 2, 32, 48)
    assert blocks(1).max() > 1
