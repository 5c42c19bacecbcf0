"""COCO's JSON: classes, masks, keypoints, and annotations that are wrong."""

import json
import os
import warnings
from pathlib import Path

import numpy as np
import pytest
from coco_files import SIZE, annotation, content, person, write_coco
from PIL import Image

from foveate.data import BrokenImage, DataError
from foveate.data.instances import tight_boxes
from foveate.data.keypoints import BODY, PARTS, PERSON, WHOLEBODY
from foveate.data.open import open_instances

ASSETS = os.environ.get("FOVEATE_ASSETS")


def opened(folder, split="train", kind="instances", **options):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return open_instances(folder, split, kind, **options)


def test_the_files_numbers_become_ours_in_their_order(tmp_path):
    data = opened(write_coco(tmp_path, content([annotation(1, category=7), annotation(2, category=3)])))
    assert data.classes == ("cat", "dog")
    assert data.category_ids == (3, 7)
    assert data.target(0).labels.tolist() == [1, 0]
    assert data.target(1).boxes.shape == (0, 4)


def test_labels_follow_the_order_of_a_models_classes(tmp_path):
    folder = write_coco(tmp_path, content([annotation(1, category=7)]))
    assert opened(folder, classes=("dog", "cat")).target(0).labels.tolist() == [0]
    with pytest.raises(DataError, match="lacks bird"):
        opened(folder, classes=("dog", "cat", "bird"))
    with pytest.raises(DataError, match="has 2 classes, but num_classes=80"):
        opened(folder, num_classes=80)


def test_masks_of_polygons_and_run_lengths(tmp_path):
    height, width = SIZE
    runs = {"size": [height, width], "counts": [5, 10, height * width - 15]}  # column by column
    rows = [annotation(1, box=(10, 20, 8, 8)), annotation(2, segmentation=runs, iscrowd=1)]
    found = opened(write_coco(tmp_path, content(rows)), with_masks=True).target(0)
    expected = np.zeros((2, height, width), dtype=bool)
    expected[0, 20:28, 10:18] = True
    expected[1, 5:15, 0] = True
    assert np.array_equal(found.masks, expected)
    assert np.array_equal(tight_boxes(found.masks)[0], found.boxes[0])
    assert found.crowd.tolist() == [False, True]


WRONG = {
    "image": annotation(9, image=5),
    "category": annotation(9, category=4),
    "box": annotation(9, box=(100, 10, 20, 20)),
    "mask": annotation(9, segmentation=[]),
}
SHAPES = {
    "box": [
        annotation(9, box=(10, 10, 0, 20)),
        annotation(9, box=(-30, 0, 20, 20)),
        annotation(9) | {"bbox": [1, 2, 3]},
        annotation(9) | {"bbox": [1, 2, 3, float("nan")]},
    ],
    "mask": [
        annotation(9, segmentation=[[1, 1, 5, 5]]),
        annotation(9, segmentation=[[1, 1, 5, 5, 9, 9]]),
        annotation(9, segmentation={"size": [10, 10], "counts": [0, 100]}),
        annotation(9, segmentation={"size": [SIZE[1], SIZE[0]], "counts": [5, 10, SIZE[0] * SIZE[1] - 15]}),
        annotation(9, segmentation={"size": list(SIZE), "counts": [SIZE[0] * SIZE[1]]}),
        annotation(9, segmentation={"size": list(SIZE), "counts": [5, 5]}),
        annotation(9, segmentation=None),
    ],
}


@pytest.mark.parametrize(("rule", "wrong"), [*WRONG.items(), *((rule, one) for rule in SHAPES for one in SHAPES[rule])])
def test_an_annotation_that_cannot_be_used_is_left_out_counted_and_named(tmp_path, rule, wrong):
    folder = write_coco(tmp_path, content([annotation(1), wrong, annotation(2)]))
    with pytest.warns(UserWarning, match=r"1 annotations .* were left out \(id 9\)"):
        data = open_instances(folder, "train", "instances", with_masks=True)
    assert data.findings.count(rule) == 1
    assert len(data.target(0)) == 2


def test_a_box_that_crosses_the_border_is_clipped(tmp_path):
    folder = write_coco(tmp_path, content([annotation(1, box=(70, -5, 20, 20))]))
    with pytest.warns(UserWarning, match="clipped"):
        data = open_instances(folder, "train", "instances")
    assert data.target(0).boxes.tolist() == [[70, 0, 80, 15]]
    assert data.findings.count("clipped") == 1


def test_a_mask_matters_only_where_masks_are_read(tmp_path):
    data = opened(write_coco(tmp_path, content([annotation(1, segmentation=[])])))
    assert len(data.target(0)) == 1
    assert data.target(0).masks is None


def test_missing_images_are_named_before_anything_is_read(tmp_path):
    folder = write_coco(tmp_path, content([annotation(1)], images=3))
    (folder / "train2017" / "2.png").unlink()
    with pytest.raises(DataError, match=r"1 of 3 images .* do not exist .*: 2\.png"):
        opened(folder)


