"""What a comparison refuses, and in which words."""

import numpy as np
import pytest
import torch

import foveate as fv
from comparing import QUICK, write_picture
from foveate.data import DataError
from foveate.report.compare import compare
from zoo import images, make

pytestmark = pytest.mark.usefixtures("no_clock_and_no_gallery")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"budgets": (1.0,)}, "above 0 and below 1, got 1.0"),
        ({"budgets": (0.0,)}, "above 0 and below 1, got 0.0"),
        ({"budgets": (65,)}, "For 65 % write 0.65"),
        ({"budgets": ()}, "Pass at least one, e.g. 0.65"),
        ({"methods": ("tom",)}, "There is no method 'tom'. Did you mean ToMe"),
        ({"methods": ("qqq",)}, "Known: .*EViT, "),
        ({"methods": ("tome:speed=9",)}, "ToMe has no option 'speed'"),
        ({"methods": ("dynamicvit",)}, "pass that folder as a checkpoint"),
        ({"methods": ("free-slice",)}, "does not work on a pretrained model without training"),
        ({"batch_size": 0}, "batch_size must be an integer"),
        ({"limit": 0}, "limit must be an integer"),
        ({"seconds": 0}, "seconds must be above 0"),
        ({"device": "toaster"}, "Device 'toaster' is not available"),
        ({"checkpoints": ("/nowhere",)}, "has no foveate.json"),
    ],
)
def test_wrong_options_are_refused_in_words(changes, words):
    with pytest.raises(ValueError, match=words):
        compare(make("timm-cls"), images(2), **(QUICK | changes))


@pytest.mark.parametrize(
    ("data", "error", "words"),
    [
        (None, ValueError, "needs images"),
        (7, TypeError, "got int"),
        (torch.zeros(3, 8, 8), ValueError, "shape \\(3, 8, 8\\)"),
        (["picture"], ValueError, "got str"),
        ([], ValueError, "has no images"),
        ("/nowhere", DataError, "does not exist"),
    ],
)
def test_data_that_are_none_are_refused(data, error, words):
    with pytest.raises(error, match=words):
        compare(make("timm-cls"), data, **QUICK)


def test_a_folder_without_images_is_refused(tmp_path):
    with pytest.raises(DataError, match="has no images"):
        compare(make("timm-cls"), tmp_path, **QUICK)


def test_what_is_wrong_with_a_split_is_said_and_not_that_there_is_no_other(tmp_path):
    write_picture(tmp_path / "train" / "a" / "0.png", 0)
    (tmp_path / "val").mkdir()
    with pytest.raises(DataError, match="has no images"):
        compare(make("timm-cls"), tmp_path, **QUICK)
    for number in range(3):
        write_picture(tmp_path / "val" / "a" / f"{number}.png", number)
    found = compare(make("timm-cls"), tmp_path, **QUICK, classes=[f"kind{i}" for i in range(7)])
    assert found.data["note"].endswith("val has other classes than expected: it adds a.")


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"methods": fv.ToMe}, TypeError, r"got <class .*ToMe'>\. Write ToMe\(\)"),
        ({"methods": [fv.ToMe]}, TypeError, r"Write ToMe\(\)"),
        ({"budgets": ["0.5"]}, ValueError, "above 0 and below 1, got '0.5'"),
        ({"checkpoints": "/nowhere"}, ValueError, "/nowhere has no foveate.json"),
    ],
)
def test_values_of_another_kind_are_refused_in_words(changes, error, words):
    with pytest.raises(error, match=words):
        compare(make("timm-cls"), images(2), **(QUICK | changes))


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        (torch.eye(2, 7), r"shape \(2,\), one for each image; got shape \(2, 7\). .*labels.argmax\(dim=1\)"),
        ([[1, 0], [1, 0]], r"got shape \(2, 2\). Turn one-hot labels .* into indices"),
        (torch.zeros(2, 1, dtype=torch.long), r"got shape \(2, 1\)"),
        (torch.zeros(2, 7, 1, dtype=torch.long), r"got shape \(2, 7, 1\)\.$"),
        (torch.zeros(5, dtype=torch.long), "There are 5 labels for a batch of 2 images"),
        ([0], "There are 1 labels for a batch of 2 images"),
        (0, r"got shape \(\)"),
        (torch.tensor([0.9, 1.1]), r"must be integers, .*; got torch.float32. .*labels.long\(\)"),
        ([0.0, 1.0], "got torch.float32"),
        (torch.tensor([True, False]), "got torch.bool"),
        (torch.tensor([0, -5]), "at least 0, or -1 for unknown ones; got -5"),
        (["cat", "dog"], r"must be integers, one for each image; got \['cat', 'dog'\]"),
        ([None, 1], "must be integers, one for each image"),
        ([2**70, 1], "must be integers, one for each image"),
    ],
    ids=str,
)
def test_labels_that_are_not_one_integer_each_are_refused(labels, words):
    with pytest.raises((ValueError, TypeError), match=words):
        compare(make("timm-cls"), [(images(2), labels)], **QUICK)


