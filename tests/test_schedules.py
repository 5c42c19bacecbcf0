"""How many tokens are left after each block: what schedules resolve to, and what they refuse."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from dataclasses import dataclass
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveate.costs import BlockShape, ModelShape, count
from foveate.methods import EViT, FreeSlice, Method, RandomSelect, Site, TokenPooling, ToMe, TopK, Ward
from foveate.plans import make_plan
from foveate.schedules import Budget, Keep, KeepRate, PlanError, RemovePerBlock, Schedule
from foveate.schedules import schedule_from_dict as from_dict
from foveate.schedules import schedule_to_dict as to_dict

DIM = 384
BLOCK = BlockShape(DIM, 6, 64, query_macs=DIM**2, key_value_macs=2 * DIM**2, proj_macs=DIM**2, mlp_macs=8 * DIM**2)
DEIT_S = ModelShape(
    blocks=(BLOCK,) * 12,
    grid=(14, 14),
    num_prefix=1,
    has_cls=True,
    stem_macs_per_patch=768 * DIM,
    head_macs=384_000,
    head_macs_per_patch=0,
    head_reads_patches=False,
)
METHODS = (EViT(), EViT(fuse=False), ToMe(), TopK(), RandomSelect(), FreeSlice())


@dataclass(frozen=True)
class Halving(Method):
    """A method that fixes its own counts."""

    site: ClassVar[Site] = Site.POST_BLOCK

    def assign(self, view, keep):
        raise NotImplementedError

    def own_counts(self, depth: int, grid: tuple[int, int]) -> tuple[int, ...]:
        n = grid[0] * grid[1]
        return tuple(n // 2 ** (block + 1) for block in range(depth))


def macs_by_hand(counts: tuple[int, ...], method: Method) -> int:
    """DeiT-S, block by block, for a method that reduces between attention and MLP."""
    total = 196 * 768 * DIM + 384_000
    n = 196
    for left in counts:
        total += 4 * (1 + n) * DIM**2  # queries, keys, values, projection
        total += 2 * (1 + n) ** 2 * DIM  # q k^T and its product with v
        total += 8 * (1 + left) * DIM**2  # MLP
        if left < n and isinstance(method, (EViT, TopK)):
            total += (1 + n) * DIM  # the class token's row
        if left < n and isinstance(method, ToMe):
            total += (n // 2) * (n - n // 2) * 64  # one half against the other
        n = left
    return total


# Keep


def test_a_list_gives_one_count_per_block():
    assert Keep([9, 9, 4, 4]).counts(TopK(), depth=4, n=10) == (9, 9, 4, 4)


def test_named_blocks_keep_their_count_until_the_next_one():
    assert Keep({3: 4, 1: 9}).counts(TopK(), depth=5, n=10) == (10, 9, 9, 4, 4)


def test_an_empty_schedule_changes_nothing():
    assert Keep({}).counts(TopK(), depth=3, n=10) == (10, 10, 10)


def test_keys_are_counted_afresh_in_every_block():
    assert Keep({1: 3, 2: 8}).counts(FreeSlice(site=Site.KV), depth=4, n=10) == (10, 3, 8, 10)
    assert KeepRate(0.5, blocks=(1, 2)).counts(FreeSlice(site=Site.KV), depth=4, n=10) == (10, 5, 5, 10)
    assert RemovePerBlock(4).counts(FreeSlice(site=Site.KV), depth=3, n=10) == (6, 6, 6)


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        ([5, 5], "lists 2 counts but the model has 4 blocks"),
        ([], "lists 0 counts but the model has 4 blocks"),
        ([9, 8, 7, 6, 5], "lists 5 counts but the model has 4 blocks"),
        ([9, 5, 6, 6], "6 tokens after block 2, but only 5 are left"),
        ({1: 4, 3: 5}, "5 tokens after block 3, but only 4 are left"),
        ({0: 11}, "11 tokens after block 0, but only 10 are left"),
        ({4: 5}, r"blocks=\(4,\) but the model has 4 blocks \(0\.\.3\)"),
    ],
)
def test_a_plan_the_model_cannot_follow_is_refused(plan, words):
    with pytest.raises(PlanError, match=words):
        Keep(plan).counts(TopK(), depth=4, n=10)


@pytest.mark.parametrize("plan", [[5, -1], {1: -1}, {-1: 5}, [5.0], [True], {1: "5"}, {1: None}, {True: 4}, ["9"]])
def test_only_whole_numbers_from_zero_are_counts(plan):
    with pytest.raises(PlanError, match="whole numbers of at least 0"):
        Keep(plan)


def test_an_unreachable_count_names_the_smallest_that_can_be_reached():
    with pytest.raises(
        PlanError, match=r"ToMe to go from 196 tokens to 97 in block 2; ToMe can reach 98 at the lowest"
    ):
        Keep({2: 97}).counts(ToMe(), depth=12, n=196)
    assert Keep({2: 98, 3: 49}).counts(ToMe(), depth=4, n=196) == (196, 196, 98, 49)
    with pytest.raises(PlanError, match=r"from 7 tokens to 3 .* can reach 4 at the lowest"):
        Keep({0: 3}).counts(ToMe(), depth=2, n=7)


# KeepRate


def test_a_rate_acts_at_a_quarter_a_half_and_three_quarters_by_default():
    assert KeepRate(0.5).counts(TopK(), depth=12, n=64) == (64, 64, 64, 32, 32, 32, 16, 16, 16, 8, 8, 8)
    assert KeepRate(0.5).counts(TopK(), depth=4, n=64) == (64, 32, 16, 8)


@pytest.mark.parametrize("method", METHODS, ids=repr)
def test_a_rate_of_one_changes_nothing(method):
    assert KeepRate(1.0).counts(method, depth=6, n=50) == (50,) * 6


def test_a_rate_is_rounded_up_and_not_by_the_error_of_floating_point():
    assert [KeepRate(0.7, blocks=(0,)).counts(TopK(), 1, n)[0] for n in (10, 11, 100)] == [7, 8, 70]
    assert math.ceil(0.55 * 100) == 56  # the product is 55.00000000000001
    assert KeepRate(0.55, blocks=(0,)).counts(TopK(), 1, 100) == (55,)


def test_one_block_may_be_given_as_a_number():
    assert KeepRate(0.5, blocks=1) == KeepRate(0.5, blocks=(1,)) == KeepRate(0.5, blocks=[1])


@pytest.mark.parametrize("rate", [0, -0.5, 1.01, 70, 1000, math.nan, math.inf, "0.7", None, True])
def test_a_rate_outside_zero_to_one_is_refused(rate):
    with pytest.raises(PlanError, match=re.escape(f"in (0, 1]; got {rate!r}")):
        KeepRate(rate)


@pytest.mark.parametrize("schedule", [KeepRate, Budget])
def test_a_percentage_gets_the_fraction_suggested(schedule):
    with pytest.raises(PlanError, match=r"For 70 % write 0\.7\."):
        schedule(70)
    with pytest.raises(PlanError) as refused:
        schedule(-70)
    assert "write" not in str(refused.value)


@pytest.mark.parametrize("blocks", [(6, 3), (3, 3), (1, 5, 4)])
def test_blocks_that_do_not_rise_are_refused(blocks):
    with pytest.raises(PlanError, match="must rise without repeats"):
        KeepRate(0.7, blocks=blocks)


@pytest.mark.parametrize("block", [0.5, True])
def test_blocks_that_are_no_numbers_of_blocks_are_refused(block):
    with pytest.raises(PlanError, match=f"must be whole numbers, counted from 0; got {block}"):
        KeepRate(0.7, blocks=(block,))


@pytest.mark.parametrize("blocks", [(3, 6, 9), (-1,)])
def test_blocks_the_model_does_not_have_are_refused(blocks):
    with pytest.raises(PlanError, match=re.escape(f"KeepRate.blocks={blocks} but the model has 6 blocks (0..5)")):
        KeepRate(0.7, blocks=blocks).counts(TopK(), depth=6, n=196)


def test_a_rate_below_tomes_half_is_refused_with_what_it_reaches():
    with pytest.raises(PlanError, match="from 196 tokens to 79 in block 3; ToMe can reach 98 at the lowest"):
        KeepRate(0.4, blocks=(3,)).counts(ToMe(), depth=12, n=196)


# RemovePerBlock


def test_a_fixed_number_goes_in_every_block():
    assert RemovePerBlock(16).counts(ToMe(), depth=4, n=196) == (180, 164, 148, 132)
    assert RemovePerBlock(0).counts(ToMe(), depth=3, n=196) == (196, 196, 196)


def test_removal_stops_at_tomes_half_and_at_the_last_token():
    assert RemovePerBlock(8).counts(ToMe(), depth=6, n=20) == (12, 6, 3, 2, 1, 1)
    assert RemovePerBlock(8).counts(TopK(), depth=4, n=20) == (12, 4, 1, 1)


@pytest.mark.parametrize("r", [-1, 1.5, True, "8", None])
def test_only_a_whole_number_can_be_removed(r):
    with pytest.raises(PlanError, match="whole number of at least 0"):
        RemovePerBlock(r)


# Laws of all


@given(
    rate=st.floats(0.5, 1.0),  # ToMe reaches any rate from a half on
    depth=st.integers(1, 14),
    n=st.integers(1, 300),
    method=st.sampled_from(METHODS),
    data=st.data(),
)
def test_counts_of_a_rate_never_rise(rate, depth, n, method, data):
    blocks = data.draw(st.none() | st.sets(st.integers(0, depth - 1)).map(sorted))
    counts = KeepRate(rate, blocks).counts(method, depth, n)
    assert len(counts) == depth
    assert list(counts) == sorted(counts, reverse=True)
    assert 1 <= counts[-1] <= counts[0] <= n


@given(rate=st.floats(0.001, 0.5), n=st.integers(1, 300), method=st.sampled_from([m for m in METHODS if m != ToMe()]))
def test_a_small_rate_keeps_at_least_that_share_of_the_tokens_there(rate, n, method):
    previous = n
    for current in KeepRate(rate).counts(method, 12, n)[3::3]:
        assert rate * previous - 1e-6 <= current <= previous
        previous = current


@given(r=st.integers(0, 400), depth=st.integers(1, 14), n=st.integers(1, 300), method=st.sampled_from(METHODS))
def test_counts_of_a_removal_never_rise_and_never_reach_zero(r, depth, n, method):
    previous = n
    for current in RemovePerBlock(r).counts(method, depth, n):
        assert max(1, previous - r) <= current <= previous
        if method == ToMe():
            assert current >= previous / 2
        elif previous > r:
            assert current == previous - r
        previous = current


SAMPLES: tuple[tuple[Schedule, Schedule], ...] = (  # equal in value, written differently; then another one
    (Keep({3: 4, 1: 9}), Keep({1: 9, 3: 4})),
    (Keep([9, 4]), Keep((9, 4))),
    (KeepRate(0.7, blocks=[3, 6]), KeepRate(0.7, blocks=(3, 6))),
    (KeepRate(0.7), KeepRate(0.7, blocks=None)),
    (RemovePerBlock(8), RemovePerBlock(r=8)),
    (Budget(0.5), Budget(fraction=0.5)),
)


@pytest.mark.parametrize(("one", "same"), SAMPLES, ids=repr)
def test_schedules_are_equal_by_value_and_hashable(one, same):
    assert one == same
    assert hash(one) == hash(same)
    assert len({one, *(first for first, _ in SAMPLES)}) == len(SAMPLES)


@pytest.mark.parametrize("schedule", [first for first, _ in SAMPLES], ids=repr)
def test_a_described_schedule_can_be_built_again_from_json(schedule):
    assert from_dict(json.loads(json.dumps(to_dict(schedule)))) == schedule


def test_a_schedule_of_an_unknown_kind_is_refused():
    with pytest.raises(PlanError, match=r"no schedule 'sometimes'\. Known: keep, keep-rate"):
        from_dict({"kind": "sometimes"})


@pytest.mark.parametrize("schedule", [Keep([9, 4]), Keep({1: 9, 3: 4}), KeepRate(0.7, (3,)), Budget(0.5)])
def test_a_schedule_prints_as_the_code_that_makes_it(schedule):
    assert eval(repr(schedule)) == schedule


# Counts that a method fixes itself


def test_a_method_that_needs_a_schedule_says_so_with_an_example():
    with pytest.raises(PlanError, match=r"ToMe needs a schedule: .*KeepRate\(0\.7, blocks=\(3, 6, 9\)\)"):
        make_plan(DEIT_S, ToMe())


def test_a_method_that_fixes_its_own_counts_needs_none():
    assert make_plan(DEIT_S, Halving()).counts[:3] == (98, 49, 24)


# Plans: budgets and heads


@pytest.mark.parametrize("method", METHODS, ids=repr)
@pytest.mark.parametrize("schedule", [Keep({}), KeepRate(0.7), RemovePerBlock(13), RemovePerBlock(70)], ids=repr)
def test_macs_are_those_counted_by_hand_overhead_included(method, schedule):
    plan = make_plan(DEIT_S, method, schedule)
    cost = count(DEIT_S, plan, method, params=0)
    assert cost.macs == macs_by_hand(plan.counts, method)
    assert cost.macs - cost.reduction_macs == macs_by_hand(plan.counts, FreeSlice())
    assert cost.tokens == tuple(1 + left for left in plan.counts)


@pytest.mark.parametrize("fraction", [0.3, 0.45, 0.5, 0.65, 0.8, 0.95])
@pytest.mark.parametrize("method", METHODS, ids=repr)
def test_a_budget_is_met_within_one_percent_overhead_included(method, fraction):
    counts = make_plan(DEIT_S, method, Budget(fraction)).counts
    assert list(counts) == sorted(counts, reverse=True)
    assert counts[-1] >= 1
    Keep(counts).counts(method, 12, 196)  # raises where a step is out of the method's reach
    ratio = macs_by_hand(counts, method) / macs_by_hand((196,) * 12, method)
    assert ratio == pytest.approx(fraction, rel=0.01)


@pytest.mark.parametrize("method", [TokenPooling(), Ward(), EViT(), TopK()], ids=repr)
def test_no_budget_adds_sites_of_a_token_or_two_to_those_of_the_method(method):
    for hundredths in range(40, 100, 3):
        plan = make_plan(DEIT_S, method, Budget(hundredths / 100))
        acting = [block for block in range(12) if plan.acts_in(block)]
        ends_early = method.kind == "select" and acting[0] == 1  # blocks 9, 8 and 7 end one after the other
        assert acting in [list(range(acting[0], end)) for end in ((7, 8, 9, 10) if ends_early else (10,))], plan.counts
        whole = acting[1 : -1 if ends_early else None]  # the first and the last take what is left to take
        assert all(plan.counts[block] < 0.95 * plan.before(block) for block in whole), plan.counts


@pytest.mark.parametrize("method", [ToMe(), EViT(), Ward(), RandomSelect()], ids=repr)
def test_a_budget_may_name_its_blocks(method):
    whole = count(DEIT_S, make_plan(DEIT_S, method, Keep({})), None, 0).macs
    for fraction in (0.65, 0.7, 0.76, 0.83, 0.9):
        plan = make_plan(DEIT_S, method, Budget(fraction, blocks=(4, 8)))
        assert [block for block in range(12) if plan.acts_in(block)] == [4, 8]
        assert count(DEIT_S, plan, method, 0).macs == pytest.approx(fraction * whole, rel=0.01)


def test_a_budgets_blocks_are_checked():
    with pytest.raises(PlanError, match="must rise without repeats"):
        Budget(0.5, blocks=(4, 4))
    with pytest.raises(PlanError, match=r"Budget.blocks=\(3, 12\) but the model has 12 blocks"):
        make_plan(DEIT_S, Ward(), Budget(0.5, blocks=(3, 12)))


def test_a_method_that_fixes_its_counts_refuses_another_schedule():
    assert make_plan(DEIT_S, Halving(), Keep({})).counts == (196,) * 12
    with pytest.raises(PlanError, match=r"Halving fixes its own counts. Leave out the schedule RemovePerBlock\(r=8\)"):
        make_plan(DEIT_S, Halving(), RemovePerBlock(8))


@pytest.mark.parametrize("method", METHODS, ids=repr)
def test_the_whole_budget_keeps_every_token(method):
    assert make_plan(DEIT_S, method, Budget(1.0)).counts == (196,) * 12


def named_range(refused: pytest.ExceptionInfo[PlanError]) -> tuple[float, float, float]:
    """(least, most, nearest) from the message."""
    found = re.search(r"cost ([\d.]+) to ([\d.]+) of the unreduced MACs, the nearest ([\d.]+)\.$", str(refused.value))
    assert found, str(refused.value)
    return tuple(map(float, found.groups()))


@pytest.mark.parametrize("method", [EViT(), TopK(), RandomSelect()], ids=repr)
def test_an_unreachable_budget_names_the_range_that_can_be_reached(method):
    with pytest.raises(PlanError, match=rf"Budget\(0.02\) cannot be met by {type(method).__name__}") as refused:
        make_plan(DEIT_S, method, Budget(0.02))
    least, most, nearest = named_range(refused)
    assert 0.02 < least < 0.3
    assert most == 1
    make_plan(DEIT_S, method, Budget(least + 0.002))  # the lower end, as printed, can be asked for
    with pytest.raises(PlanError, match="cannot be met"):
        make_plan(DEIT_S, method, Budget(0.95 * nearest))


@pytest.mark.parametrize("method", [ToMe(), TopK(), FreeSlice(site=Site.KV)], ids=repr)
def test_the_nearest_budget_lies_in_the_range_that_is_named(method):
    with pytest.raises(PlanError) as refused:
        make_plan(DEIT_S, method, Budget(0.02))
    least, most, nearest = named_range(refused)
    assert least <= nearest <= most


@pytest.mark.parametrize("fraction", [0, -1, 1.5, "half", True, math.nan])
def test_a_budget_is_a_share_of_the_macs(fraction):
    with pytest.raises(PlanError, match=re.escape("in (0, 1]")):
        Budget(fraction)


def test_the_last_patch_token_may_go_where_the_head_reads_the_class_token():
    assert make_plan(DEIT_S, TopK(), Keep({11: 0})).counts[-1] == 0


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"head_reads_patches": True}, "no patch token after block 5, but this model's head reads patch"),
        ({"num_prefix": 0, "has_cls": False}, "no token after block 5"),
    ],
)
def test_the_last_patch_token_may_not_go_where_something_needs_it(changes, words):
    shape = dataclasses.replace(DEIT_S, **changes)
    with pytest.raises(PlanError, match=words):
        make_plan(shape, TopK(), Keep({5: 0}))
    assert make_plan(shape, TopK(), Keep({5: 1})).counts[-1] == 1
