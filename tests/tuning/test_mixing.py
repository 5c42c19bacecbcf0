"""Mixtures in a search: the best one of what was measured for each method, and only where it promises enough."""

import importlib
import itertools
import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import foveate as fv
from foveate.costs import count
from foveate.methods.options import method_text
from foveate.plans import make_plan
from foveate.tuning.constraints import Constraints
from foveate.tuning.damping import at_default
from foveate.tuning.expenses import Macs, Seconds
from foveate.tuning.judging import Judge
from foveate.tuning.mixing import WORTH_MEASURING, best_mixture
from foveate.tuning.sensitivity import levels_of
from zoo import PATCHES, make

strategy = importlib.import_module("foveate.tuning.strategy")
FEW = {"calibration": 40, "validation": 40, "trials": 3, "seconds": 0.02}
LEVELS = levels_of(PATCHES)
METHODS = (fv.ToMe(), fv.TopK())


@pytest.fixture(scope="module")
def model():
    return make("timm-cls")


@pytest.fixture(scope="module")
def photos():
    return torch.randn(80, 3, 24, 24, generator=torch.Generator().manual_seed(3))


def rows(slopes):
    """A table whose divergence grows with the square of the tokens that a block removes."""
    return [[slope * (PATCHES - level) ** 2 for level in LEVELS] for slope in slopes]


EARLY, LATE = rows([1.0, 1.0, 9.0, 9.0]), rows([9.0, 9.0, 0.01, 0.01])
"""Of a method that is good in the first two blocks, and of one that is good in the last two."""


def search_of(model, tables, methods=METHODS):
    """A search whose tables are known."""
    run = strategy.Strategy(model, Constraints(macs=0.7), "macs", methods, None, 3, 1, 0, lambda *_: None)
    run.tables = {method_text(method): table for method, table in zip(methods, tables, strict=True)}
    return run


def every_allocation(mixture, first, then, shape):
    """Every sequence of levels that both methods can take, with its divergence and cost."""
    table = [*first[: mixture.switch], *then[mixture.switch :]]
    for counts in itertools.product(LEVELS, repeat=4):
        steps = list(zip((PATCHES, *counts[:-1]), counts, strict=True))
        if any(after > before for before, after in steps):
            continue
        try:
            plan = make_plan(shape, mixture, fv.Keep(list(counts)), exact_last_block=True)
        except fv.PlanError:
            continue
        places = [(LEVELS.index(before), LEVELS.index(after)) for before, after in steps]
        yield (
            counts,
            sum(row[after] - row[before] for row, (before, after) in zip(table, places, strict=True)),
            count(shape, plan, mixture, 0).macs,
        )


@pytest.mark.parametrize("switch", [1, 2, 3])
def test_counts_of_a_mixture_are_the_best_by_the_tables_and_costs_of_its_parts(model, switch):
    run, mixture = search_of(model, (EARLY, LATE)), fv.Mixture(*METHODS, switch)
    found = run._allocation(mixture, 0.7 * run.expense.whole())
    every = {counts: (lost, macs) for counts, lost, macs in every_allocation(mixture, EARLY, LATE, run.shape)}
    lost, macs = every[found.counts]
    assert found.divergence == pytest.approx(lost)
    assert found.cost + run.expense.fixed() == pytest.approx(macs)
    assert macs <= 0.7 * run.expense.whole()
    assert min(other for other, price in every.values() if price <= macs) == pytest.approx(lost)


slopes = st.lists(st.floats(0.1, 9), min_size=4, max_size=4)


@given(slopes, slopes, st.floats(0.5, 0.9))
@settings(max_examples=15, deadline=None)
def test_the_mixture_is_the_best_of_all_pairs_and_switches(one, other, share):
    run = search_of(make("timm-cls"), (rows(one), rows(other)))
    budget = share * run.expense.whole()

    def predicted(method):
        found = run._allocation(method, budget)
        return None if found is None else found.divergence

    mixtures = [fv.Mixture(*pair, switch) for pair in (METHODS, METHODS[::-1]) for switch in (1, 2, 3)]
    found = best_mixture(METHODS, 4, predicted)
    assert found.method in mixtures
    assert found.divergence == predicted(found.method) == min(map(predicted, mixtures))
    assert found.alone == min(map(predicted, METHODS))


def test_a_budget_that_only_a_mixture_meets_is_worth_it_and_one_that_none_meets_gives_none():
    found = best_mixture(METHODS, 4, lambda method: 3.0 if isinstance(method, fv.Mixture) else None)
    assert found.is_promising
    assert json.loads(json.dumps(found.as_dict()))["predicted_divergence_alone"] is None
    assert best_mixture(METHODS, 4, lambda method: None) is None
    assert best_mixture([fv.ToMe(), fv.Mixture()], 4, lambda method: 1.0) is None  # a mixture is not mixed again


@pytest.mark.parametrize(("ratio", "promising"), [(WORTH_MEASURING - 0.01, True), (WORTH_MEASURING + 0.01, False)])
def test_a_small_gain_is_not_worth_measuring(ratio, promising):
    found = best_mixture(METHODS, 4, lambda method: ratio if isinstance(method, fv.Mixture) else 1.0)
    assert found.is_promising == promising


