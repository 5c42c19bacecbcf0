"""``foveate train`` and ``foveate eval`` as users type them."""

import json
import shutil

import pytest
import timm
import torch

import foveate as fv
from foveate_cli.main import main
from small_runs import SMALL, make_images

SHORT = ["schedule.epochs=1", "schedule.warmup_epochs=0", "data.workers=0", "run.steps=2"]
OPTIONS = [f"model.options.{name}={value}" for name, value in SMALL.items()]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_images(tmp_path_factory.mktemp("images"))


@pytest.fixture(scope="module")
def saved(folder, tmp_path_factory):
    """A model of two classes, as a run leaves it."""
    torch.manual_seed(0)
    model = timm.create_model("vit_tiny_patch16_224", **SMALL, num_classes=2)
    return fv.save(model, tmp_path_factory.mktemp("models") / "small")


def train(*arguments):
    return main(["train", *map(str, arguments)])


def test_a_recipe_is_run_and_everything_is_written(folder, tmp_path, capsys):
    out = tmp_path / "run"
    command = ["finetune", "--data", folder, "--model", "vit_tiny_patch16_224", "--batch-size", "8", "--out", out]
    assert train(*command, "--set", *SHORT, *OPTIONS, "model.pretrained=false") == 0
    assert f"Wrote {out / 'model'}. Best evaluation" in capsys.readouterr().out
    config = json.loads((out / "config.json").read_text())
    assert config["data"]["batch_size"] == 8
    assert config["model"]["options"]["embed_dim"] == 32
    assert config["source"].startswith("Lu and Nakamura")
    assert {"best", "checkpoint.safetensors", "config.json", "log.jsonl", "model", "tensorboard"} <= {
        path.name for path in out.iterdir()
    }
    assert fv.load(out / "model").head.out_features == 2
    assert train(*command, "--set", *SHORT, *OPTIONS, "model.pretrained=false") == 2
    assert "already holds a run. Resume it with --resume" in capsys.readouterr().err


def test_a_run_goes_on_with_resume(folder, saved, tmp_path, capsys):
    out = tmp_path / "run"
    command = ["finetune", "--data", folder, "--model", saved, "--batch-size", "8", "--out", out, "--resume", "--json"]
    values = ["schedule.epochs=1", "schedule.warmup_epochs=0", "data.workers=0"]
    assert train(*command, "--set", *values, "run.steps=1") == 0
    first = json.loads(capsys.readouterr().out)
    assert [line["step"] for line in first["history"]] == [1]
    assert train(*command, "--set", *values, "run.steps=1", "optimizer.lr=0.1") == 2
    assert "different values of optimizer.lr" in capsys.readouterr().err


