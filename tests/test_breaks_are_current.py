"""The table of deliberate breaks fits the source and the tests; ``python -m tests.breaks`` makes them."""

from dataclasses import replace
from pathlib import Path

import pytest

from breaks.staleness import stale
from breaks.table import BREAKS

ROOT = Path(__file__).resolve().parent.parent


def test_every_break_fits_the_source_and_names_tests_that_exist():
    assert stale(BREAKS, ROOT) == []


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"file": "foveate/core/nothing.py"}, "there is no file"),
        ({"old": "no such text"}, "its text occurs 0 times"),
        ({"old": "import"}, "its text occurs"),
        ({"new": "return ("}, "not valid Python"),
        ({"fails": ()}, "names no test"),
        ({"fails": ("core/test_nothing.py",)}, "there is no test core/test_nothing.py"),
        (
            {"fails": ("core/test_assignment.py::test_nothing",)},
            "there is no test core/test_assignment.py::test_nothing",
        ),
    ],
)
def test_a_stale_break_is_named_with_the_reason(change, reason):
    (found,) = stale([replace(BREAKS[0], **change)], ROOT)
    assert found.startswith(BREAKS[0].name)
    assert reason in found
