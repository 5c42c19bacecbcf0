"""The one rounding rule, and how models are built for counting."""

import pytest
import timm
import torch

import foveate as fv
from foveate.tables.figures import GIGA, MEGA, Figure, score, verdict
from foveate.tables.models import build_shapes, steps_of


@pytest.mark.parametrize(
    ("text", "ours", "unit", "matches"),
    [
        ("21.6", 21_550_000, MEGA, True),  # either neighbor of an exact half
        ("21.6", 21_650_000, MEGA, True),
        ("21.6", 21_549_999, MEGA, False),
        ("21.6", 21_650_001, MEGA, False),
        ("81043.8", 81_043_825_664, MEGA, True),
        ("81043.83", 81_043_825_664, MEGA, True),
        ("81043.82", 81_043_825_664, MEGA, False),
        ("304", 304_368_640, MEGA, True),
        ("2.93", 2_925_000_000, GIGA, True),
        ("2.93", 2_935_000_000, GIGA, True),
        ("2.93", 2_924_999_999, GIGA, False),
        ("2.93", 2_935_000_001, GIGA, False),
        ("1.00", 1_004_300_000, GIGA, True),
        ("1.0", 1_040_000_000, GIGA, True),
        ("1.00", 1_040_000_000, GIGA, False),
        ("1.39", 1_394_999_999, GIGA, True),
        ("1.39", 1_396_000_000, GIGA, False),
        ("0.1234567890", 123_456_789, GIGA, True),  # more digits than the unit has
        ("0.1234567891", 123_456_789, GIGA, False),
        (None, 5, GIGA, None),
        ("1.0", None, GIGA, None),
    ],
)
def test_a_figure_is_compared_to_its_own_digits(text, ours, unit, matches):
    figure = Figure(text, ours, unit)
    assert figure.matches is figure.holds is matches
    assert Figure(text, ours, unit, judged=False).holds is None
    assert figure.off_by(3) == (None if matches is None else round(ours / unit - float(text), 3))


def test_a_tolerance_replaces_the_rounding():
    assert Figure("4.4", 4_500_000_000, tolerance=0.11).matches is True
    assert Figure("4.4", 4_500_000_000).matches is False
    assert Figure("4.4", 4_599_000_000, tolerance=0.11).matches is False


def test_verdicts_and_scores():
    good, bad, empty = Figure("1.0", GIGA), Figure("2.0", GIGA), Figure(None, GIGA)
    ignored = Figure("2.0", GIGA, judged=False)
    assert verdict(good, empty, ignored) is True
    assert verdict(good, bad) is False
    assert verdict(empty, ignored) is None
    assert score([good, good, bad, empty, ignored]) == "2 of 4"


@pytest.mark.parametrize("name", ["deit_tiny_patch16_224", "hvt_tiny_1", "clustr_tiny", "lvvit_small"])
def test_shapes_are_those_of_the_real_model_on_the_meta_device(name):
    shapes, real = build_shapes(name), timm.create_model(name)
    assert {p.device.type for p in shapes.parameters()} == {"meta"}
    assert [(k, v.shape) for k, v in shapes.state_dict().items()] == [
        (k, v.shape) for k, v in real.state_dict().items()
    ]
    assert fv.cost(shapes) == fv.cost(real)
    assert torch.zeros(2).add_(1).tolist() == [1, 1]  # nothing is skipped outside


def test_steps_are_those_of_the_reduction():
    model = build_shapes("deit_tiny_patch16_224")
    assert steps_of(model) == []
    fv.reduce_(model, fv.TopK(), fv.Keep({3: 100, 5: 0}))
    assert [(step.n, step.keep) for step in steps_of(model)][2:7] == [
        (196, 196),
        (196, 100),
        (100, 100),
        (100, 0),
        (0, 0),
    ]
