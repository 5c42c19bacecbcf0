"""The page of ``foveate speed``: what its plots and sentences say."""

import dataclasses
import re
from html.parser import HTMLParser

import pytest

import foveate as fv
from foveate.evaluation.environment import Environment
from foveate.evaluation.speed import FREE_SLICE, REDUCED, UNREDUCED, SpeedResult
from foveate.report.page import speed as page

SOMEWHERE = Environment("a processor", 2, 1, "cpu", "float32", "2", "1", "0")


def row(side, speed_up, method="ToMe", peaks=True, efficiency=0.8):
    result = SpeedResult(
        unreduced_per_second=10.0,
        reduced_per_second=10.0 * speed_up,
        free_slice_per_second=10.0 * speed_up / efficiency,
        speed_up=speed_up,
        speed_up_quartiles=(speed_up, speed_up),
        mac_ratio=2.0,
        efficiency=efficiency,
        efficiency_quartiles=(efficiency, efficiency),
        batch_size=1,
        image_size=(3, side, side),
        rounds=3,
        environment=SOMEWHERE,
        peak_mib={UNREDUCED: 40.0, REDUCED: 20.0, FREE_SLICE: 10.0} if peaks else None,
    )
    return page.SpeedRow(fv.Reduction(method, 0.5, output="grid"), result)


@pytest.mark.parametrize(
    ("speed_ups", "words"),
    [
        ((1.2, 1.5, 2.0), "Faster than the unreduced model at every size: 2.00"),
        ((0.8, 1.5, 2.0), "Faster than the unreduced model from 448 px on"),
        ((1.2, 0.9, 2.0), "from 896 px on"),  # being faster once, below, is not "on"
        ((1.2, 1.5, 1.0), "Not faster than the unreduced model at the largest size"),
    ],
)
def test_a_sentence_says_from_where_a_method_pays(speed_ups, words):
    rows = [row(side, speed_up) for side, speed_up in zip((224, 448, 896), speed_ups, strict=True)]
    said = page.where_it_pays(rows)
    assert words in said
    assert "with 50% of the MACs" in said
    assert "Choosing tokens takes 20% of its time there" in said


def test_a_busy_machine_is_named_above_the_figures():
    quiet, busy = row(224, 2.0), row(448, 2.0)
    busy = busy._replace(result=dataclasses.replace(busy.result, speed_up_quartiles=(1.8, 2.1)))
    assert "not quiet" not in page.render_speed("a model", [quiet])
    text = page.render_speed("a model", [quiet, busy])
    assert "not quiet: 1 of 2 speed-ups vary by more than 10%" in text
    assert text.index("not quiet") < text.index("<main>")


def test_lines_are_where_the_numbers_are():
    """Twice the time per pixel is twice as high above the axis, in every panel."""
    rows = [row(100, 2.0), row(200, 2.0), row(100, 4.0, "Ward"), row(200, 4.0, "Ward")]
    text = page.render_speed("a model", rows)
    floor = page.HEIGHT - page.BOTTOM

    def heights(name):
        found = re.findall(rf'<g class="{name}"><polyline points="([^"]*)"', text)[:2]  # the plots of time
        return [[floor - float(point.split(",")[1]) for point in line.split()] for line in found]

    (whole, whole_too), (tome, ward) = heights(UNREDUCED), heights(REDUCED)
    assert whole == whole_too  # one scale for all panels
    assert tome == pytest.approx([one / 2 for one in whole], abs=0.11)
    assert ward == pytest.approx([one / 4 for one in whole], abs=0.11)
    assert whole[0] == pytest.approx(4 * whole[1], abs=0.3)  # the same time over four times the pixels


def test_the_page_is_whole_and_safe():
    class Checker(HTMLParser):
        def handle_starttag(self, tag, attributes):
            assert tag != "script"
            assert not any(name in ("src", "onload") or "http" in (value or "") for name, value in attributes)

    text = page.render_speed('<b>"x"</b>{{table}}', [row(100, 2.0)])
    Checker().feed(text)
    assert "<b>" not in text
    assert "{{table}}" in text  # a placeholder in a user's text is left alone
    assert "<svg" in text


def test_a_setting_that_all_share_is_said_once():
    text = page.render_speed("a model", [row(100, 2.0), row(100, 2.0, "Ward")])
    assert text.count("<h3>ToMe</h3>") == 2  # time and memory
    assert text.count("<h3>Ward</h3>") == 2
    other = page.SpeedRow(fv.Reduction("Ward", 0.8), row(100, 2.0).result)
    assert "<h3>Ward, budget 0.8, batch 1</h3>" in page.render_speed("a model", [row(100, 2.0), other])


def test_memory_is_left_out_where_it_was_not_measured():
    text = page.render_speed("a model", [row(100, 2.0, peaks=False)])
    assert text.count("<svg") == 1
    assert "memory-title" not in text


@pytest.mark.parametrize(("value", "step"), [(0.03, 0.05), (0.9, 1), (1, 1), (3, 5), (21, 25), (101, 200), (480, 500)])
def test_grid_lines_stand_at_round_numbers(value, step):
    assert page._round_up(value) == pytest.approx(step)
