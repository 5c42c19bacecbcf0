"""Counts by dynamic programming, against every possibility tried."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import foveate as fv
from foveate.tuning.allocation import allocate, cheapest_within, front
from foveate.tuning.expenses import Macs
from foveate.tuning.refining import fitted, ratios, refined
from foveate.tuning.sensitivity import _interpolated, levels_of
from zoo import make

LEVELS = (36, 20, 9, 4)


def block_cost(block, before, after):
    return 3.0 * before + 0.1 * before * before + 5.0 * after


def all_allocations(table):
    """Every sequence of levels that never rises, with its divergence and cost."""
    for path in itertools.product(range(len(LEVELS)), repeat=len(table)):
        before = (0, *path[:-1])
        if any(after < first for first, after in zip(before, path, strict=True)):
            continue
        steps = list(enumerate(zip(before, path, strict=True)))
        divergence = sum(table[b][after] - table[b][first] for b, (first, after) in steps)
        cost = sum(block_cost(b, LEVELS[first], LEVELS[after]) for b, (first, after) in steps)
        yield tuple(LEVELS[level] for level in path), divergence, cost


rows = st.lists(st.floats(0, 2), min_size=3, max_size=3).map(lambda steps: list(itertools.accumulate([0.0, *steps])))


@given(st.lists(rows, min_size=1, max_size=4), st.floats(1e-4, 1e-1))
@settings(max_examples=60, deadline=None)
def test_no_counts_are_better_at_a_price(table, price):
    found = allocate(LEVELS, table, block_cost, price)
    best = min(divergence + price * cost for _, divergence, cost in all_allocations(table))
    assert found.divergence + price * found.cost == pytest.approx(best)


def test_steps_out_of_reach_are_not_taken():
    table = [[0, 0, 0, 0]] * 3
    halves = allocate(LEVELS, table, block_cost, 1.0, lambda block, before, after: after >= before / 2)
    assert halves.counts == (20, 20, 20)  # from 36 to 20, and none of 20 to 9
    assert allocate(LEVELS, table, block_cost, 1.0).counts == (4, 4, 4)


def test_tokens_go_where_that_costs_least():
    late_is_cheap = [[0, 3, 6, 9], [0, 1, 2, 3], [0, 0.01, 0.02, 0.03]]
    found = cheapest_within(LEVELS, late_is_cheap, block_cost, 1000.0)
    assert found.counts[0] == 36
    assert found.counts[2] < 36
    assert cheapest_within(LEVELS, late_is_cheap, block_cost, 10.0) is None


@given(st.lists(rows, min_size=2, max_size=4), st.floats(0.3, 0.99))
@settings(max_examples=40, deadline=None)
def test_a_budget_is_kept(table, share):
    whole = sum(block_cost(b, 36, 36) for b in range(len(table)))
    found = cheapest_within(LEVELS, table, block_cost, share * whole)
    if found is not None:
        assert found.cost <= share * whole


def test_the_front_falls_in_cost_and_rises_in_divergence():
    table = [[0, 2, 4, 8], [0, 1, 2, 4], [0, 0.1, 0.3, 0.9]]
    found = front(LEVELS, table, block_cost)
    assert len(found) > 3
    assert [one.cost for one in found] == sorted((one.cost for one in found), reverse=True)
    assert all(a.divergence <= b.divergence + 1e-9 for a, b in itertools.pairwise(found))


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("method", [fv.ToMe(), fv.Ward(), fv.TopK()], ids=lambda m: m.name)
def test_the_sum_of_blocks_is_the_cost_of_the_model(method, exact):
    model = make("timm-cls")
    expense = Macs(fv.inspect(model).shape(), exact)
    counts = (36, 20, 20, 12)
    reduced = fv.reduce_(make("timm-cls"), method, fv.Keep(list(counts)), exact_last_block=exact)
    assert expense.total(method, counts, 36) == fv.cost(reduced).macs
    assert expense.whole() == fv.cost(model).macs


def test_levels_fall_from_all_patches_to_few():
    levels = levels_of(196)
    assert levels[0] == 196
    assert list(levels) == sorted(set(levels), reverse=True)
    assert levels[-1] < 20


def test_interpolated_divergence_never_falls_and_goes_through_what_was_measured():
    removed = [0.0, 0.15, 0.3, 0.45, 0.58, 0.7, 0.8, 0.92]
    row = _interpolated({0.0: 0.0, 0.3: 0.1, 0.58: 0.05, 0.8: 0.9}, removed)
    assert row == sorted(row)
    assert row[2] == pytest.approx(0.1)
    assert row[6] == pytest.approx(0.9)
    assert row[7] == pytest.approx(0.9 * 0.2 / 0.08)


def test_refining_keeps_the_budget_and_finds_what_is_better():
    method, patches = fv.TopK(), 100

    def cost(counts):
        return float(sum(counts))

    def divergence(counts):  # tokens of the first block are precious
        return sum((patches - count) / (block + 1) ** 3 for block, count in enumerate(counts))

    begin = (60, 60, 60, 60)
    best, lowest = refined(begin, patches, method, cost, 240.0, divergence, trials=200, seed=1)
    assert cost(best) <= 240
    assert lowest < divergence(begin)
    assert best[0] > 80
    assert refined(begin, patches, method, cost, 240.0, divergence, trials=200, seed=1) == (best, lowest)


def test_shares_of_tokens_fit_any_budget_that_they_can_reach():
    counts = fitted([1.0, 0.7, 1.0, 0.8], 100, fv.ToMe(), lambda c: float(sum(c)), 300.0)
    assert 280 <= sum(counts) <= 300
    assert ratios(counts, 100)[0] == ratios(counts, 100)[2] == 1.0
    assert fitted([1.0, 1.0], 100, fv.ToMe(), lambda c: float(sum(c)), 100.0) is None
