"""``foveate recipes``: the list, a file as it is written, and the document."""

import json

import pytest

from foveate.cli import output
from foveate.cli import recipes as command
from foveate.training.config import TrainConfig, override, read_config
from foveate.training.recipe import FOLDER, all_recipes, find_recipe, read_recipe
from foveate.training.recipe_sources import DEFAULT, sourced_values
from foveate_cli import recipes as words
from foveate_cli.main import main


@pytest.mark.parametrize("width", [40, 80, 200])
def test_the_list_has_names_descriptions_and_sources_at_any_width(capsys, monkeypatch, width):
    monkeypatch.setattr(output, "console", lambda: output.PipeAwareConsole(width=width))
    assert main(["recipes"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= min(width, command.WIDEST_TEXT)
    assert [line for line in lines if line and not line.startswith(" ")] == list(all_recipes())
    text = " ".join(" ".join(lines).split())
    for recipe in all_recipes().values():
        assert f"{recipe.name} {recipe.config.description} Source: {recipe.config.source}" in text


@pytest.mark.parametrize("name", ["deit", "power-search"])
def test_a_recipe_is_printed_as_it_is_written(capsys, monkeypatch, name):
    monkeypatch.setattr(output, "console", lambda: output.PipeAwareConsole(width=20))  # nothing may be wrapped
    assert main(["recipes", name, "--toml"]) == 0
    assert capsys.readouterr().out == (FOLDER / f"{name}.toml").read_text()


def test_what_is_printed_can_be_a_file_of_ones_own(capsys, tmp_path):
    assert main(["recipes", "token-pooling", "--toml"]) == 0
    path = tmp_path / "mine.toml"
    path.write_text(capsys.readouterr().out.replace("epochs = 300", "epochs = 3"))
    assert main(["recipes", str(path), "--json"]) == 0
    (entry,) = json.loads(capsys.readouterr().out)
    assert entry["name"] == "mine"
    assert entry["config"]["schedule"]["epochs"] == 3
    entry["config"]["schedule"]["epochs"] = 300
    assert read_config(entry["config"]) == read_recipe("token-pooling")


def test_the_document_of_all(capsys):
    assert main(["recipes", "--json"]) == 0
    entries = json.loads(capsys.readouterr().out)
    assert [entry["name"] for entry in entries] == list(all_recipes())
    for entry in entries:
        config = read_recipe(entry["name"])
        assert (entry["description"], entry["source"]) == (config.description, config.source)
        assert read_config(entry["config"]) == config
        for key in entry:
            assert key in words.EPILOG, f"--help does not document {key}"


def test_the_document_has_what_a_model_changes(capsys):
    assert main(["recipes", "clustr-imagenet", "--json"]) == 0
    (entry,) = json.loads(capsys.readouterr().out)
    assert entry["config"]["optimizer"]["clip_norm"] == 0.0
    assert entry["variants"]["clustr_base"]["optimizer"]["clip_norm"] == 1.0
    assert entry["variants"]["clustr_base"]["model"]["name"] == "clustr_base"


@pytest.mark.parametrize(
    ("name", "message"),
    [("dit", "Did you mean deit or deit-2x?"), ("nowhere.toml", "Recipe file nowhere.toml does not exist.")],
)
def test_unknown_recipes_are_one_clear_line(capsys, name, message):
    assert main(["recipes", name]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert message in err


def test_a_broken_file_is_one_clear_line(capsys, tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text("[optimizer\n")
    assert main(["recipes", str(path)]) == 2
    err = capsys.readouterr().err
    assert f"{path} is not valid TOML" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("name", list(all_recipes()))
def test_every_value_has_a_source_and_a_key_that_set_takes(name):
    recipe = find_recipe(name)
    values = sourced_values(recipe)
    assert [entry.key for entry in values] == [
        f"{section}.{key}"
        for section, table in TrainConfig().as_dict().items()
        if isinstance(table, dict)
        for key in table
    ]
    defaults = TrainConfig().as_dict()
    for entry in values:
        section, _, key = entry.key.partition(".")
        if entry.source == DEFAULT:
            assert entry.value == defaults[section][key]
    changes = [
        entry.change for entry in values if entry.value not in ("", [], {}) and not isinstance(entry.value, dict)
    ]
    assert override(recipe.config, changes) == recipe.config  # what is printed can be typed


def test_inherited_values_are_marked(capsys):
    assert main(["recipes", "evit-finetune"]) == 0
    lines = {line.split("=")[0].strip(): line for line in capsys.readouterr().out.splitlines() if "=" in line}
    assert "the corrected script's: 256 on each of 8 devices" in lines["data.batch_size"]
    assert "inherited from deit" in lines["augmentation.mixup"]
    assert lines["run.seed"].split()[-1] == "default"


def test_the_file_is_of_one_recipe(capsys):
    assert main(["recipes", "--toml"]) == 2
    assert "prints the file of one recipe" in capsys.readouterr().err
