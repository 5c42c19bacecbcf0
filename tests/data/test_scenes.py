"""The built-in scenes: drawn from (seed, split, index) alone, with the object where the mask says."""

import pickle
from itertools import pairwise

import numpy as np
import pytest
import torch
from PIL import Image

from foveate.data import DataError, Loader, open_data
from foveate.data.scenes import KINDS, SMALLEST, Scenes, scene
from foveate.data.scenes.kinds import RADII
from foveate.data.scenes.painting import BACKGROUNDS, TEXTURES, Canvas, coverage
from foveate.data.scenes.shapes import SHAPES, polyline

MANY = 200
# (index, split, seed): mean of each color, spread of all, pixels on the object
PINNED = {
    (0, "train", 0): ((50.692, 107.852, 26.97), 49.896, 296),
    (17, "train", 3): ((76.744, 93.688, 50.561), 49.922, 746),
    (1999, "val", 0): ((59.518, 59.906, 72.143), 36.448, 461),
}


def pixels(picture):
    return np.asarray(picture.image if hasattr(picture, "image") else picture, dtype=np.float32)


@pytest.fixture(scope="module")
def many():
    return [scene(i) for i in range(MANY)]


def as_tensor(image):
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)


# -- the same picture everywhere


def test_a_scene_is_what_it_was_when_the_weights_were_trained():
    """Statistics rather than bytes: the last bit of a cosine may differ between machines."""
    found = [scene(i, split=split, seed=seed) for i, split, seed in PINNED]
    for picture, (mean, spread, area) in zip(found, PINNED.values(), strict=True):
        assert pixels(picture).mean(axis=(0, 1)) == pytest.approx(mean, abs=0.05)
        assert pixels(picture).std() == pytest.approx(spread, abs=0.05)
        assert picture.mask.sum() == pytest.approx(area, abs=2)


def test_neither_order_nor_company_matters():
    forwards = [scene(i) for i in (3, 4, 5)]
    np.random.seed(0)
    backwards = [scene(i) for i in (5, 4, 3)][::-1]
    for one, other in zip(forwards, backwards, strict=True):
        assert np.array_equal(pixels(one), pixels(other))
        assert np.array_equal(one.mask, other.mask)


def test_drawing_leaves_the_callers_random_numbers_alone():
    np.random.seed(5)
    expected = np.random.random()
    np.random.seed(5)
    scene(0)
    assert np.random.random() == expected


def test_seed_split_and_index_each_give_another_picture():
    pictures = [scene(20), scene(30), scene(20, split="val"), scene(20, seed=1)]
    assert len({p.label for p in pictures}) == 1
    for i, one in enumerate(pictures):
        for other in pictures[:i]:
            assert np.abs(pixels(one) - pixels(other)).mean() > 5


def test_training_and_validation_share_no_picture(many):
    training = {p.image.tobytes() for p in many}
    validation = {scene(i, split="val").image.tobytes() for i in range(MANY)}
    assert len(training) == len(validation) == MANY
    assert not training & validation


def test_another_resolution_shows_the_same_scene():
    for index in range(10):
        small, large = scene(index, size=64), scene(index, size=192)
        assert large.image.size == (192, 192)
        assert large.mask.shape == (192, 192)
        shrunk = large.image.resize((64, 64), Image.Resampling.BOX)
        assert np.abs(pixels(small) - pixels(shrunk)).mean() < 8
        assert small.mask.mean() == pytest.approx(large.mask.mean(), abs=0.01)


# -- what is on it


def test_labels_are_uniform_and_their_order_is_alphabetical():
    data = open_data("scenes:count=1000", "train")
    assert np.bincount(data.labels).tolist() == [100] * 10
    assert data.classes == KINDS == tuple(sorted(KINDS))
    assert len(KINDS) == 10


def test_every_object_is_whole_and_of_the_promised_size(many):
    least, most = (2 * radius for radius in RADII)
    for picture in many:
        rows, columns = (np.flatnonzero(picture.mask.any(axis=axis)) for axis in (1, 0))
        assert len(rows)
        height, width = (np.ptp(side) + 1 for side in (rows, columns))
        assert 0.5 * least < max(height, width) / 96 <= most + 2 / 96
        assert 0.01 < picture.mask.mean() < np.pi * RADII[1] ** 2


