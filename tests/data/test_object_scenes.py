"""``scenes:objects``: boxes, masks and keypoints say where the objects are."""

import numpy as np
import pytest

from foveate.data import DataError, open_data
from foveate.data.instances import HIDDEN, UNLABELED, VISIBLE
from foveate.data.scenes.draws import Draws
from foveate.data.scenes.objects import KEYPOINTS, KINDS, LEAST_VISIBLE, MOST, PLAN, _plan, objects_scene
from foveate.data.scenes.painting import Canvas
from foveate.tasks import Classification

SIZE = 96


@pytest.fixture(scope="module")
def many():
    return [objects_scene(i, size=SIZE) for i in range(120)]


def slow_box(mask):
    """The tight box of a mask, pixel by pixel."""
    left, top, right, bottom = SIZE, SIZE, 0, 0
    for row in range(SIZE):
        for column in range(SIZE):
            if mask[row, column]:
                left, right = min(left, column), max(right, column + 1)
                top, bottom = min(top, row), max(bottom, row + 1)
    return left, top, right, bottom


def test_a_box_is_the_tight_box_of_the_visible_mask(many):
    for picture in many[:20]:
        for box, mask in zip(picture.instances.boxes, picture.instances.masks, strict=True):
            assert tuple(box) == slow_box(mask)


def test_one_to_five_objects_of_every_kind(many):
    counts = [len(picture.instances) for picture in many]
    assert set(counts) == set(range(1, MOST + 1))
    assert {label for picture in many for label in picture.instances.labels} == set(range(len(KINDS)))


def test_masks_do_not_share_pixels_and_make_up_the_semantic_mask(many):
    for picture in many:
        found = picture.instances
        assert found.masks.sum(axis=0).max() <= 1
        expected = np.zeros((SIZE, SIZE), dtype=int)
        for row in range(0, SIZE, 7):
            for column in range(0, SIZE, 7):
                on = [label for label, mask in zip(found.labels, found.masks, strict=True) if mask[row, column]]
                expected[row, column] = 1 + on[0] if on else 0
        assert np.array_equal(picture.semantic[::7, ::7], expected[::7, ::7])


def test_objects_hide_each_other_but_never_too_much(many):
    hidden = [point[2] == HIDDEN for picture in many for points in picture.instances.keypoints for point in points]
    assert 0.05 < np.mean(hidden) < 0.5
    canvas = Canvas.empty(PLAN)
    shares = []
    for seed in range(40):
        placed = _plan(Draws(seed))
        masks = [one.coverage(canvas, PLAN) > 0.5 for one in placed]
        for number, one in enumerate(placed):
            covered = np.any([np.zeros_like(masks[0]), *masks[number + 1 :]], axis=0)
            shares += [(masks[number] & ~covered).sum() / masks[number].sum()] if one.label >= 0 else []
    assert LEAST_VISIBLE <= min(shares) < 0.6
    assert np.mean(np.array(shares) < 1) > 0.2


def test_keypoints_lie_at_the_sides_of_an_object_that_nothing_covers(many):
    seen = 0
    for picture in many:
        found = picture.instances
        for box, points in zip(found.boxes, found.keypoints, strict=True):
            if (points[:, 2] != VISIBLE).any():
                continue
            seen += 1
            left, top, right, bottom = box
            near = 0.05 * SIZE
            assert points[1, 1] == pytest.approx(top, abs=near)
            assert points[2, 0] == pytest.approx(left, abs=near)
            assert points[3, 1] == pytest.approx(bottom, abs=near)
            assert points[4, 0] == pytest.approx(right, abs=near)
    assert seen > 30


def test_a_point_outside_the_image_is_unlabeled(many):
    points = np.concatenate([picture.instances.keypoints.reshape(-1, 3) for picture in many])
    outside = points[points[:, 2] == UNLABELED]
    assert len(outside)
    assert not outside.any()
    assert KEYPOINTS.mirrored == (0, 1, 4, 3, 2)


def test_a_scene_depends_on_seed_split_and_index_alone():
    first = objects_scene(4, size=SIZE)
    objects_scene(5, size=SIZE)
    np.random.seed(3)
    again = objects_scene(4, size=SIZE)
    assert np.array_equal(np.asarray(first.image), np.asarray(again.image))
    assert np.array_equal(first.instances.keypoints, again.instances.keypoints)
    others = [
        objects_scene(4, size=SIZE, seed=1),
        objects_scene(4, size=SIZE, split="val"),
        objects_scene(3, size=SIZE),
    ]
    for other in others:
        assert np.abs(np.asarray(first.image, dtype=float) - np.asarray(other.image, dtype=float)).mean() > 5


def test_another_resolution_shows_the_same_objects():
    for index in range(10):
        small, large = objects_scene(index, size=SIZE).instances, objects_scene(index, size=3 * SIZE).instances
        assert np.array_equal(small.labels, large.labels)
        assert np.abs(3 * small.boxes - large.boxes).max() <= 4
        assert np.abs(3 * small.keypoints[..., :2] - large.keypoints[..., :2]).max() < 1e-2


def test_opened_by_name_with_the_classes_of_the_training_data():
    turned = tuple(reversed(KINDS))
    data = open_data(f"scenes:objects,count=4,size={SIZE}", "val", classes=turned)
    plain = open_data(f"scenes:objects,count=4,size={SIZE}", "val")
    assert len(data) == 4
    assert data.labeled
    for index in range(4):
        ours, theirs = data.read(index).target.labels, plain.read(index).target.labels
        assert [turned[i] for i in ours] == [KINDS[i] for i in theirs]
        assert np.array_equal(data.target(index).labels, ours)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("scenes:objects,size=32", "at least 64, got 32"),
        ("scenes:objects,count=0", "at least 1, got 0"),
        ("scenes:objects,seed=-1", "at least 0, got -1"),
        ("scenes:objects,sides=3", "no option 'sides'"),
    ],
)
def test_wrong_options_are_named(spec, words):
    with pytest.raises(DataError, match=words):
        open_data(spec, "val")


def test_other_classes_are_refused():
    with pytest.raises(DataError, match="other classes"):
        open_data("scenes:objects", "val", classes=("cat", "dog"))


def test_scenes_of_several_objects_cannot_be_classified():
    with pytest.raises(DataError, match="detection, pose or segmentation"):
        Classification.for_data(open_data("scenes:objects,count=2", "val"))
