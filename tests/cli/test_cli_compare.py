"""``foveate compare``: what it prints and writes, and how it refuses; never how fast anything is."""

import csv
import json

import numpy as np
import pytest
import timm
import torch
import transformers
from PIL import Image
from safetensors.torch import save_file

import foveate as fv
from foveate.cli import compare as command
from foveate.files import check_writable
from foveate.report.compare import load_results, maps, run, saving
from foveate.report.compare.timing import Speed
from foveate_cli import compare as words
from foveate_cli.main import main
from small_runs import SMALL, make_images

MODEL = "test_vit"
QUICK = ("--seconds", "0.001", "--methods", "tome", "topk", "--budgets", "0.7", "--batch-size", "5")
FILES = ["index.html", "results.csv", "results.json"]


@pytest.fixture(autouse=True)
def alone(monkeypatch, request):
    """The command by itself: the page and its token maps have tests of their own."""
    monkeypatch.setattr(maps, "_gallery", lambda *given: None)
    if "real_speed" not in request.fixturenames:
        monkeypatch.setattr(run, "measure_candidate", lambda *given: Speed(100.0, 1.5, (1.4, 1.6), 0.9, 1.0, 6))
    monkeypatch.setattr(saving, "render_page", lambda comparison: f"<p>{comparison.recommendation.sentence}</p>")


@pytest.fixture
def real_speed():
    """Measure indeed."""


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Ten pictures of two classes to validate on."""
    return make_images(tmp_path_factory.mktemp("photos"))


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A small model of two classes that brings its weights."""
    torch.manual_seed(0)
    model = timm.create_model("vit_tiny_patch16_224", num_classes=2, **SMALL)
    return str(fv.save(model, tmp_path_factory.mktemp("saved") / "vit"))


def contents(folder):
    return sorted(path.name for path in folder.iterdir())


def wrong(capsys, tmp_path, *argv):
    """The one line of an error; nothing may have been written."""
    out = tmp_path / "report"
    code = main(["compare", *argv, "--out", str(out)])
    printed, err = capsys.readouterr()
    assert (code, printed, out.exists()) == (2, "", False), err
    line = err.splitlines()[-1]
    assert line.startswith("foveate: ")
    return line


