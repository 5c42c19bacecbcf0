"""Everything local is checked before a model is built or downloaded: whoever calls the builder here fails the test."""

import pytest
import torch
from PIL import Image

import foveate as fv
from foveate.models import by_name, demo
from foveate.report.compare import run
from foveate.training.checkpoint import Checkpoint, write_checkpoint
from foveate_cli.main import main
from small_runs import make_images, small_config
from zoo import make

MODEL = "deit_small_patch16_224"  # with --pretrained it would be downloaded


@pytest.fixture(autouse=True)
def nothing_is_built(monkeypatch):
    def build(*given, **named):
        pytest.fail("a model was built or downloaded")

    monkeypatch.setattr(by_name, "_find", build)
    monkeypatch.setattr(demo, "demo_model", build)


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """Files that the commands below name; their results, if any, go to ``out``."""
    root = tmp_path_factory.mktemp("places")
    make_images(root / "photos")
    Image.new("RGB", (32, 32)).save(root / "photo.png")
    (root / "file").write_text("something")
    (root / "damaged.safetensors").write_bytes(b"no weights")
    (root / "bad.json").write_text("[1, 2]")
    (root / "empty").mkdir()
    return root


REFUSED = {
    "cost {model} --pretrained --method nothing --remove 3": "There is no method 'nothing'",
    "cost {model} --pretrained --method tome --schedule {root}/nowhere.json": "nowhere.json",
    "cost {model} --pretrained --weights {root}/nowhere.pt": "There is no weights file",
    "cost {model} --pretrained --weights {root}/damaged.safetensors": "is not a readable safetensors file",
    "speed {model} --pretrained": "speed needs --method",
    "speed {model} --pretrained --method tome --remove 3 --device toaster": "Device 'toaster' is not available",
    "speed {model} --pretrained --method tome --remove 3 --weights {root}/file": "cannot be read as plain weights",
    "eval {model} --pretrained --data {root}/nowhere": "does not exist",
    "eval {model} --pretrained --data {root}/photos --split nonsense": "nonsense",
    "eval {model} --pretrained --data {root}/empty": "has no split 'val'",
    "eval {model} --pretrained --data {root}/photos --classes {root}/nowhere.txt": "There is no file of class names",
    "eval {model} --pretrained --data {root}/photos --classes {root}/bad.json": "does not hold a list of class names",
    "eval {model} --pretrained --data {root}/photos --root {root}": "does not take root",
    "eval {model} --pretrained --data {root}/photos --task nonsense": "There is no task 'nonsense'",
    "eval {model} --pretrained --data {root}/photos --device toaster": "Device 'toaster' is not available",
    "eval {model} --pretrained --data torchvision:CIFAR10": "needs root",
    "compare {model} --pretrained --data {root}/nowhere": "does not exist",
    "compare {model} --pretrained --data {root}/empty": "has no images",
    "compare {model} --pretrained --data {root}/photos --split nonsense": "nonsense",
    "compare {model} --pretrained --data {root}/photos --classes {root}/nowhere.txt": "There is no file of class names",
    "compare {model} --pretrained --data {root}/photos --checkpoint {root}/empty": "has no foveate.json",
    "compare {model} --pretrained --data {root}/photos --device toaster": "Device 'toaster' is not available",
    "compare {model} --pretrained --data {root}/photos --methods nothing": "There is no method 'nothing'",
    "compare {model} --pretrained --data {root}/photos --budgets 2": "above 0 and below 1",
    "compare {model} --pretrained --data {root}/photos --out {root}/file": "Cannot write to the folder",
    "compare {model} --weights {root}/nowhere.pt --data {root}/photos": "There is no weights file",
    "compare --out {root}/file": "Cannot write to the folder",
    "compare --data {root}/photos": "Data were given without a model",
    "show tokens {model} {root}/nowhere.png --pretrained": "There is no image",
    "show tokens {model} {root}/file --pretrained": "cannot be read as an image",
    "show tokens {model} {root}/photo.png --pretrained --out {root}/nowhere/x.png": "does not exist",
    "show tokens {model} {root}/photo.png --pretrained --out {root}/x.abc": "not in an image format",
    "show nonsense {model} {root}/photo.png --pretrained": "There is no picture 'nonsense'",
    "show tokens {model} {root}/photo.png --pretrained --method nothing --remove 3": "There is no method 'nothing'",
}
TRAINING = "train deit --model {model} --pretrained --data {root}/photos "
REFUSED |= {
    TRAINING + changes: words
    for changes, words in {
        "--data {root}/nowhere": "does not exist",
        "--out {root}/file": "is a file, not a directory",
        "--out {root}/file/run": "Cannot write to the folder",
        "--weights {root}/nowhere.pt": "there is no weights file",
        "--batch-size 7": "Mixup needs an even number",
        "--set optimizer.accumulate=3": "is not divisible by 3",
        "--set optimizer.name=adamv": "Did you mean adam",
        "--set augmentation.repeats=1000000000": "FOVEATE_REPEATS",
        "--set optimizer.precision=fp16": "does not work on a CPU",
        "--set schedule.warmup_epochs=4000": "below the",
        "--set reduction.method=nothing": "There is no method 'nothing'",
        "--set reduction.method=tome reduction.schedule={root}/nowhere.json": "nowhere.json",
        "--set reduction.keep_rate=0.5": "reduction has values but no method",
        "--set data.classes={root}/nowhere.txt": "There is no file of class names",
        "--set data.task=nonsense": "There is no task 'nonsense'",
    }.items()
} | {
    "train distill-all --model {model} --data {root}/photos --set objective.teacher=": "needs a teacher",
    "train distill-all --model {model} --data {root}/photos --set objective.teacher_weights={root}/nowhere.pt":
        "objective.teacher_weights: there is no weights file",
    "train nonsense --model {model} --data {root}/photos": "nonsense",
    TRAINING + "--set model.name=": "No model given",
}  # fmt: skip


