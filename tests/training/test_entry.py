"""``fv.train``: a recipe by name, by path or as a configuration; and the names that values had before."""

import logging

import pytest
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import foveate as fv
from foveate.training import Outcome, TrainConfig
from foveate.training.checkpoint import CURRENT
from foveate.training.config import override, read_config, set_values
from foveate.training.entry import configured
from foveate.training.recipe import find_recipe
from small_runs import SMALL, small_config

SHORT = {"schedule.epochs": 1, "schedule.warmup_epochs": 0, "data.workers": 0, "data.batch_size": 8, "run.steps": 2}


def test_a_recipe_is_run_by_its_name(images_folder, tmp_path, caplog):
    caplog.set_level(logging.INFO, logger="foveate")
    seen = []
    outcome = fv.train(
        "finetune",
        model="vit_tiny_patch16_224",
        data=images_folder,
        out=tmp_path / "run",
        overrides={**SHORT, "model.options": SMALL, "model.pretrained": False},
        progress=lambda phase, done, total, note="": seen.append((phase, done, total)),
    )
    assert isinstance(outcome, Outcome)
    assert (outcome.finished, outcome.directory) == (True, tmp_path / "run")
    assert [call for call in seen if call[0] == "steps"] == [("steps", 1, 2), ("steps", 2, 2)]
    assert ("evaluation", 10, 10) in seen
    assert fv.load(tmp_path / "run" / "model").head.out_features == 2
    assert len(caplog.records) >= 2
    assert {record.name for record in caplog.records} == {"foveate"}
    assert "Training on" in caplog.text
    assert "epoch 0: loss" in caplog.text
    with pytest.raises(ValueError, match=r"already holds a run.*resume=True"):
        fv.train("finetune", out=tmp_path / "run")


def test_a_configuration_is_run_and_resumed(images_folder, tmp_path):
    config = small_config(images_folder, "optimizer.ema=0")
    first = fv.train(config, out=tmp_path, overrides=["run.steps=2"])
    rest = fv.train(config, out=tmp_path, overrides={"run.steps": 4}, resume=True)
    assert [line["step"] for line in first.history] == [2]
    assert [line["step"] for line in rest.history] == [3, 4]


def test_values_win_over_the_recipe_and_models_have_their_own():
    config = configured("clustr-imagenet", model="clustr_base", overrides={"schedule.epochs": 3})
    assert config == override(find_recipe("clustr-imagenet").config_for("clustr_base"), ["schedule.epochs=3"])
    named = configured("clustr-imagenet", overrides=["model.name=clustr_base"])
    assert named == find_recipe("clustr-imagenet").config_for("clustr_base")
    with pytest.raises(TypeError, match="model must be a name or a path"):
        configured("finetune", model=object())


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"lr": 1}, "Name a value as section.name"),
        ({"optimizer.lr": "fast"}, "optimizer.lr takes a number; got 'fast'"),
        ({"optimizer.rate": 1.0}, "no value in optimizer called 'rate'"),
    ],
)
def test_wrong_values_are_refused(values, words):
    with pytest.raises(ValueError, match=words):
        set_values(TrainConfig(), values)


def test_old_names_are_read_with_a_warning(tmp_path):
    data = {"optimiser": {"lr": 0.5}, "augmentation": {"colour_jitter": 0.3}}
    with pytest.warns(FutureWarning) as warned:
        config = read_config(data)
    assert (config.optimizer.lr, config.augmentation.color_jitter) == (0.5, 0.3)
    said = [str(warning.message) for warning in warned]
    assert any("optimiser was renamed to optimizer" in text for text in said)
    assert any("augmentation.colour_jitter was renamed to augmentation.color_jitter" in text for text in said)
    with pytest.warns(FutureWarning, match=r"optimiser\.lr was renamed to optimizer\.lr"):
        assert override(TrainConfig(), ["optimiser.lr=0.5"]).optimizer.lr == 0.5
    recipe = tmp_path / "mine.toml"
    recipe.write_text("[optimiser]\nlr = 0.5\n[for.some_vit.optimiser]\nlr = 0.25\n")
    with pytest.warns(FutureWarning, match="renamed to optimizer"):
        found = find_recipe(recipe)
    assert (found.config.optimizer.lr, found.config_for("some_vit").optimizer.lr) == (0.5, 0.25)


def test_a_run_of_an_older_version_cannot_be_resumed(images_folder, tmp_path):
    config = small_config(images_folder, "run.steps=1", "optimizer.ema=0", "data.val=")
    fv.train(config, out=tmp_path)
    with safe_open(tmp_path / CURRENT, "pt") as file:
        header = file.metadata()
    save_file(load_file(tmp_path / CURRENT), tmp_path / CURRENT, {**header, "format": "foveate-checkpoint-1"})
    with pytest.raises(ValueError, match=r"written by an earlier foveate and such runs cannot be resumed"):
        fv.train(config, out=tmp_path, resume=True)