def test_a_run_prints_a_table_a_decision_and_where_the_report_is(capsys, tmp_path, saved, photos, real_speed):
    out = tmp_path / "new" / "report"
    assert main(["compare", saved, "--data", str(photos), *QUICK, "--out", str(out)]) == 0
    printed, err = capsys.readouterr()
    assert err == ""
    printed = " ".join(printed.split())  # titles wrap
    for text in ("Unreduced", "Exact last block", "ToMe at 0.7", "TopK at 0.7", "top-1 %", "10 images", "batch 5"):
        assert text in printed
    assert printed.endswith(f"Report: {out / 'index.html'}")
    assert contents(out) == FILES
    stored = load_results(out)
    assert stored.recommendation.sentence in printed
    assert (out / "index.html").read_text() == f"<p>{stored.recommendation.sentence}</p>"
    assert stored.model["name"] == saved
    assert stored.data["labeled"]
    with (out / "results.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [float(row["agreement"]) for row in rows] == [e.agreement for e in stored.entries]
    assert stored.model["weights"] == f"the folder {saved}"


def test_an_earlier_report_is_not_lost(capsys, tmp_path, saved, photos, monkeypatch):
    monkeypatch.setattr(command, "requested_model", lambda args: pytest.fail("it began to work"))
    line = ["compare", saved, "--data", str(photos), *QUICK, "--out", str(tmp_path)]
    (tmp_path / "results.json").write_text("{}")
    assert main(line) == 2
    assert f"{tmp_path} has a report already. --overwrite replaces it" in capsys.readouterr().err
    (tmp_path / "partial.json").write_text("{}")
    assert main(line) == 2
    assert "--resume continues it" in capsys.readouterr().err
    for allowed in ("--overwrite", "--resume"):
        with pytest.raises(pytest.fail.Exception, match="it began to work"):
            main([*line, allowed])


def test_json_is_the_stored_document(capsys, tmp_path, saved, photos):
    assert main(["compare", saved, "--data", str(photos), *QUICK, "--out", str(tmp_path), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads((tmp_path / "results.json").read_text())
    for key in (*printed, *printed["recommendation"]):
        assert key in words.EPILOG, f"--help does not document {key}"


def test_weights_that_nobody_trained_are_not_judged(capsys, tmp_path, photos):
    line = ["compare", MODEL, "--data", str(photos), *QUICK, "--limit", "2", "--image-size", "96"]
    line += ["--out", str(tmp_path)]
    assert main(line) == 2
    printed, err = capsys.readouterr()
    assert "parameters that nobody trained" in err
    assert "--pretrained or --weights" in err
    assert not printed
    assert not list(tmp_path.iterdir())
    assert main([*line, "--untrained"]) == 0
    printed, err = capsys.readouterr()
    assert "weights are random" in printed
    assert "of decisions unchanged" not in printed
    assert json.loads((tmp_path / "results.json").read_text())["recommendation"]["entry"] is None
    assert "has 2 named classes, but the model predicts 1000" in printed


def test_classes_can_be_named(capsys, tmp_path, saved, photos):
    names = tmp_path / "names.txt"
    names.write_text("dark\nbright\n")  # the other way round than folders sort
    accuracies = []
    for extra in ((), ("--classes", str(names))):
        main(
            [
                "compare",
                saved,
                "--data",
                str(photos),
                *QUICK,
                "--out",
                str(tmp_path / "r"),
                "--json",
                "--overwrite",
                *extra,
            ]
        )
        accuracies.append(json.loads(capsys.readouterr().out)["entries"][0]["top1"])
    assert sum(accuracies) == 100  # of two classes, either one or the other is right
    assert "There are 3 class names" in _three_names(capsys, tmp_path, saved, photos)


def _three_names(capsys, tmp_path, saved, photos):
    (tmp_path / "names.txt").write_text("a\nb\nc\n")
    return wrong(capsys, tmp_path, saved, "--data", str(photos), "--classes", str(tmp_path / "names.txt"))


def test_a_reduced_model_is_compared_as_it_was_saved(capsys, tmp_path, photos):
    model = timm.create_model("vit_tiny_patch16_224", num_classes=2, **SMALL)
    folder = fv.save(fv.reduce_(model, fv.EViT(), fv.Keep({1: 9})), tmp_path / "evit")
    code = main(["compare", str(folder), "--data", str(photos), *QUICK, "--out", str(tmp_path / "r"), "--json"])
    assert code == 0
    last = json.loads(capsys.readouterr().out)["entries"][-1]
    assert (last["label"], last["counts"]) == ("EViT, as given", [16, 9, 9])


def test_weights_come_from_a_file_and_checkpoints_from_folders(capsys, tmp_path, saved, photos):
    options = []
    for place, removed in (("a", 3), ("b", 5)):  # every run has a folder of the same name
        fv.save(fv.reduce_(fv.load(saved), fv.ToMe(), fv.RemovePerBlock(removed)), tmp_path / place / "best")
        options += ["--checkpoint", str(tmp_path / place / "best")]
    assert (
        main(["compare", saved, "--data", str(photos), *QUICK, *options, "--out", str(tmp_path / "r"), "--json"]) == 0
    )
    entries = json.loads(capsys.readouterr().out)["entries"]
    assert [entry["label"] for entry in entries[-2:]] == ["ToMe, a/best", "ToMe, b/best"]
    assert entries[-1]["kl"] != entries[-2]["kl"]
    assert "fv.load(" in entries[-1]["python"]
    model = timm.create_model("test_vit")
    save_file(model.state_dict(), tmp_path / "weights.safetensors")
    given = ("--weights", str(tmp_path / "weights.safetensors"), "--limit", "2", "--out", str(tmp_path / "r2"))
    assert main(["compare", MODEL, "--data", str(photos), *QUICK, *given]) == 0
    assert "random" not in capsys.readouterr().err
    assert load_results(tmp_path / "r2").model["weights"] == "the file weights.safetensors"


def test_ctrl_c_writes_what_is_measured_and_resume_goes_on(capsys, tmp_path, saved, photos, monkeypatch):
    real, calls = run.measure_candidate, []

    def second_time(*given):
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return real(*given)

    monkeypatch.setattr(run, "measure_candidate", second_time)
    argv = ["compare", saved, "--data", str(photos), *QUICK, "--out", str(tmp_path)]
    assert main(argv) == 130
    assert "The run was interrupted" in capsys.readouterr().out
    assert contents(tmp_path) == sorted([*FILES, "partial.json"])
    first = load_results(tmp_path)
    assert [entry.speed_up is None for entry in first.entries] == [False, False, True, True]
    assert main([*argv, "--resume", "--batch-size", "3"]) == 2
    assert "batch_size was 5, now 3" in capsys.readouterr().err
    assert main([*argv, "--resume"]) == 0
    assert contents(tmp_path) == FILES
    rest = load_results(tmp_path)
    assert rest.complete
    assert rest.entries[1].speed_up == first.entries[1].speed_up
    assert len(calls) == 4  # one, the interrupted one, and the two that were left


def test_an_old_interrupted_run_is_begun_anew_aloud(capsys, tmp_path, saved, photos):
    (tmp_path / "partial.json").write_text("{}")
    assert main(["compare", saved, "--data", str(photos), *QUICK, "--out", str(tmp_path)]) == 0
    assert "will be replaced. Use --resume to continue that run" in capsys.readouterr().err
    assert contents(tmp_path) == FILES


ERRORS = {
    ("MODEL",): "compare needs images of the kind the model was trained on",
    ("--pretrained",): "need a MODEL",
    ("--data", "PHOTOS"): "Data were given without a model",
    ("MODEL", "--data", "PHOTOS", "--budgets", "1.5"): "above 0 and below 1, got 1.5",
    ("MODEL", "--data", "PHOTOS", "--budgets", "65"): "For 65 % write 0.65",
    ("MODEL", "--data", "PHOTOS", "--budgets", "many"): "write a share as 0.5 or 50%",
    ("MODEL", "--data", "PHOTOS", "--budgets", "0.01"): "the smallest is 0.",
    ("MODEL", "--data", "PHOTOS", "--methods", "evitt"): "There is no method 'evitt'. Did you mean EViT",
    ("MODEL", "--data", "PHOTOS", "--methods", "dynamicvit"): "as a checkpoint",
    ("MODEL", "--data", "PHOTOS", "--checkpoint", "NOWHERE"): "has no foveate.json",
    ("MODEL", "--data", "PHOTOS", "--checkpoint", "MODEL"): "is not reduced",
    ("MODEL", "--data", "PHOTOS", "--split", "test"): "has no split 'test'",
    ("MODEL", "--data", "NOWHERE"): "does not exist",
    ("MODEL", "--data", "EMPTY"): "has no images",
    ("MODEL", "--data", "PHOTOS", "--limit", "0"): "must be a whole number of at least 1",
    ("MODEL", "--data", "PHOTOS", "--device", "toaster"): "Device 'toaster' is not available",
    ("resnet18", "--data", "PHOTOS"): "foveate does not support timm.models.resnet.ResNet",
    ("deit_smal_patch16_224", "--data", "PHOTOS"): "Did you mean deit_small_patch16_224",
}


@pytest.mark.parametrize("argv", ERRORS, ids=lambda argv: " ".join(argv))
def test_bad_input_is_one_line_and_leaves_nothing(capsys, tmp_path, saved, photos, monkeypatch, argv):
    monkeypatch.setitem(__import__("sys").modules, "foveate.models.demo", _demo())
    (tmp_path / "empty").mkdir()
    places = {"MODEL": saved, "PHOTOS": photos, "EMPTY": tmp_path / "empty", "NOWHERE": tmp_path / "nowhere"}
    assert ERRORS[argv] in wrong(capsys, tmp_path, *(str(places.get(word, word)) for word in argv))


def test_a_corrupt_image_among_few_is_too_many(capsys, tmp_path, saved):
    folder = tmp_path / "photos"
    folder.mkdir()
    for number in range(3):
        Image.fromarray(np.full((8, 8, 3), number, np.uint8)).save(folder / f"{number}.png")
    (folder / "bad.jpg").write_bytes(b"\xff\xd8 no picture")
    given = (saved, "--data", str(folder), *QUICK)
    assert main(["compare", *given, "--max-broken", "0.5", "--out", str(tmp_path / "r")]) == 0
    printed, err = capsys.readouterr()
    assert "bad.jpg cannot be read" in err
    assert "3 images, 1 broken" in " ".join(printed.split())
    for size in ("4", "1"):  # with 1, batches were measured and stored before it is met
        assert "1 broken images of 4" in wrong(capsys, tmp_path, *given, "--batch-size", size)


@pytest.mark.parametrize("place", ["file", "file/report", "missing/\0"])
def test_a_folder_that_cannot_be_written_is_refused_before_the_work(
    capsys, tmp_path, saved, photos, place, monkeypatch
):
    monkeypatch.setattr(command, "requested_model", lambda args: pytest.fail("it began to work"))
    (tmp_path / "file").touch()
    assert main(["compare", saved, "--data", str(photos), "--out", str(tmp_path / place)]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert contents(tmp_path) == ["file"]


def test_the_check_of_a_folder_leaves_no_trace(tmp_path):
    check_writable(tmp_path / "a" / "b")
    assert contents(tmp_path) == []
    (tmp_path / "kept").mkdir()
    check_writable(tmp_path / "kept")
    assert contents(tmp_path) == ["kept"]
    assert contents(tmp_path / "kept") == []


def test_a_page_that_fails_leaves_no_half_report(tmp_path, saved, photos, monkeypatch):
    def broken(comparison):
        raise ValueError("no page today")

    monkeypatch.setattr(saving, "render_page", broken)
    assert main(["compare", saved, "--data", str(photos), *QUICK, "--out", str(tmp_path)]) == 2
    assert contents(tmp_path) == ["partial.json"]  # what was measured is not lost


def _demo():
    """Stands in for the built-in model: untrained, of the classes of the scenes."""
    from types import SimpleNamespace

    from foveate.data.scenes import NUMBERS

    def demo_model():
        torch.manual_seed(0)
        return timm.create_model("vit_tiny_patch16_224", num_classes=len(NUMBERS), **SMALL).eval()

    return SimpleNamespace(demo_model=demo_model, demo_classes=lambda: NUMBERS)


def test_without_a_model_the_demonstration_runs_and_says_so(capsys, tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "foveate.models.demo", _demo())
    assert main(["compare", *QUICK, "--limit", "12", "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "it says nothing about your model" in printed
    assert "on object %" in printed
    stored = load_results(tmp_path)
    assert stored.demonstration
    assert stored.data == {
        "source": "scenes:counting", "split": "val", "images": 12, "labeled": True, "note": "", "broken": 0,
        "agreement_of": "decisions",
    }  # fmt: skip
    assert stored.model["weights"] == "built into foveate"
    assert all(0 < entry.on_object < 100 for entry in stored.entries)


def test_a_headless_checkpoint_of_transformers_is_compared_by_its_embedding(capsys, tmp_path, photos):
    config = transformers.Dinov2Config(
        hidden_size=32, num_hidden_layers=4, num_attention_heads=2, image_size=32, patch_size=8
    )
    transformers.Dinov2Model(config).save_pretrained(tmp_path / "headless")
    line = [f"hf:{tmp_path / 'headless'}", "--data", str(photos), "--split", "val"]
    assert main(["compare", *line, *QUICK, "--out", str(tmp_path / "out")]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "of nearest images unchanged (embeddings have a cosine of " in printed or "No setting is worth it" in printed
    assert "decisions" not in printed
    assert main(["eval", *line]) == 2
    assert "does not predict classes" in capsys.readouterr().err
