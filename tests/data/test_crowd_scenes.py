"""Scenes with nine objects: the label is the kind that most of them are."""

from collections import Counter

import numpy as np
import pytest

from foveate.data import DataError, open_data
from foveate.data.scenes import crowd
from foveate.data.scenes.crowd import CELLS, GROUPS, KINDS, RADII, crowd_scene
from foveate.data.scenes.draws import Draws


def test_a_scene_depends_on_its_number_alone():
    one, again = crowd_scene(7, split="val"), crowd_scene(7, split="val")
    assert np.array_equal(np.asarray(one.image), np.asarray(again.image))
    other = crowd_scene(7, split="train")
    assert not np.array_equal(np.asarray(one.image), np.asarray(other.image))


def test_labels_come_in_turn_and_are_the_most_frequent_kind(monkeypatch):
    painted = []
    paint = crowd._paint

    def watched(draws, canvas, kind, cell):
        painted[-1].append((kind, cell))
        return paint(draws, canvas, kind, cell)

    monkeypatch.setattr(crowd, "_paint", watched)
    for index in range(40):
        painted.append([])
        found = crowd_scene(index)
        kinds = Counter(kind for kind, _ in painted[-1])
        (first, most), (_, second) = kinds.most_common(2)
        assert found.label == first == index % 10
        assert most > second
        assert len(painted[-1]) == 9
        assert len({cell for _, cell in painted[-1]}) == 9  # one object in a cell


def test_the_mask_shows_the_objects_of_the_label_only():
    found = crowd_scene(3, size=160)  # discs, whose area is known
    radii = 0.9 * np.array(RADII) * 160
    counts = [group[0] for group in GROUPS]
    assert min(counts) * np.pi * radii[0] ** 2 * 0.95 < found.mask.sum() < max(counts) * np.pi * radii[1] ** 2 * 1.05


def test_objects_stay_inside_their_cells():
    assert 2 * RADII[1] <= 1 / CELLS


def test_a_random_order_has_every_number_once():
    assert sorted(Draws(1, 2).order(10)) == list(range(10))


def test_they_are_data_like_any_other():
    data = open_data("scenes:crowd,count=20,size=64", "val")
    assert len(data) == 20
    assert tuple(data.classes) == KINDS
    assert data.pictures.open(3).size == (64, 64)
    assert data.pictures.mask(3).any()
    with pytest.raises(DataError, match="at least 64"):
        open_data("scenes:crowd,size=32", "val")
    with pytest.raises(DataError, match="count from 0"):
        crowd_scene(-1)
