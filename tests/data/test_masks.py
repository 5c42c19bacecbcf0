"""Images with masks: ordinary layouts are found, and what does not fit is named before work begins."""

import json
import pickle
import re

import numpy as np
import pytest
from PIL import Image

from foveate.data import DataError, Loader
from foveate.data.images import BrokenImage
from foveate.data.masks import IGNORED, MaskRules
from foveate.data.open_masks import open_masks
from foveate.data.preprocessing import Preprocessing
from foveate.tasks import Segmentation
from segments import CLASSES, blocks, photo, write_folder, write_pair


def test_a_folder_with_splits_above(tmp_path):
    data = open_masks(write_folder(tmp_path), "train")
    assert (len(data), data.num_classes, data.labeled) == (12, 4, True)
    sample = data.read(3)
    assert np.array_equal(sample.target, blocks(5003))
    assert sample.image.size == (56, 40)
    assert len(open_masks(tmp_path, "validation")) == 4
    assert pickle.loads(pickle.dumps(data)).read(3).name == sample.name


def test_ade20ks_layout_counts_from_one(tmp_path):
    for split, count in (("training", 3), ("validation", 2)):
        for number in range(count):
            mask = blocks(number)
            write_pair(tmp_path / "images" / split, tmp_path / "annotations" / split, f"ADE_{number}", mask)
    table = "Idx\tRatio\tTrain\tVal\tStuff\tName\n" + "".join(
        f"{i}\t0.1\t1\t1\t0\t{name}, other word\n" for i, name in enumerate(CLASSES[1:], start=1)
    )
    (tmp_path / "objectInfo150.txt").write_text(table)
    data = open_masks(tmp_path, "train", rules=MaskRules(reduce_zero_label=True))
    assert (len(data), data.split, data.classes) == (3, "training", CLASSES[1:])
    stored, read = blocks(1).astype(int), data.read(1).target
    assert np.array_equal(read, np.where(stored == 0, IGNORED, stored - 1))


def test_a_folder_without_splits_and_with_names(tmp_path):
    write_pair(tmp_path / "images", tmp_path / "labels", "a", blocks(1))
    (tmp_path / "classes.txt").write_text("\n".join(CLASSES) + "\n")
    assert open_masks(tmp_path, "all").classes == CLASSES
    (tmp_path / "classes.txt").unlink()
    (tmp_path / "classes.json").write_text(json.dumps(CLASSES))
    assert open_masks(tmp_path, "all").classes == CLASSES
    with pytest.raises(DataError, match="not divided into splits"):
        open_masks(tmp_path, "val")


def test_a_number_of_the_files_is_no_class(tmp_path):
    write_pair(tmp_path / "images", tmp_path / "trimaps", "a", blocks(2) % 3 + 1)
    rules = MaskRules(ignore=3, reduce_zero_label=True, masks="trimaps")
    data = open_masks(tmp_path, "all", rules=rules)
    expected = (blocks(2) % 3 + 1).astype(int) - 1
    assert data.num_classes == 2
    assert np.array_equal(data.read(0).target, np.where(expected == 2, IGNORED, expected))


def test_palettes_gray_as_color_and_16_bits_are_read(tmp_path):
    mask = blocks(4)
    forms = {
        "p": Image.fromarray(mask, "L").convert("P"),
        "rgb": Image.fromarray(mask).convert("RGB"),
        "wide": Image.fromarray(mask.astype(np.uint16)),
    }
    forms["p"].putdata(mask.flatten().tolist())
    for name, form in forms.items():
        write_pair(tmp_path / "images", tmp_path / "masks", name, mask)
        form.save(tmp_path / "masks" / f"{name}.png")
    data = open_masks(tmp_path, "all")
    assert all(np.array_equal(data.read(i).target, mask) for i in range(3))


def test_images_without_masks_have_no_classes(tmp_path):
    photo(blocks(1)).save(tmp_path / "a.png")
    data = open_masks(tmp_path, "all")
    assert not data.labeled
    assert (data.read(0).target == IGNORED).all()


