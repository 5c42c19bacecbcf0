"""The chart of the report, in a real browser."""

from __future__ import annotations

import dataclasses

import pytest

from browser.example_report import FIGURES, comparison, entry
from browser.opening import MEASURED, opened, points
from foveate.report.page import render


def test_the_chart_shows_one_point_for_each_measured_setting(page):
    assert points(page).count() == len(MEASURED)
    assert "1 without a measured speed is not shown." in page.locator("figcaption").inner_text()
    page.get_by_role("radio", name="MACs").check()
    assert points(page).count() == len(FIGURES)
    for kind in {row[1] for row in FIGURES}:
        assert page.locator(f"#plot .kind-{kind} use[href='#mark-{kind}']").count() > 0


def test_points_stand_where_their_figures_say(page):
    """Faster is further right, more faithful is higher; with MACs, cheaper is further right."""
    for axis, value in (("images per second", lambda row: row[5]), ("MACs", lambda row: -row[3])):
        page.get_by_role("radio", name=axis).check()
        boxes = {int(p.get_attribute("data-entry")): p.locator("use").bounding_box() for p in points(page).all()}
        for a, first in boxes.items():
            for b, second in boxes.items():
                if value(FIGURES[a]) > value(FIGURES[b]) + 0.004:
                    assert first["x"] > second["x"]
                if FIGURES[a][4] > FIGURES[b][4]:
                    assert first["y"] < second["y"]


def test_marks_are_options_of_which_one_is_chosen(page):
    settings = page.get_by_role("listbox", name="Settings")
    assert settings.get_by_role("option").count() == len(MEASURED)
    chosen = settings.get_by_role("option", selected=True)
    assert chosen.get_attribute("data-entry") == "3"
    chosen.press("Home")
    assert chosen.count() == 1
    assert chosen.get_attribute("data-entry") == page.evaluate("document.activeElement.dataset.entry") != "3"


def test_switches_change_the_axes(page):
    name = page.locator("#plot .x-name")
    assert name.text_content() == "images per second"
    page.get_by_role("radio", name="MACs").check()
    assert "share of the MACs" in name.text_content()
    before = page.locator("#plot .y-name").text_content()
    page.get_by_role("radio", name="accuracy").check()
    assert page.locator("#plot .y-name").text_content() == "top-1 accuracy" != before


def test_the_front_joins_the_settings_that_none_beats(page):
    drawn = page.locator("#plot .front").get_attribute("d")
    assert drawn.count("L") + 1 == sum(row[6] for row in FIGURES)
    told = [p.get_attribute("aria-label") for p in points(page).all()]
    assert [FIGURES[i][6] for i in range(len(MEASURED))] == ["on the front" in text for text in told]
    assert ["recommended" in text for text in told].index(True) == 3
    page.get_by_role("radio", name="MACs").check()
    told = [
        p.get_attribute("aria-label").partition(",")[0]
        for p in points(page).all()
        if "front" in p.get_attribute("aria-label")
    ]
    level = ["ToMe at 0.65", "Token Pooling at 0.65"]  # 64.9 % and 64.8 % of the MACs are the same
    assert told == ["exact last block", "ToMe at 0.8", level[0], "ToMe at 0.5", level[1]]


def test_a_close_view_leaves_out_what_is_far_below(page):
    page.get_by_role("radio", name="near the front").check()
    assert points(page).count() == len(MEASURED) - 1  # HVT, at 61 %
    assert "1 far below the front is not shown." in page.locator("figcaption").inner_text()


def test_a_single_setting_far_below_does_not_squeeze_the_others(browser, tmp_path):
    near = [dataclasses.replace(entry(row, True), agreement=99.0 + 0.01 * n) for n, row in enumerate(FIGURES[:-1])]
    far = dataclasses.replace(near[4], agreement=15.0, label="Ward")
    made = comparison(entries=(*near, *near[2:], *near[2:], far))
    (tmp_path / "far.html").write_text(render(made), encoding="utf-8")
    with opened(browser, tmp_path / "far.html") as page:
        assert page.get_by_role("radio", name="near the front").is_checked()
        assert "far below the front" in page.locator("figcaption").inner_text()
        page.get_by_role("radio", name="all settings").check()
        assert points(page).count() == len(made.entries)


