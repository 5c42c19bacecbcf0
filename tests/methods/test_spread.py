"""Where a budget takes tokens away: from a block on that the budget sets, the same share in every block."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveate.costs import count
from foveate.methods import EViT, RandomSelect, TokenPooling, ToMe, TopK, Ward
from foveate.methods.base import KEPT_PER_TWELFTH, middle_blocks
from foveate.methods.dynamic_vit import DynamicViT
from foveate.plans import make_plan
from foveate.schedules import Budget, Keep
from test_schedules import DEIT_S

METHODS = (TokenPooling(), Ward(), ToMe(), EViT(), TopK(), RandomSelect())


@pytest.mark.parametrize("fraction", [0.3, 0.35, 0.42, 0.5, 0.65, 0.8, 0.9])
@pytest.mark.parametrize("method", METHODS, ids=repr)
def test_every_step_keeps_the_same_share_at_any_budget(method, fraction):
    plan = make_plan(DEIT_S, method, Budget(fraction))
    acting = [block for block in range(12) if plan.acts_in(block)]
    if method.kind == "select" and acting[0] == 1:
        acting = acting[:6]  # those behind the first half end, the last one first
    else:
        assert acting[-1] == 9  # three quarters of the depth
    assert acting == list(range(acting[0], acting[-1] + 1))  # without gaps
    assert acting[0] >= 1 or method.kind == "merge"  # others spare the first twelfth
    shares = [plan.counts[block] / plan.before(block) for block in acting]
    # the first step takes what is left to take; of fewer than 20 tokens one is more than a twentieth
    later = [share for block, share in zip(acting, shares, strict=True) if plan.before(block) >= 20][1:]
    assert max(later, default=1) - min(later, default=1) < 0.06
    assert shares[0] > min(later, default=0) - 0.06
    if acting[0] > (method.kind != "merge"):
        assert later == pytest.approx([KEPT_PER_TWELFTH[method.kind]] * len(later), abs=0.05)
    whole = count(DEIT_S, make_plan(DEIT_S, method, Keep({})), None, 0).macs
    assert count(DEIT_S, plan, method, 0).macs == pytest.approx(fraction * whole, rel=0.01)


def test_selection_at_small_budgets_ends_in_the_first_half():
    """The class token still reads what is left, and a dropped token is gone for all blocks behind."""

    def last_shares(fraction: float) -> list[float]:
        counts = make_plan(DEIT_S, TopK(), Budget(fraction)).counts
        return [after / before for before, after in pairwise(counts[6:10])]

    assert all(share < 0.95 for share in last_shares(0.65))
    assert last_shares(0.5)[0] < 1 == last_shares(0.5)[-1]
    assert last_shares(0.3) == [1.0, 1.0, 1.0]


def test_smaller_budgets_begin_earlier():
    untouched = [sum(n == 196 for n in make_plan(DEIT_S, Ward(), Budget(f)).counts) for f in (0.9, 0.65, 0.5, 0.35)]
    assert untouched == sorted(untouched, reverse=True)
    assert untouched[0] >= 6
    assert untouched[-1] <= 1


@given(
    st.sampled_from([Ward(), TopK()]), st.integers(1, 30), st.integers(1, 400), st.floats(0, 0.999), st.floats(0, 0.999)
)
def test_counts_never_rise_with_strength_or_depth(method, depth, n, one, other):
    weak, strong = (method.spread(s, depth, n) for s in sorted((one, other)))
    assert all(a >= b for a, b in zip(weak, strong, strict=True))
    assert all(a >= b for a, b in pairwise((n, *weak)))
    assert min(strong) >= 1


@pytest.mark.parametrize("depth", [1, 2, 6, 12, 24])
def test_strength_runs_from_all_tokens_to_one(depth):
    assert Ward().spread(0.0, depth, 196) == (196,) * depth
    assert Ward().spread(1 - 1e-9, depth, 196) == (1,) * depth
    assert set(TopK().spread(1 - 1e-9, depth, 196)[depth // 12 + (depth > 1) :]) == {1}


def test_a_deeper_model_takes_smaller_steps():
    twelve, deep = (Ward().spread(0.01, depth, 10_000) for depth in (12, 24))
    assert twelve[9] / twelve[8] == pytest.approx(0.78, abs=0.01)
    assert deep[18] / deep[17] == pytest.approx(0.78**0.5, abs=0.01)


def test_learned_methods_keep_the_three_blocks_of_their_papers():
    plan = make_plan(DEIT_S, DynamicViT(), Budget(0.65))
    assert [block for block in range(12) if plan.acts_in(block)] == [3, 6, 9]


@pytest.mark.parametrize("number", [3, 4])
def test_middle_blocks_spare_the_first_quarter_at_any_depth(number):
    for depth in range(1, 40):
        blocks = middle_blocks(depth, number)
        assert 1 <= len(blocks) <= number
        assert all(0 <= block < depth for block in blocks)
        assert depth == 1 or all(block >= depth / 4 for block in blocks)
    assert middle_blocks(12, 3) == (3, 6, 9)
    assert middle_blocks(12, 4) == (3, 5, 7, 9)