def test_wrong_masks_are_named_counted_and_replaced(tmp_path):
    write_folder(tmp_path, (("train", 40),))
    masks = tmp_path / "train" / "masks"
    (masks / "003.png").unlink()
    Image.fromarray(blocks(9, (20, 20))).save(masks / "007.png")
    Image.fromarray(np.full((40, 56), 9, dtype=np.uint8)).save(masks / "011.png")
    Image.fromarray(np.random.default_rng(0).integers(0, 4, (40, 56, 3)).astype(np.uint8)).save(masks / "013.png")
    data = open_masks(tmp_path, "train", num_classes=4)
    reasons = {3: "003.png is missing", 7: "20 x 20 pixels, the image 56 x 40", 11: "numbers 9.* are 0..3", 13: "color"}
    for number, words in reasons.items():
        with pytest.raises(BrokenImage, match="cannot be read") as caught:
            data.read(number)
        assert re.search(words, caught.value.reason)
        assert caught.value.name.endswith(f"{number:03}.png")
    task = Segmentation.for_data(data)
    transform = task.evaluation_transform(Preprocessing(40, 56))
    loader = Loader(data, transform, 4, seed=0, train=False, rules=task, max_broken=0.2)
    with pytest.warns(UserWarning, match="cannot be read and is left out"):
        assert sum(len(batch) for batch in loader.epoch(0)) == 36
    assert loader.broken == 4
    with pytest.warns(UserWarning, match="left out"), pytest.raises(DataError, match="more than max_broken"):
        list(Loader(data, transform, 4, seed=0, train=False, rules=task).epoch(0))


def test_a_class_list_that_does_not_fit_is_refused_at_once(tmp_path):
    write_folder(tmp_path)
    with pytest.raises(DataError, match=r"do not fit their masks.*classes are 0\.\.1.*reduce_zero_label"):
        open_masks(tmp_path, "train", classes=("a", "b"))
    (tmp_path / "classes.txt").write_text("a\nb\nc")
    with pytest.raises(DataError, match="3 class names, but num_classes=4"):
        open_masks(tmp_path, "train", num_classes=4)


def renamed(folder):
    write_pair(folder / "images", folder / "masks", "a", blocks(1))
    (folder / "masks/a.png").rename(folder / "masks/a_L.png")


@pytest.mark.parametrize(
    ("prepare", "words"),
    [
        (lambda p: (p / "masks").mkdir(), "no folder of images"),
        (lambda p: (p / "images").mkdir(), "has no images"),
        (lambda p: renamed(p), "have no mask of the same name.*mask_suffix"),
    ],
)
def test_folders_that_hold_no_pairs_are_refused(tmp_path, prepare, words):
    prepare(tmp_path)
    with pytest.raises(DataError, match=words):
        open_masks(tmp_path, "all")


def test_other_sources_are_refused_in_words(tmp_path):
    with pytest.raises(DataError, match=r"does not exist\. Segmentation takes a folder"):
        open_masks(tmp_path / "none", "train")
    with pytest.raises(DataError, match="no folder of masks 'gt'"):
        open_masks(write_folder(tmp_path / "a"), "train", rules=MaskRules(masks="gt"))
    with pytest.raises(DataError, match="reduce_zero_label must be true or false"):
        MaskRules(reduce_zero_label=1)


def test_masks_with_a_suffix(tmp_path):
    renamed(tmp_path)
    assert open_masks(tmp_path, "all", rules=MaskRules(mask_suffix="_L")).labeled


def test_objects_of_scenes_have_a_background(tmp_path):
    data = open_masks("scenes:objects,count=3,size=64", "val")
    assert data.classes[0] == "background"
    assert data.num_classes == len(data.classes) == 11
    sample = data.read(1)
    assert sample.target.shape == (64, 64)
    assert set(np.unique(sample.target)) <= set(range(11))


def test_a_table_with_a_column_of_masks(tmp_path):
    datasets = pytest.importorskip("datasets")
    pairs = [(photo(blocks(i)), Image.fromarray(blocks(i))) for i in range(3)]
    features = datasets.Features({"image": datasets.Image(), "annotation": datasets.Image()})
    rows = {"image": [i for i, _ in pairs], "annotation": [m for _, m in pairs]}
    table = datasets.Dataset.from_dict(rows, features=features)
    table.save_to_disk(str(tmp_path / "t"))
    data = open_masks(f"hf:{tmp_path / 't'}", "train")
    assert np.array_equal(data.read(2).target, blocks(2))
    with pytest.raises(DataError, match="no image column 'mask'"):
        open_masks(f"hf:{tmp_path / 't'}", "train", rules=MaskRules(masks="mask"))