def test_every_place_is_used(many):
    centers = np.array([np.argwhere(picture.mask).mean(axis=0) for picture in many]) / 96
    assert (centers.min(axis=0) < 0.25).all()
    assert (centers.max(axis=0) > 0.75).all()
    assert centers.mean(axis=0) == pytest.approx([0.5, 0.5], abs=0.05)


def test_the_mask_is_where_it_is_light(many):
    """Objects are lighter than what is behind them: 0.6 and more of the way to white, against 0.4 and less."""
    for picture in many:
        lightness = pixels(picture).mean(axis=-1) / 255
        # not all: a pixel or two at the notch of a heart are half dark, thinner than the mask can say
        assert np.quantile(lightness[within(picture.mask)], 0.02) > 0.54
        assert lightness[~picture.mask].mean() < 0.45


def within(mask):
    """The mask without its outermost pixels, whose colors are mixed with those around them."""
    around = [np.roll(mask, (down, right), (0, 1)) for down in (-1, 0, 1) for right in (-1, 0, 1)]
    return np.logical_and.reduce(around)


def test_color_does_not_tell_the_kind(many):
    """The nearest mean color of an object guesses its kind hardly better than chance, which is 0.1."""
    colors = np.array([pixels(p)[p.mask].mean(axis=0) for p in many])
    labels = np.array([p.label for p in many])
    half = MANY // 2
    means = np.array([colors[:half][labels[:half] == kind].mean(axis=0) for kind in range(10)])
    guessed = np.abs(colors[half:, None] - means).sum(axis=-1).argmin(axis=1)
    assert (guessed == labels[half:]).mean() < 0.3


def test_backgrounds_are_cluttered(many):
    """Beside the object there are edges: neighboring pixels that differ by more than grain does."""
    edges = []
    for picture in many:
        steps = np.abs(np.diff(pixels(picture).mean(axis=-1), axis=1))
        edges.append((steps[~picture.mask[:, 1:]] > 25).mean())
    assert np.mean(edges) > 0.02


# -- the kinds


def grid(size=201):
    axis = np.linspace(-1.2, 1.2, size, dtype=np.float32)
    return np.meshgrid(axis, axis)


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_fits_into_the_unit_circle(kind):
    x, y = grid()
    inside = SHAPES[kind](x, y) < 0
    assert 0.15 < inside.mean() * 2.4**2 / np.pi < 0.9
    assert np.hypot(x, y)[inside].max() <= 1.0
    assert np.hypot(x, y)[inside].max() > 0.85


@pytest.mark.parametrize("kind", KINDS)
def test_distances_grow_evenly_across_an_outline(kind):
    """Which is what makes edges smooth: one step to the side changes the distance by one step at most."""
    x, y = grid()
    distance = SHAPES[kind](x, y)
    slopes = np.abs(np.stack([np.diff(distance, axis=0)[:, 1:], np.diff(distance, axis=1)[1:]])) / (2.4 / 200)
    near = np.abs(distance[1:, 1:]) < 0.05
    assert slopes.max() <= 1.001
    assert np.median(np.hypot(*slopes)[near]) == pytest.approx(1.0, abs=0.02)


def test_no_kind_can_be_turned_into_another():
    """The best overlap of two kinds over all turns and sizes stays below what one has with itself."""
    x, y = grid(81)
    fixed = {kind: SHAPES[kind](x, y) < 0 for kind in KINDS}
    for kind in KINDS:
        for angle in np.linspace(0, 2 * np.pi, 24, endpoint=False):
            for scale in (0.8, 0.9, 1.0, 1.1):
                cos, sin = np.cos(angle) * scale, np.sin(angle) * scale
                other = SHAPES[kind](x * cos + y * sin, y * cos - x * sin) < 0
                for name, mask in fixed.items():
                    overlap = (mask & other).sum() / (mask | other).sum()
                    assert name == kind or overlap < 0.87, f"{kind} and {name}: {overlap:.2f}"


def test_the_distance_to_a_line_matches_plain_loops():
    corners = [np.array(corner) for corner in ((0.0, 0.0), (0.5, 0.2), (0.1, -0.6))]
    walk = [a + share * (b - a) for a, b in pairwise(corners) for share in np.linspace(0, 1, 200)]
    x, y = grid(9)
    found = polyline(x, y, corners)
    for place in np.ndindex(9, 9):
        nearest = min(np.linalg.norm(np.array([x[place], y[place]]) - step) for step in walk)
        assert found[place] == pytest.approx(nearest, abs=0.005)


