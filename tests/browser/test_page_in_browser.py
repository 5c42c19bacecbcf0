"""The report as a whole and its table, in a real browser."""

from __future__ import annotations

import pytest

from browser.example_report import FIGURES, comparison
from browser.opening import MEASURED, PHONE, opened, points
from browser.page_probes import CONTRAST, FETCH, NAMELESS
from foveate.report.page.words import NOTHING


def columns(page, number):
    return page.locator(f"tbody tr > :nth-child({number})").all_text_contents()


def test_large_figures_have_their_names_before_them(page):
    assert page.locator(".figures > div").count() == 3
    assert page.locator(".figures > div > dt + dd").count() == 3


def test_headings_sort_the_table(page):
    original = columns(page, 1)
    button = page.locator("thead").get_by_role("button", name="Images/s")
    place = page.locator("thead button").all_text_contents().index("Images/s") + 1
    button.click()
    assert page.locator("[aria-sort]").count() == 1
    assert page.locator("th[aria-sort=descending]").inner_text().startswith("Images/s")
    fastest = sorted((row[5] for row in MEASURED), reverse=True)
    expected = [f"{rate:.0f}" if rate >= 100 else f"{rate:.1f}" for rate in fastest]
    assert [text.partition(" (")[0] for text in columns(page, place)] == [*expected, NOTHING]
    assert columns(page, place)[0].endswith("ms)")  # the time of one image beside it
    button.press("Enter")
    assert page.locator("th[aria-sort=ascending]").count() == 1
    assert [text.partition(" (")[0] for text in columns(page, place)] == [
        *expected[::-1],
        NOTHING,
    ]  # what is missing stays at the end
    page.locator("thead").get_by_role("button", name="Method").click()
    assert columns(page, 1) != original
    assert [text.removesuffix("front") for text in columns(page, 1)][:2] == ["DynamicViT", "EViT"]


def test_every_column_sorts(page):
    buttons = page.locator("thead button")
    assert buttons.count() == 11
    for column in [*range(11), *range(11)[::-1]]:  # the last one twice: both ways
        buttons.nth(column).click()
        values = page.locator(f"tbody tr > :nth-child({column + 1})").evaluate_all(
            "cells => cells.map(c => c.dataset.value)"
        )
        known = [float(v) if column else v.lower() for v in values if v]
        rises = page.locator("[aria-sort]").get_attribute("aria-sort") == "ascending"
        assert known == sorted(known, reverse=not rises)
        assert values[len(known) :] == [""] * (len(values) - len(known))


def test_a_tap_shows_a_token_and_nothing_scrolls_sideways_on_a_phone(browser, report):
    with opened(browser, report / "index.html", viewport=PHONE, has_touch=True, is_mobile=True) as page:
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        assert page.evaluate("document.querySelector('.scroll').scrollWidth > 360")  # the table scrolls in its box
        assert points(page).count() == len(MEASURED)
        page.locator("#panes canvas").first.tap()
        assert "the patch in row" in page.locator("#token-words").inner_text()
        page.locator("#plot [data-entry='4']").tap()
        assert page.locator("#details h3").inner_text() == "ToMe at 0.5"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_follow_the_reader_and_can_be_read(browser, report, scheme):
    with opened(browser, report / "index.html", color_scheme=scheme) as page:
        page.locator("#legend button").nth(2).click()
        page.locator("details summary").click()
        red, green, blue = page.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)")
        assert (max(red, green, blue) < 60) if scheme == "dark" else (min(red, green, blue) > 230)
        found = page.evaluate(CONTRAST)
        assert len(found) > 100
        assert [text for ratio, text in found if ratio < 4.5] == []


def test_every_control_has_a_name(page):
    assert page.evaluate(NAMELESS) == []
    assert page.locator("h1").count() == 1
    assert page.evaluate("document.documentElement.lang") == "en"


def test_focus_is_seen(page):
    page.keyboard.press("Tab")
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"


def test_the_two_lines_can_be_copied(page):
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.locator("header .copy").click()
    page.locator("header .copy", has_text="Copied").wait_for()
    assert page.evaluate("navigator.clipboard.readText()") == comparison().recommendation.python


def test_the_policy_forbids_all_fetching(browser, report):
    context = browser.new_context()
    page = context.new_page()
    page.goto((report / "index.html").as_uri())
    assert page.evaluate(FETCH) == "img-src"
    context.close()


def test_without_a_script_the_decision_and_the_table_are_there(browser, report):
    with opened(browser, report / "index.html", java_script_enabled=False) as page:
        assert (
            page.locator("h1").inner_text().replace("\N{NARROW NO-BREAK SPACE}", " ")
            == comparison().recommendation.sentence
        )
        assert page.locator("tbody tr").count() == len(FIGURES)
        assert page.get_by_text("need JavaScript").is_visible()
        assert not page.locator("#chart").is_visible()
        assert not page.locator("header .copy").is_visible()


def test_paper_is_white_and_holds_no_controls(browser, report):
    with opened(browser, report / "index.html", color_scheme="dark") as page:
        page.emulate_media(media="print", color_scheme="dark")
        assert page.evaluate("getComputedStyle(document.documentElement).getPropertyValue('--paper')") == "#fcfcfa"
        assert not page.locator("#chart .controls").is_visible()
        assert page.locator("tbody tr").first.is_visible()
        assert len(page.pdf()) > 10_000


@pytest.mark.parametrize("name", ["index", "in_runtimes", "segmentation"])
def test_no_column_is_cut_on_a_wide_screen(browser, report, name):
    with opened(browser, report / f"{name}.html") as page:
        for wide, seen in page.locator(".scroll").evaluate_all("all => all.map(b => [b.scrollWidth, b.clientWidth])"):
            assert wide <= seen


def test_other_runtimes_leave_the_chart_the_maps_and_the_sorting_alone(browser, report):
    with opened(browser, report / "in_runtimes.html") as page:
        assert points(page).count() == len(MEASURED)
        assert page.locator("#tokens").is_visible()
        served = page.locator(".served tbody tr").all_text_contents()
        page.locator("thead").get_by_role("button", name="Images/s").click()
        assert page.locator(".served tbody tr").all_text_contents() == served
        names = page.locator(".served svg text.method").all_text_contents()
        assert sorted(names) == ["ToMe", "TopK", "unreduced"]  # each once, beside its fastest mark


def test_a_note_that_the_sentence_has_is_not_repeated(browser, report):
    with opened(browser, report / "segmentation.html") as page:
        assert page.locator("header").inner_text().count("another data set") == 1