def test_distil_then_probe_as_the_paper_does(folder, saved, tmp_path, capsys):
    out = tmp_path / "distilled"
    command = ["distill-all", "--data", folder, "--model", "vit_tiny_patch16_224", "--teacher", saved, "--out", out]
    pruned = ["reduction.blocks=1", "reduction.keep_rate=0.5", "objective.teacher_options={}"]
    assert train(*command, "--batch-size", 8, "--set", *SHORT, *OPTIONS, *pruned) == 0
    student = fv.load(out / "model")
    assert student.foveate.plan.counts == (16, 9, 9)
    probe = ["linear-probe", "--data", folder, "--model", out / "model", "--batch-size", 8, "--out", tmp_path / "probe"]
    assert train(*probe, "--set", *SHORT) == 0
    probed = fv.load(tmp_path / "probe" / "model")
    assert torch.equal(probed.blocks[0].attn.qkv.weight, student.blocks[0].attn.qkv.weight)
    assert probed.foveate.plan.counts == (16, 9, 9)  # it came reduced, and stays so
    assert probed.head.out_features == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nothing"], "nothing"),
        (["finetune", "--model", "vit_tiny_patch16_224"], "No training data given"),
        (["finetune", "--set", "optimizer.lr"], "section.name=value"),
        (["finetune", "--set", "optimzer.lr=1"], "Did you mean optimizer?"),
        (["finetune", "--epochs", "many"], "schedule.epochs takes a whole number; got 'many'"),
    ],
)
def test_wrong_input_is_one_clear_line(arguments, words, capsys, tmp_path):
    assert train(*arguments, "--out", tmp_path / "out") == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_evaluation_side_by_side(folder, saved, capsys):
    command = ["eval", str(saved), "--data", str(folder), "--workers", "0", "--batch-size", "3", "--json"]
    assert main([*command, "--method", "topk", "--keep-rate", "0.5", "--blocks", "0"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["images"], found["broken"], len(found["rows"])) == (10, 0, 2)
    whole, reduced = found["rows"]
    assert (whole["model"], whole["agreement"], whole["top5"]) == ("unreduced", 100, 100)
    assert reduced["macs"] < whole["macs"] == fv.cost(fv.load(saved)).macs
    assert top1_by_hand(fv.load(saved), folder) == whole["top1"]
    assert whole["images_per_second"] > 0


def top1_by_hand(model, folder):
    from foveate.data.preprocessing import Preprocessing, open_image

    transform = Preprocessing.of(model).evaluation()
    hits = []
    for label, name in enumerate(("bright", "dark")):
        for path in sorted((folder / "val" / name).iterdir()):
            hits.append(model(transform(open_image(path)).unsqueeze(0)).argmax().item() == label)
    return 100 * sum(hits) / len(hits)


def test_classes_are_those_of_the_model_not_of_the_folder(folder, saved, tmp_path, capsys):
    """A folder that holds the second class alone must not call it the first."""
    part = tmp_path / "part"
    shutil.copytree(folder / "val" / "dark", part / "val" / "dark")
    command = ["eval", str(saved), "--data", str(part), "--workers", "0", "--json"]
    assert main(command) == 2
    assert "Name the model's classes, in its order: --classes FILE" in capsys.readouterr().err
    names = tmp_path / "names.txt"
    names.write_text("bright\ndark\n")
    assert main([*command, "--classes", str(names)]) == 0
    found = json.loads(capsys.readouterr().out)["rows"][0]["top1"]
    (saved / "classes.json").write_text(json.dumps(["bright", "dark"]))
    assert main(command) == 0
    assert json.loads(capsys.readouterr().out)["rows"][0]["top1"] == found
    (saved / "classes.json").write_text(json.dumps(["dark", "bright"]))
    assert main(command) == 0
    assert json.loads(capsys.readouterr().out)["rows"][0]["top1"] == pytest.approx(100 - found)
    (saved / "classes.json").unlink()


def test_a_run_keeps_the_names_of_its_classes(folder, saved, tmp_path):
    command = ["finetune", "--data", folder, "--model", saved, "--batch-size", "8", "--out", tmp_path / "run"]
    assert train(*command, "--set", *SHORT) == 0
    assert json.loads((tmp_path / "run" / "model" / "classes.json").read_text()) == ["bright", "dark"]
    assert main(["eval", str(tmp_path / "run" / "best"), "--data", str(folder), "--workers", "0"]) == 0


def test_evaluation_prints_a_table_and_needs_classes(folder, saved, tmp_path, capsys):
    assert main(["eval", str(saved), "--data", str(folder), "--workers", "0", "--limit", "4", "--batch-size", "3"]) == 0
    said = capsys.readouterr().out
    assert "4 images" in " ".join(said.split())
    assert "agreement %" in said
    headless = fv.save(timm.create_model("vit_tiny_patch16_224", **SMALL, num_classes=0), tmp_path / "headless")
    assert main(["eval", str(headless), "--data", str(folder)]) == 2
    assert "does not predict classes" in capsys.readouterr().err
    assert main(["eval", str(saved), "--data", str(folder), "--split", "nowhere"]) == 2
    assert "nowhere" in capsys.readouterr().err


def test_weights_come_from_a_file(saved, tmp_path, capsys):
    from safetensors.torch import save_file

    options = SMALL | {"num_classes": 2}
    model = timm.create_model("vit_tiny_patch16_224", **options)
    save_file(model.state_dict(), tmp_path / "w.safetensors")
    torch.save({"model": model.state_dict()}, tmp_path / "w.pth")
    from foveate.models.by_name import load_model

    for name in ("w.safetensors", "w.pth"):
        loaded = load_model("vit_tiny_patch16_224", weights=tmp_path / name, options=options)
        assert torch.equal(loaded.head.weight, model.head.weight)
    other = load_model("vit_tiny_patch16_224", weights=tmp_path / "w.pth", options=options | {"num_classes": 3})
    assert torch.equal(other.norm.weight, model.norm.weight)
    assert other.head.out_features == 3
    larger = load_model("vit_tiny_patch16_224", weights=tmp_path / "w.pth", options=options | {"img_size": 64})
    assert larger.pos_embed.shape[1] == 65
    assert main(["cost", "vit_tiny_patch16_224", "--weights", str(tmp_path / "w.pth")]) == 2
    assert "do not fit this VisionTransformer" in capsys.readouterr().err
    (tmp_path / "bad.pth").write_bytes(b"cos\nsystem\n(S'true'\ntR.")  # a pickle that would run a command
    with pytest.raises(ValueError, match="cannot be read as plain weights"):
        load_model("vit_tiny_patch16_224", weights=tmp_path / "bad.pth", options=options)
    with pytest.raises(ValueError, match="There is no weights file"):
        load_model("vit_tiny_patch16_224", weights=tmp_path / "none.pth", options=options)


def test_evaluation_on_no_such_device_is_refused_in_words(folder, saved, capsys):
    assert main(["eval", str(saved), "--data", str(folder), "--device", "nowhere"]) == 2
    assert "Device 'nowhere' is not available" in capsys.readouterr().err


def test_evaluation_allows_as_many_broken_images_as_is_said(folder, saved, tmp_path, capsys):
    shutil.copytree(folder, tmp_path / "some")
    next((tmp_path / "some" / "val" / "dark").iterdir()).write_bytes(b"no picture")
    command = ["eval", str(saved), "--data", str(tmp_path / "some"), "--workers", "0"]
    assert main([*command, "--max-broken", "0"]) == 2
    refused = capsys.readouterr().err.splitlines()
    assert refused[0].startswith("foveate: warning: ")
    assert "cannot be read" in refused[0]
    assert "max_broken" in refused[-1]
    assert main([*command, "--max-broken", "0.2"]) == 0
    assert "1 broken" in " ".join(capsys.readouterr().out.split())
