"""Scenes to count in: as many warm objects as the label says, each in a cell of its own, and the mask on them."""

import numpy as np
import pytest

from foveate.data import DataError, open_data
from foveate.data.scenes import COUNTS, NUMBERS, CountingScenes, counting_scene, scene
from foveate.data.scenes.counting import CELLS, COOL

LARGE = 192
MANY = 60
PINNED = {  # (index, split): mean red, green and blue, pixels of the mask
    (0, "train"): (34.47, 39.1, 48.4, 27),
    (29_999, "train"): (86.24, 85.3, 74.51, 699),
    (7, "val"): (60.37, 50.44, 24.06, 244),
}


@pytest.fixture(scope="module")
def many():
    return [counting_scene(index, size=LARGE) for index in range(MANY)]


def pixels(picture):
    return np.asarray(picture.image, dtype=np.float32)


def cells(mask):
    """How many pixels of a mask lie in each cell of the grid."""
    return mask.reshape(CELLS, LARGE // CELLS, CELLS, LARGE // CELLS).sum(axis=(1, 3))


def test_a_scene_is_what_it_was_when_the_weights_were_trained():
    """Statistics rather than bytes: the last bit of a cosine may differ between machines."""
    for (index, split), (*colors, area) in PINNED.items():
        found = counting_scene(index, split=split)
        assert pixels(found).mean(axis=(0, 1)) == pytest.approx(colors, abs=0.05)
        assert found.mask.sum() == pytest.approx(area, abs=2)


def test_the_label_is_the_number_of_objects_in_the_mask(many):
    for picture in many:
        assert (cells(picture.mask) > 0).sum() == int(NUMBERS[picture.label])


def test_labels_take_turns():
    data = open_data("scenes:counting,count=45", "val")
    assert data.labels.tolist() == [index % len(NUMBERS) for index in range(45)]
    assert data.classes == NUMBERS
    assert [counting_scene(index, split="val").label for index in (0, 19, 20)] == [0, 19, 0]


def test_what_the_mask_covers_is_warm(many):
    for picture in many:
        red, _, blue = pixels(picture)[picture.mask].mean(axis=0)
        assert red > 2 * blue


def test_cool_objects_lie_in_other_cells_and_are_not_counted(monkeypatch):
    """Without clutter and with a black background, every bright cell is an object."""
    for name in ("background", "clutter", "grain"):
        monkeypatch.setattr(f"foveate.data.scenes.counting.{name}", lambda draws, canvas: None)
    for index in range(40):
        picture = counting_scene(index, size=LARGE)
        bright = pixels(picture).max(axis=2) > 60
        objects = (cells(bright) > 0).sum()
        assert COOL[0] <= objects - int(NUMBERS[picture.label]) <= COOL[1]
        cool = pixels(picture)[bright & ~picture.mask & (pixels(picture)[..., 2] > 130)]
        assert (cool[:, 2] > cool[:, 0]).all()


def test_another_resolution_shows_the_same_scene():
    small, large = (counting_scene(11, size=size) for size in (96, 288))
    assert small.label == large.label
    assert small.mask.mean() == pytest.approx(large.mask.mean(), rel=0.15)
    assert np.abs(pixels(large).reshape(96, 3, 96, 3, 3).mean(axis=(1, 3)) - pixels(small)).mean() < 6


def test_scenes_differ_by_number_split_and_seed_and_from_those_with_one_object():
    pictures = [
        counting_scene(0),
        counting_scene(20),
        counting_scene(0, split="val"),
        counting_scene(0, seed=1),
        scene(0),
    ]
    assert len({picture.image.tobytes() for picture in pictures}) == len(pictures)


def test_a_mask_comes_with_every_scene_of_the_data():
    data = open_data("scenes:counting", "val")
    assert len(data) == COUNTS["val"]
    assert np.array_equal(data.pictures.mask(5), counting_scene(5, split="val").mask)
    assert data.read(5).name == "scenes:counting,size=96,seed=0/val[5]"


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("scenes:counting,size=64", "scenes:counting size, the side in pixels, must be at least 96, got 64"),
        ("scenes:counting,kinds=3", "has no option 'kinds'"),
        ("scenes:counting,count=0", "count must be at least 1"),
    ],
)
def test_options_that_cannot_be_drawn_are_named(text, match):
    with pytest.raises(DataError, match=match):
        open_data(text, "val")


def test_a_number_below_zero_is_refused():
    with pytest.raises(DataError, match="count from 0"):
        counting_scene(-1)
    with pytest.raises(IndexError, match="There are 3 scenes"):
        CountingScenes("val", 3).scene(3)