def test_an_image_of_another_size_than_its_annotations_is_broken(tmp_path):
    folder = write_coco(tmp_path, content([annotation(1)]))
    Image.new("RGB", (20, 10)).save(folder / "train2017" / "1.png")
    with pytest.raises(BrokenImage, match="20 x 10 pixels, but its annotations are for 80 x 60"):
        opened(folder).read(0)


def test_annotations_are_for_pixels_as_they_are_stored(tmp_path):
    folder = write_coco(tmp_path, content([annotation(1)]))
    pixels = np.zeros((*SIZE, 3), dtype=np.uint8)
    pixels[:10] = 255
    exif = Image.Exif()
    exif[0x0112] = 3  # shown upside down
    Image.fromarray(pixels).save(folder / "train2017" / "1.png", exif=exif)
    assert np.array_equal(np.asarray(opened(folder).read(0).image), pixels)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "not valid JSON"),
        ("[]", "no list 'images'"),
        (json.dumps({"images": [], "annotations": [], "categories": []}), "lists no images"),
        (json.dumps(content([{"id": 1}])), "entry 0 of 'annotations' has no 'image_id'"),
        (json.dumps(content([], categories=((1, "cat"), (2, "cat")))), "2 categories, 1 of them different"),
    ],
)
def test_a_file_that_is_not_cocos_is_refused(tmp_path, text, words):
    folder = write_coco(tmp_path, content([]))
    (folder / "annotations" / "instances_train2017.json").write_text(text)
    with pytest.raises(DataError, match=words):
        opened(folder)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("nowhere", "does not exist"),
        ("scenes:", "Use scenes:objects"),
        ("nowhere.json", "There is no file"),
    ],
)
def test_other_sources_are_refused(tmp_path, monkeypatch, source, words):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match=words):
        opened(source)
    (tmp_path / "plain").mkdir()
    with pytest.raises(DataError, match="no folder 'annotations'"):
        opened("plain")


# -- keypoints


def people(rows):
    return content(rows, categories=((1, "person"),)) | {
        "categories": [{"id": 1, "name": "person", "keypoints": list(BODY), "skeleton": [[16, 14]]}]
    }


def test_keypoints_have_cocos_names_sigmas_and_mirror(tmp_path):
    rows = [person(1, [1 + i % 50 for i in range(34)] + [0] * 17)]
    folder = write_coco(tmp_path, people(rows), "person_keypoints_train2017.json")
    data = opened(folder, kind="keypoints")
    assert data.keypoints.sigmas == PERSON.sigmas
    assert data.keypoints.limbs == ((15, 13),)
    assert [data.keypoints.names[i] for i in data.keypoints.mirrored][:3] == ["nose", "right_eye", "left_eye"]
    assert data.target(0).keypoints.shape == (1, 17, 3)


def test_keypoints_outside_the_image_are_unlabeled_and_a_wrong_number_is_none(tmp_path):
    values = [30, 30, 2] * 17
    values[:3] = [500, 30, 2]
    folder = write_coco(tmp_path, people([person(1, values), person(2, [1, 2, 2])]), "person_keypoints_train2017.json")
    with pytest.warns(UserWarning, match="another number of keypoints"):
        data = open_instances(folder, "train", "keypoints")
    found = data.target(0).keypoints
    assert found[0, 0].tolist() == [0, 0, 0]
    assert found[0, 1].tolist() == [30, 30, 2]
    assert not found[1].any()
    assert data.findings.count("outside") == data.findings.count("keypoints") == 1


def test_whole_bodies_are_joined_in_order_without_parts_that_are_not_valid(tmp_path):
    counts = {"keypoints": 17, "foot_kpts": 6, "face_kpts": 68, "lefthand_kpts": 21, "righthand_kpts": 21}
    row = annotation(1, category=1) | {key: [n + 1, 5, 1] * count for n, (key, count) in enumerate(counts.items())}
    row |= {"face_valid": False}
    data = content([row], categories=((1, "person"),))
    folder = write_coco(tmp_path, data, "coco_wholebody_train_v1.0.json")
    points = opened(folder, kind="wholebody").target(0).keypoints[0]
    assert set(points[PARTS["body"], 0]) == {1}
    assert set(points[PARTS["foot"], 0]) == {2}
    assert not points[PARTS["face"]].any()
    assert set(points[PARTS["hand"], 0]) == {4, 5}


def test_every_mirror_is_its_own_inverse_and_keeps_parts():
    for names in (PERSON, WHOLEBODY):
        assert [names.mirrored[i] for i in names.mirrored] == list(range(len(names)))
    for part in PARTS.values():
        assert sorted(WHOLEBODY.mirrored[part]) == list(range(133))[part]


@pytest.mark.skipif(ASSETS is None, reason="FOVEATE_ASSETS is not set")
def test_real_photographs_open():
    folder = Path(ASSETS)
    data = opened(folder / "coco_mini", "val", with_masks=True)
    assert (len(data), data.num_classes, max(data.category_ids)) == (79, 80, 90)
    whole = opened(folder / "coco_samples" / "wholebody133.json", "all", "wholebody")
    plain = opened(folder / "coco_samples" / "keypoints17.json", "all", "keypoints")
    assert np.array_equal(whole.target(1).keypoints[:, :17], plain.target(1).keypoints)