def test_without_labels_there_is_no_accuracy_to_switch_to(browser, report):
    with opened(browser, report / "unlabeled.html") as page:
        assert page.get_by_role("radio", name="accuracy").count() == 0
        assert page.get_by_role("radio", name="agreement").is_checked()
        assert page.get_by_role("radio", name="MACs").count() == 1
        assert not page.locator("#tokens").is_visible()


def test_the_legend_takes_methods_out(page):
    button = page.locator("#legend").get_by_role("button", name="ToMe")
    button.click()
    assert button.get_attribute("aria-pressed") == "false"
    assert points(page).count() == len(MEASURED) - 3
    button.click()
    assert points(page).count() == len(MEASURED)


def test_pointing_shows_details_and_a_click_keeps_them(page):
    heading = page.locator("#details h3")
    assert heading.inner_text() == "ToMe at 0.65"
    page.locator("#plot [data-entry='5']").hover()
    assert heading.inner_text() == "EViT at 0.65"
    page.locator("h1").hover()
    assert heading.inner_text() == "ToMe at 0.65"
    page.locator("#plot [data-entry='5']").click()
    page.locator("h1").hover()
    assert heading.inner_text() == "EViT at 0.65"
    assert "97.0" in page.locator("#details").inner_text()
    page.get_by_role("button", name="Show its tokens").click()
    assert page.get_by_label("Tokens of").evaluate("e => e.selectedOptions[0].text") == "EViT 0.65"


def test_the_chart_by_keyboard(page):
    page.locator("#chart-zoom input").first.focus()
    page.keyboard.press("Tab")
    focused = "document.activeElement.dataset.entry"
    assert page.evaluate(focused) == "3"  # the chosen one
    by_speed = sorted(range(len(MEASURED)), key=lambda index: MEASURED[index][5])
    page.keyboard.press("Home")
    walked = [int(page.evaluate(focused))]
    for _ in by_speed[1:]:
        page.keyboard.press("ArrowRight")
        walked.append(int(page.evaluate(focused)))
    assert walked == by_speed
    assert page.locator("#details h3").inner_text() == "TopK at 0.5"
    page.keyboard.press("ArrowLeft")
    assert page.evaluate(focused) == str(by_speed[-2])


def test_marks_stand_in_place_at_the_first_paint(browser, report):
    """A print or a screenshot must not show them on their way from a corner."""
    with opened(browser, report / "index.html", reduced_motion="no-preference") as page:
        mark = page.locator("#plot .point:visible").first
        assert mark.evaluate("one => getComputedStyle(one).transitionDuration") == "0s"
        before = mark.bounding_box()
        page.wait_for_timeout(600)
        assert mark.bounding_box() == before
        page.get_by_role("radio", name="MACs").check()  # only a reader's choice moves them
        assert mark.evaluate("one => getComputedStyle(one).transitionDuration") != "0s"


def test_methods_are_named_beside_their_marks(page):
    named = page.locator("#plot text.method").all_text_contents()
    assert named
    assert set(named) <= {row[0] for row in FIGURES}


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"latency_ms": 120.0}, "asked: at most 120 ms a batch"),
        ({"speedup": 1.5}, "asked: at least 1.5\N{MULTIPLICATION SIGN}"),
    ],
)
def test_what_was_asked_is_a_line_in_the_words_of_the_question(browser, tmp_path, asked, words):
    whole = comparison()
    (tmp_path / "asked.html").write_text(
        render(dataclasses.replace(whole, options=whole.options | {"asked": asked})), encoding="utf-8"
    )
    with opened(browser, tmp_path / "asked.html") as page:
        assert page.locator("#plot text.asked").all_text_contents() == [words]
        line = page.locator("#plot line.asked").bounding_box()["x"]
        least = 16 / 0.12 if "latency_ms" in asked else 150.0  # images per second
        for point in points(page).all():
            box = point.locator("use").bounding_box()
            rate = FIGURES[int(point.get_attribute("data-entry"))][5]
            assert (box["x"] + box["width"] / 2 > line) == (rate > least)
