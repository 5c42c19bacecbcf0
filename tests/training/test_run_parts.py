"""What a run is built of, and what it refuses or notes on the way."""

import json
import shutil
from contextlib import nullcontext

import pytest
import timm
import torch

import foveate as fv
from foveate.data import DataError, open_data
from foveate.training import build
from foveate.training.config import override
from foveate.training.loop import Run
from small_runs import LATE, SMALL, small_config

PREDICTED = ("reduction.method=dynamicvit", "reduction.keep_rate=0.5", "reduction.blocks=1")


def test_a_model_that_knows_more_classes_keeps_its_classifier(images_folder, tmp_path):
    model = timm.create_model("vit_tiny_patch16_224", **SMALL, num_classes=5)
    start = fv.save(model, tmp_path / "start")
    names = tmp_path / "names.txt"
    names.write_text("cat\ndark\nbus\nbright\ntree\n")
    told = (f"model.name={start}", "model.options={}", f"data.classes={names}", "run.steps=1")
    run = Run(small_config(images_folder, *told), tmp_path / "run")
    assert torch.equal(run.objective.model.head.weight, model.head.weight)
    assert set(torch.cat([batch.targets for batch in run.train_loader.epoch(0)]).tolist()) == {1, 3}
    run.train()
    assert json.loads((tmp_path / "run" / "model" / "classes.json").read_text()) == names.read_text().split()


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("none.txt", None, "There is no file of class names .*none.txt"),
        ("broken.json", "[1", "is not valid JSON"),
        ("other.json", '{"cat": 1}', "does not hold a list of class names"),
        ("wrong.txt", "cat\ndog\n", "bright"),
    ],
)
def test_wrong_files_of_class_names_are_refused(images_folder, tmp_path, name, text, words):
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(DataError, match=words):
        Run(small_config(images_folder, f"data.classes={tmp_path / name}"), tmp_path / "run")


def test_a_recipe_asks_for_every_part_of_a_reduction():
    asked = ("method=tome", "keep_rate=0.6", "blocks=1", "exact_last_block=true", "unit_qk=learned")
    section = small_config("data", *(f"reduction.{value}" for value in asked)).reduction
    assert build.reduction_from(section) == fv.Reduction(fv.ToMe(), fv.KeepRate(0.6, (1,)), True, "learned")
    section = small_config("data", "reduction.method=none", "reduction.unit_qk=fixed").reduction
    assert build.reduction_from(section) == fv.Reduction(unit_qk="fixed")


def test_a_warm_up_means_nothing_where_no_token_goes(images_folder, tmp_path):
    told = ("reduction.method=none", "reduction.keep_rate=0.5", *LATE, "run.steps=1")
    assert Run(small_config(images_folder, *told), tmp_path).train().finished


def test_half_precision_does_not_excuse_weights_that_are_none(images_folder, tmp_path):
    run = Run(small_config(images_folder, "optimizer.ema=0"), tmp_path)
    run.config = override(run.config, ["optimizer.precision=fp16"])
    run.objective.model.head.weight.data.fill_(float("nan"))
    with pytest.raises(RuntimeError, match="Weights became NaN or infinite"):
        run.save()


@pytest.mark.parametrize(
    ("told", "words"),
    [
        (("objective.self_kl=1",), "objective.self_kl would use its untrained predictions as targets"),
        (("objective.kind=dynamicvit", *PREDICTED), "objective.kl_weight would use"),
    ],
)
def test_a_new_classifier_is_no_teacher(images_folder, tmp_path, told, words):
    start = fv.save(timm.create_model("vit_tiny_patch16_224", **SMALL, num_classes=5), tmp_path / "five")
    known = fv.save(timm.create_model("vit_tiny_patch16_224", **SMALL, num_classes=2), tmp_path / "two")
    with pytest.raises(ValueError, match=words):
        Run(small_config(images_folder, f"model.name={start}", "model.options={}", *told), tmp_path / "run")
    Run(small_config(images_folder, f"model.name={known}", "model.options={}", *told), tmp_path / "run")


@pytest.mark.parametrize(
    ("kind", "labels", "new"),
    [("ForImageClassification", 5, True), ("Model", 2, True), ("ForImageClassification", 2, False)],
)
def test_a_new_classifier_of_a_transformers_model_is_no_teacher(images_folder, tmp_path, kind, labels, new):
    """A checkpoint of other classes, and one without any, get a new one; one of just as many keeps its own."""
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2, "image_size": 32, "patch_size": 8}
    config = transformers.ViTConfig(**sizes, intermediate_size=64, num_labels=labels)
    getattr(transformers, f"ViT{kind}")(config).save_pretrained(tmp_path / "start")
    told = (f"model.name=hf:{tmp_path / 'start'}", "model.options={}", "model.pretrained=true", "run.steps=1")
    assert Run(small_config(images_folder, *told), tmp_path / "plain").train().finished
    with pytest.raises(ValueError, match="untrained predictions") if new else nullcontext():
        Run(small_config(images_folder, *told, "objective.self_kl=1"), tmp_path / "run")


def test_a_validation_split_without_labels_is_said_before_training(images_folder, tmp_path):
    unlabeled = open_data(images_folder / "val" / "dark", "all")
    assert not unlabeled.labeled
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "_validation_data", lambda *given: unlabeled)
        with pytest.raises(DataError, match="has no labels in 'val'"):
            Run(small_config(images_folder), tmp_path / "run")


def test_broken_images_are_counted_over_a_resume(images_folder, tmp_path):
    photos = tmp_path / "photos"
    shutil.copytree(images_folder, photos)
    (photos / "train" / "dark" / "00.png").write_bytes(b"no picture")
    told = ("data.max_broken=0.1", "optimizer.ema=0")
    with pytest.warns(UserWarning, match=r"00.png"):
        Run(small_config(photos, *told, "run.steps=3"), tmp_path / "run").train()
    run = Run(small_config(photos, *told), tmp_path / "run")
    assert run.resume()
    assert run.state.broken == [str(photos / "train" / "dark" / "00.png")]
    with pytest.warns(UserWarning, match=r"00.png"):
        assert run.train().history[-1]["broken"] == 1
