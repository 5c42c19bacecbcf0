"""Recipes with other models and data than their own."""

import pytest
from PIL import Image

from foveate.data import open_data
from foveate.training.local_checks import check_start
from foveate.training.recipe import read_recipe


def test_options_of_the_papers_student_are_not_given_to_others():
    assert read_recipe("distill-all", "deit_tiny_patch16_224").model.options == {}
    assert read_recipe("distill-cls", "vit_small_patch14_dinov2").model.options["img_size"] == 224


def test_a_model_is_known_by_its_name_without_the_tag_of_its_weights():
    config = read_recipe("clustr-imagenet", "clustr_base.in1k")
    assert (config.model.name, config.optimizer.clip_norm) == ("clustr_base.in1k", 1.0)
    assert read_recipe("clustr-imagenet", "clustr_basement").optimizer.clip_norm == 0.0


def test_the_model_of_the_call_replaces_the_recipes():
    assert read_recipe("deit").model.name == "deit_small_patch16_224"
    config = read_recipe("deit", "deit_base_patch16_224")
    assert (config.model.name, config.model.options) == ("deit_base_patch16_224", {"drop_path_rate": 0.1})


def test_a_recipes_options_are_not_for_models_that_bring_their_own(tmp_path):
    for name in ("hf:some/model", str(tmp_path)):
        section = read_recipe("power-finetune", name).model
        assert (section.name, section.options) == (name, {})
        check_start(section)


@pytest.mark.parametrize("name", ["linear-probe", "finetune"])
@pytest.mark.parametrize(
    ("layout", "sizes"),
    [
        (("train/{}", "val/{}"), (2, 1)),  # Imagenette
        (("seg_train/seg_train/{}", "seg_test/seg_test/{}"), (2, 1)),  # Intel Image Classification
    ],
    ids=["imagenette", "intel"],
)
def test_published_layouts_open_as_they_are(tmp_path, name, layout, sizes):
    for place, count in zip(layout, sizes, strict=True):
        for category in ("forest", "sea"):
            folder = tmp_path / place.format(category)
            folder.mkdir(parents=True)
            for number in range(count):
                Image.new("RGB", (4, 4)).save(folder / f"{number}.png")
    (tmp_path / "seg_pred" / "seg_pred").mkdir(parents=True)  # Intel's third folder has no labels
    section = read_recipe(name).data
    train = open_data(tmp_path, section.train)
    val = open_data(tmp_path, section.val, classes=train.classes)
    assert (train.classes, len(train), len(val)) == (("forest", "sea"), 4, 2)
