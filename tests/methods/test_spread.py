"""Where a budget takes tokens away: evenly spaced blocks, none of which begins in the first quarter."""

import pytest

from foveate.costs import count, make_plan
from foveate.methods import TokenPooling, Ward
from foveate.methods.base import middle_blocks
from foveate.schedules import Budget, Keep
from test_schedules import DEIT_S

SPARE_THE_FIRST_QUARTER = (TokenPooling(), TokenPooling(clustering="kmeans"), Ward(), Ward("greedy"))


@pytest.mark.parametrize("fraction", [0.4, 0.5, 0.65, 0.8])
@pytest.mark.parametrize("method", SPARE_THE_FIRST_QUARTER, ids=repr)
def test_clustering_takes_an_equal_share_at_four_blocks_none_of_them_early(method, fraction):
    plan = make_plan(DEIT_S, method, Budget(fraction))
    assert [block for block in range(12) if plan.acts_in(block)] == [3, 5, 7, 9]
    shares = [plan.counts[block] / plan.before(block) for block in (3, 5, 7, 9)]
    assert max(shares) - min(shares) < 0.06  # whole tokens: one of twenty is 0.05
    whole = count(DEIT_S, make_plan(DEIT_S, method, Keep({})), None, 0).macs
    assert count(DEIT_S, plan, method, 0).macs == pytest.approx(fraction * whole, rel=0.01)


@pytest.mark.parametrize("number", [3, 4])
def test_middle_blocks_spare_the_first_quarter_at_any_depth(number):
    for depth in range(1, 40):
        blocks = middle_blocks(depth, number)
        assert 1 <= len(blocks) <= number
        assert all(0 <= block < depth for block in blocks)
        assert depth == 1 or all(block >= depth / 4 for block in blocks)
    assert middle_blocks(12, 3) == (3, 6, 9)
    assert middle_blocks(12, 4) == (3, 5, 7, 9)
