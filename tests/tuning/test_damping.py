"""A search also chooses how much sizes count in attention."""

import pytest
import torch

import foveate as fv
from foveate.tuning.damping import at_default, best_damped
from foveate.tuning.expenses import Seconds
from zoo import make

FEW = {"calibration": 40, "validation": 40, "trials": 2, "seconds": 0.02}


@pytest.mark.parametrize("best", [0.0, 0.45, 0.6])
@pytest.mark.parametrize("method", [fv.Ward(rounds=2), fv.ToMe(), fv.TokenPooling()])
def test_the_damping_of_smallest_distance_is_taken(method, best):
    found = best_damped(method, lambda one: abs(one.size_damping - best))
    assert found.size_damping == best
    assert at_default(found) == method


@pytest.mark.parametrize(
    "method",
    [fv.TopK(), fv.EViT(proportional_attention=True), fv.Ward(proportional_attention=False), fv.Ward(size_damping=0.1)],
)
def test_a_method_without_it_or_with_one_that_was_asked_for_stays(method):
    assert best_damped(method, lambda one: -len(str(one))) is method


def test_the_default_wins_a_tie():
    assert best_damped(fv.Ward(), lambda one: 0.0) == fv.Ward()


def test_a_search_measures_each_damping_and_goes_on_with_the_best():
    photos = torch.randn(80, 3, 24, 24, generator=torch.Generator().manual_seed(3))
    found = fv.search(make("timm-cls"), photos, macs=0.6, methods=["ToMe"], **FEW)
    measured = {one["reduction"]: one["distance"] for one in found.details["measured"]}
    counts = next(text.partition(" ")[2] for text in measured if text.startswith("ToMe:size_damping=0.15 "))
    names = ["ToMe", *(f"ToMe:size_damping={value}" for value in (0.15, 0.3, 0.45, 0.6))]
    best = min(names, key=lambda name: measured[f"{name} {counts}"])
    assert best != "ToMe"  # on this model and these images; else the next line would hold without a choice
    assert found.details["measured"][-1]["reduction"].startswith(f"{best} ")


def test_times_of_a_method_hold_for_every_damping():
    seconds = Seconds(make("timm-cls"), [fv.Ward(), fv.ToMe(size_damping=0.6)], 1, True, rounds=1)
    for default, damped in ((fv.Ward(), fv.Ward(size_damping=0.6)), (fv.ToMe(), fv.ToMe(size_damping=0.6))):
        assert seconds.of_block(default, 1, 30, 20) == seconds.of_block(damped, 1, 30, 20)