def test_half_a_pixel_is_half_covered():
    assert coverage(np.array([-1.0, -0.25, 0.0, 0.25, 1.0]), 1.0).tolist() == [1.0, 0.75, 0.5, 0.25, 0.0]


def test_paint_on_a_part_is_on_the_whole_and_only_there():
    canvas = Canvas.empty(32)
    rows, columns = canvas.near(0.25, 0.75, 0.1)
    part = canvas.window(rows, columns)
    part.paint(np.ones(part.pixels.shape[:2]), np.array([1.0, 0.5, 0.0]))
    assert canvas.pixels[24, 8].tolist() == [1.0, 0.5, 0.0]
    assert canvas.pixels.any(axis=-1).sum() == part.pixels[..., 0].size < 120


def test_backgrounds_and_textures_have_names_of_their_own():
    assert len(set(BACKGROUNDS)) == len(BACKGROUNDS) >= 4
    assert len(set(TEXTURES)) == len(TEXTURES) >= 5


# -- as a source of data


def test_scenes_are_opened_like_other_data():
    data = open_data("scenes:count=30,size=48,seed=7", "val")
    assert (len(data), data.split, data.num_classes, data.labeled) == (30, "val", 10, True)
    sample = data.read(13)
    assert (sample.image.size, sample.image.mode, sample.target) == ((48, 48), "RGB", 3)
    assert np.array_equal(pixels(sample), pixels(scene(13, split="val", size=48, seed=7)))
    assert np.array_equal(data.pictures.mask(13), scene(13, split="val", size=48, seed=7).mask)
    assert len(set(map(data.pictures.name, range(30)))) == 30


@pytest.mark.parametrize(("split", "count"), [("train", 30_000), ("val", 2_000), ("validation", 2_000)])
def test_a_split_has_its_own_count(split, count):
    assert len(open_data("scenes:", split)) == count


def test_classes_of_another_order_number_the_labels():
    order = tuple(reversed(KINDS))
    data = open_data("scenes:count=10", "val", classes=order)
    assert [data.read(i).target for i in range(3)] == [9, 8, 7]


def test_workers_change_nothing():
    data = pickle.loads(pickle.dumps(Scenes("train", 40, 32))).as_data()
    batches = [list(Loader(data, as_tensor, 10, seed=0, train=True, workers=workers).epoch(0)) for workers in (0, 2)]
    for alone, shared in zip(*batches, strict=True):
        assert torch.equal(alone.images, shared.images)
        assert alone.names == shared.names


@pytest.mark.parametrize(
    ("spec", "split", "words"),
    [
        ("scenes:size=31", "val", f"at least {SMALLEST}, got 31"),
        ("scenes:count=0", "val", "at least 1, got 0"),
        ("scenes:count=-5", "val", "at least 1, got -5"),
        ("scenes:seed=-1", "val", "at least 0, got -1"),
        ("scenes:color=3", "val", "no option 'color'. Write scenes:count=500"),
        ("scenes:96", "val", "no option '96'"),
        ("scenes:size=big", "val", "size takes a whole number; got 'big'"),
        ("scenes:size=96,size=97", "val", "sets an option twice"),
        ("scenes:", "test", "no split 'test'; it has train, val"),
        ("scenes:", "all", "no split 'all'"),
        ("scenes:count=5", "train", "no image of 5 of its 10 classes"),
    ],
)
def test_bad_input(spec, split, words):
    with pytest.raises(DataError) as error:
        open_data(spec, split)
    assert words in str(error.value)


def test_bad_numbers_from_python():
    with pytest.raises(DataError, match="no split 'tests'"):
        scene(0, split="tests")
    with pytest.raises(DataError, match="index=-1"):
        scene(-1)
    with pytest.raises(DataError, match="at least 32, got 8"):
        scene(0, size=8)
    with pytest.raises(IndexError, match="3 scenes, got index 3"):
        Scenes("val", 3).open(3)


def test_options_of_other_data_are_refused():
    with pytest.raises(DataError, match="does not take root"):
        open_data("scenes:", "train", root="somewhere")