@pytest.fixture
def told_tables(monkeypatch):
    """Tables as if ToMe were good in early blocks and TopK in late ones."""
    tables = {"ToMe": EARLY, "TopK": LATE}
    monkeypatch.setattr(strategy, "sensitivities", lambda judge, method, *_: tables[method.name])
    monkeypatch.setattr(strategy, "LEAST_SHARE", 0.55)  # this model keeps its decisions with hardly any token


def tried(found):
    return {at_default(fv.Reduction.parse(one["reduction"]).method) for one in found.to_dict()["measured"]}


@pytest.mark.parametrize("bound", [{"macs": 0.6}, {"agreement": 0.5}], ids=["cost", "quality"])
def test_a_promising_mixture_is_measured_beside_the_methods(model, photos, told_tables, bound):
    phases = []
    options = {"methods": METHODS, "progress": lambda phase, *_: phases.append(phase), **bound, **FEW}
    found = fv.search(model, photos, **options)
    (mixture,) = (method for method in tried(found) if isinstance(method, fv.Mixture))
    assert (mixture.first, mixture.then) == METHODS
    told = found.to_dict()["mixture"]
    assert told["method"] == method_text(mixture)
    assert told["predicted_divergence"] < told["predicted_divergence_alone"]
    assert told["measured"]
    assert "mixtures" in phases
    without = fv.search(model, photos, mixtures=False, **options)
    assert tried(without) == set(METHODS)
    assert without.to_dict()["mixture"] is None


def test_a_mixture_that_promises_nothing_takes_no_measurement(model, photos, monkeypatch):
    monkeypatch.setattr(strategy, "sensitivities", lambda *_: EARLY)  # both alike: only costs differ
    found = fv.search(model, photos, macs=0.7, methods=METHODS, **FEW)
    assert tried(found) == set(METHODS)
    assert not found.to_dict()["mixture"]["measured"]


def test_a_stopped_search_of_mixtures_goes_on_and_finds_the_same(model, photos, told_tables, tmp_path, monkeypatch):
    options = {"macs": 0.6, "methods": METHODS, **FEW}
    whole = fv.search(model, photos, **options)

    def stop(phase, done, total, note=""):
        if phase.startswith("refining"):
            raise KeyboardInterrupt

    file = tmp_path / "known.json"
    assert not fv.search(model, photos, measurements=file, progress=stop, **options).complete
    assert any("Mixture" in key for key in json.loads(file.read_text())["measured"])
    measured, judge = [], Judge.judge
    monkeypatch.setattr(Judge, "judge", lambda self, *args: measured.append(args) or judge(self, *args))
    again = fv.search(model, photos, measurements=file, **options)
    assert [one.judged for one in again.finalists] == [one.judged for one in whole.finalists]
    measured.clear()
    fv.search(model, photos, measurements=file, **options)
    assert len(measured) == len(again.finalists)


def test_a_given_mixture_is_searched_by_the_measurements_of_its_parts(model, photos):
    text = "Mixture:first=TopK,then=ToMe,switch=2"
    found = fv.search(model, photos, macs=0.7, methods=["ToMe", "TopK", text], mixtures=False, **FEW)
    tables = found.to_dict()["sensitivities"]
    assert tables[text] == [*tables["TopK"][:2], *tables["ToMe"][2:]]
    alone = fv.search(model, photos, macs=0.7, methods=text, **FEW)
    assert method_text(alone.reduction.method) == text
    assert fv.Reduction.parse(alone.reduction.text) == alone.reduction


@pytest.mark.parametrize("exact", [False, True])
def test_the_sum_of_blocks_is_the_cost_of_the_mixture(model, exact):
    mixture, counts = fv.Mixture(fv.FreeSlice("pre_block"), fv.ToMe(), 2), (30, 20, 14, 12)
    reduced = fv.reduce_(make("timm-cls"), mixture, fv.Keep(list(counts)), exact_last_block=exact)
    assert Macs(fv.inspect(model).shape(), exact).total(mixture, counts, PATCHES) == fv.cost(reduced).macs


def test_seconds_of_a_mixture_are_those_of_its_parts(model, monkeypatch):
    monkeypatch.setattr(Seconds, "_timed", lambda self, models, rounds: dict.fromkeys(models, 1.0))
    seconds = Seconds(model, [fv.Mixture(*METHODS, 2)], 2, exact_last_block=False)
    assert set(seconds._own) == set(METHODS)
    seconds._own = {
        m: torch.tensor([own, 0, 0, 0], dtype=torch.float64) for m, own in zip(METHODS, (5, 7), strict=True)
    }
    mixture = fv.Mixture(*METHODS, 2)
    assert [seconds.of_block(mixture, block, 36, 30) for block in range(4)] == pytest.approx([5, 5, 7, 7])
    assert seconds.of_block(mixture, 0, 36, 36) == 0


def test_mixtures_are_wanted_or_not(model, photos):
    with pytest.raises(TypeError, match="mixtures must be True or False, got 'Ward'"):
        fv.search(model, photos, macs=0.7, mixtures="Ward")