@pytest.mark.parametrize("line", REFUSED)
def test_what_is_local_is_checked_before_a_model_is_built(capsys, monkeypatch, tmp_path, places, line):
    monkeypatch.chdir(tmp_path)  # where runs and reports would be written
    command = [word.format(model=MODEL, root=places) for word in line.split()]
    code = main(command)
    out, err = capsys.readouterr()
    assert (code, out) == (2, "")
    assert REFUSED[line] in err
    assert list(tmp_path.iterdir()) == []


def test_a_resumed_run_with_other_values_is_refused_before_its_model_is_built(tmp_path, places):
    config = small_config(places / "photos")
    write_checkpoint(tmp_path, Checkpoint({"objective": {"x": torch.zeros(1)}}, {"config": config.as_dict()}))
    with pytest.raises(ValueError, match=r"a run with different values of optimizer\.lr"):
        fv.train(config, out=tmp_path, overrides={"optimizer.lr": 0.5}, resume=True)


def test_in_python_a_function_that_loads_the_model_is_called_last(tmp_path, places):
    def load():
        pytest.fail("a model was built or downloaded")

    photos = str(places / "photos")
    for given, words in (
        ({"data": "/nowhere"}, "does not exist"),
        ({"data": photos, "store": places / "file"}, "Cannot write to the folder"),
        ({"data": photos, "checkpoints": tmp_path}, "has no foveate.json"),
        ({"data": photos, "workers": -1}, "workers must be"),
        ({"data": None}, "needs images"),
    ):
        with pytest.raises(ValueError, match=words):
            fv.compare(load, task="classification", **given)


def test_in_python_a_model_that_is_ready_is_taken_once_the_rest_is_checked(monkeypatch, places):
    monkeypatch.setattr(run, "prepared", lambda *given: pytest.fail("the model was taken"))
    with pytest.raises(ValueError, match="Cannot write to the folder"):
        fv.compare(make("timm-cls"), torch.zeros(1, 3, 8, 8), store=places / "file")
