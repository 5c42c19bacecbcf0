"""``RemovePerBlock(r, inflection)``: ToMe's schedules that remove more in first or in last blocks."""

import pytest

from foveate.methods import ToMe
from foveate.schedules import PlanError, RemovePerBlock, schedule_from_dict, schedule_to_dict
from foveate.schedules_text import read_schedule, schedule_text


def tome_by_loops(r, inflection, depth):
    """ToMe's (r, inflection), one block at a time."""
    low = int(r * (1 - inflection))
    high = 2 * r - low
    return tuple(int(low + (high - low) / (depth - 1) * block) for block in range(depth))


@pytest.mark.parametrize("inflection", [-1, -0.5, 0.0, 0.3, 1])
@pytest.mark.parametrize("r", [0, 8, 13])
def test_an_inflection_tilts_the_removals_as_in_tome(r, inflection):
    assert RemovePerBlock(r, inflection).removals(12) == tome_by_loops(r, inflection, 12)


def test_a_falling_schedule_removes_twice_as_many_first_and_none_last():
    counts = RemovePerBlock(8, -1).counts(ToMe(), 12, 196)
    assert (196 - counts[0], counts[-2] - counts[-1]) == (16, 0)


@pytest.mark.parametrize("inflection", [-1.5, 2, True, "up"])
def test_an_inflection_beyond_one_is_refused(inflection):
    with pytest.raises(PlanError, match="inflection must be a number from -1 to 1"):
        RemovePerBlock(8, inflection)


def test_an_inflection_is_written_and_read():
    schedule = RemovePerBlock(13, -0.5)
    assert schedule_from_dict(schedule_to_dict(schedule)) == schedule
    assert read_schedule(["--remove", "13,-0.5"], "") == schedule
    assert schedule_text(schedule) == "--remove 13,-0.5"
    assert repr(schedule) == "RemovePerBlock(r=13, inflection=-0.5)"
