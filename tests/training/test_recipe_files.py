"""Recipes of the user's own: inheritance, values for one model, and what is wrong with a file."""

import re

import pytest

from foveate.training.config import TrainConfig
from foveate.training.recipe import find_recipe, read_recipe


def own(tmp_path, text):
    path = tmp_path / "mine.toml"
    path.write_text(text)
    return path


def test_a_file_of_ones_own(tmp_path):
    path = own(tmp_path, 'description = "Mine."\n[optimizer]\nlr = 1\n[reduction]\nblocks = [1, 2]\n')
    for name in (path, str(path)):
        config = read_recipe(name, "test_vit")
        assert (config.description, config.source, config.model.name) == ("Mine.", "", "test_vit")
        assert (config.optimizer.lr, config.reduction.blocks) == (1.0, (1, 2))
        assert config.schedule == TrainConfig().schedule
    assert find_recipe(path).name == "mine"


def test_inheritance_replaces_values_whole_and_leaves_the_rest(tmp_path):
    config = read_recipe(own(tmp_path, 'inherits = "deit"\n[model]\noptions = { img_size = 96 }\n'))
    deit = read_recipe("deit")
    assert config.model.options == {"img_size": 96}
    assert config.model.name == deit.model.name
    assert (config.optimizer, config.augmentation) == (deit.optimizer, deit.augmentation)
    assert (config.source, config.description) == ("", "")  # it is another experiment now


def test_variants_are_inherited_and_added_to(tmp_path):
    text = 'inherits = "clustr-imagenet"\n[for.clustr_base.schedule]\nepochs = 7\n[for.x.schedule]\nepochs = 8\n'
    path = own(tmp_path, text)
    base = read_recipe(path, "clustr_base")
    assert (base.schedule.epochs, base.schedule.warmup_epochs) == (7, 5.0)
    assert (base.optimizer.clip_norm, base.model.options) == (1.0, {"drop_path_rate": 0.3})
    assert (read_recipe(path, "x").schedule.epochs, read_recipe(path).schedule.epochs) == (8, 300)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("[optimizer\nlr = 1", ["is not valid TOML", "line 1"]),
        ("[optimizer]\nlr = 1\nlr = 2", ["is not valid TOML"]),
        ("[optimzer]\nlr = 1", ["'optimzer'", "Did you mean optimizer?"]),
        ("[optimizer]\nweight_decai = 1", ["optimizer", "'weight_decai'", "Did you mean weight_decay?"]),
        ('[optimizer]\nlr = "fast"', ["optimizer.lr takes a number; got 'fast'"]),
        ("optimizer = 3", ["optimizer must be a section of values, got 3"]),
        ('inherits = "diet"', ["no recipe 'diet'", "Did you mean deit", "mine.toml inherits it"]),
        ("inherits = 3", ["inherits must be the name of a recipe, got 3"]),
        ('inherits = "deit-2x"', ["'deit-2x', which inherits 'deit' itself"]),
        ("for = 3", ["`for` needs a model and a section", "got 3"]),
        ("[for]\nx = 3", ["`for` needs a model and a section"]),
        ("[for.x.optimizer]\nlrr = 1", ["for.x: optimizer", "'lrr'", "Did you mean lr?"]),
    ],
)
def test_what_is_wrong_with_a_file_is_said_with_its_path_and_key(tmp_path, text, parts):
    path = own(tmp_path, text)
    with pytest.raises(ValueError, match=re.escape(str(path))) as error:
        read_recipe(path)
    for part in parts:
        assert part in str(error.value)


def test_a_file_that_is_not_text(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match="is not valid TOML"):
        read_recipe(path)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "dit",
            r"There is no recipe 'dit'\. Did you mean deit or deit-2x\? For your own recipe, pass the path",
        ),
        ("zzz", r"There is no recipe 'zzz'\. Known: .*clustr-imagenet, .*deit, "),
        ("nowhere/mine.toml", r"Recipe file nowhere/mine\.toml does not exist\."),
    ],
)
def test_unknown_names(name, message):
    with pytest.raises(ValueError, match=message):
        read_recipe(name)
