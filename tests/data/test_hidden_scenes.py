"""Scenes with one object among other shapes: the label is the kind of that object."""

import numpy as np
import pytest

from foveate.data import DataError, open_data
from foveate.data.scenes import hidden
from foveate.data.scenes.draws import Draws
from foveate.data.scenes.hidden import CELLS, KINDS, OTHERS, RADII, hidden_scene
from foveate.data.scenes.objects import DISTRACTORS
from foveate.data.scenes.shapes import SHAPES


def test_a_scene_depends_on_its_number_alone():
    one, again = hidden_scene(7, split="val"), hidden_scene(7, split="val")
    assert np.array_equal(np.asarray(one.image), np.asarray(again.image))
    other = hidden_scene(7, split="train")
    assert not np.array_equal(np.asarray(one.image), np.asarray(other.image))


@pytest.mark.parametrize(("split", "others"), [("val", {OTHERS}), ("train", set(range(OTHERS + 1)))])
def test_one_object_tells_the_label_among_other_shapes(monkeypatch, split, others):
    painted = []
    paint = hidden._paint

    def watched(draws, canvas, shape, cell):
        painted[-1].append((shape, cell))
        return paint(draws, canvas, shape, cell)

    monkeypatch.setattr(hidden, "_paint", watched)
    for index in range(40):
        painted.append([])
        found = hidden_scene(index, split=split, size=64)
        shapes, cells = zip(*painted[-1], strict=True)
        assert found.label == index % 10
        assert shapes[0] is SHAPES[KINDS[found.label]]
        assert all(shape in DISTRACTORS for shape in shapes[1:])
        assert len(set(cells)) == len(cells)  # one shape in a cell
    assert {len(one) - 1 for one in painted} == others


def test_the_mask_shows_the_object_only():
    found = hidden_scene(3, size=160)  # a disc, whose area is known
    radii = 0.9 * np.array(RADII) * 160
    assert np.pi * radii[0] ** 2 * 0.95 < found.mask.sum() < np.pi * radii[1] ** 2 * 1.05


def test_shapes_stay_inside_their_cells():
    assert 2 * RADII[1] <= 1 / CELLS


def test_a_random_order_has_every_number_once():
    assert sorted(Draws(1, 2).order(10)) == list(range(10))


def test_they_are_data_like_any_other():
    data = open_data("scenes:hidden,count=20,size=64", "val")
    assert len(data) == 20
    assert tuple(data.classes) == KINDS
    assert data.pictures.open(3).size == (64, 64)
    assert data.pictures.mask(3).any()
    with pytest.raises(DataError, match="at least 64"):
        open_data("scenes:hidden,size=32", "val")
    with pytest.raises(DataError, match="count from 0"):
        hidden_scene(-1)