@pytest.mark.parametrize("kind", [torch.tensor, list, np.array])
def test_integer_labels_of_any_container_are_taken(kind):
    found = compare(make("timm-cls"), [(images(2), kind([1, -1]))], **QUICK)
    assert found.entries[0].top1 in (0.0, 100.0)  # of the one image whose label is known


def test_a_single_method_and_a_single_budget_need_no_list():
    found = compare(make("timm-cls"), images(2), **(QUICK | {"methods": "tome", "budgets": 0.7}))
    assert [entry.title for entry in found.entries[2:]] == ["ToMe at 0.7"]


def test_a_model_over_unit_queries_and_keys_is_refused():
    model = fv.reduce_(make("timm-cls"), fv.PoWER(), fv.Keep({}), unit_qk="learned")
    with pytest.raises(ValueError, match="trained with unit_qk"):
        compare(model, images(2), **QUICK)


def test_models_that_cannot_be_compared_are_refused():
    with pytest.raises(fv.UnsupportedModel, match="does not support"):
        compare(torch.nn.Sequential(torch.nn.Linear(2, 2)), images(2), **QUICK)
    with pytest.raises(ValueError, match="gives no vector for an image"):
        compare(make("timm-tokens"), images(2), **QUICK)


def test_a_model_that_answers_nonsense_is_refused():
    model = make("timm-cls")
    model.head.bias.data[0] = float("nan")
    with pytest.raises(ValueError, match="Unreduced: the model's outputs are NaN or infinite"):
        compare(model, images(2), **QUICK)


def test_images_without_a_model_are_refused(folder):
    with pytest.raises(ValueError, match="Data were given without a model"):
        compare(None, str(folder))


def test_a_corrupt_image_is_left_out_and_counted(tmp_path):
    for number in range(8):
        write_picture(tmp_path / f"{number}.png", number)
    (tmp_path / "bad.png").write_bytes(b"no picture")
    with (
        pytest.raises(DataError, match=r"1 broken images of 9 are more than max_broken=0 "),
        pytest.warns(UserWarning, match="bad.png"),
    ):
        compare(make("timm-cls"), tmp_path, **QUICK, max_broken=0)
    with pytest.warns(UserWarning, match=r"bad.png cannot be read and is left out"):
        found = compare(make("timm-cls"), tmp_path, **QUICK, max_broken=0.2)
    assert (found.data["images"], found.data["broken"]) == (8, 1)


def test_all_stands_for_every_training_free_method_and_for_itself_alone():
    from foveate.report.compare.candidates import default_methods, read_methods

    assert [method.name for method in read_methods("all")] == default_methods() == [m.name for m in read_methods(None)]
    with pytest.raises(ValueError, match="'all' stands for every training-free method"):
        read_methods(["all", "ToMe"])
