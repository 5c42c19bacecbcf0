"""The report in a real browser: headless Chromium, driven by Playwright. Skips, saying why, where either is missing."""

from __future__ import annotations

import os
import shutil
import warnings
from contextlib import contextmanager

import numpy as np
import pytest

import foveate as fv
from browser.example_report import FIGURES, comparison, gallery, models
from browser.page_probes import CONTRAST, FETCH, NAMELESS, PATCH_COLOURS
from foveate.report.page import render
from foveate.report.page.words import NOTHING
from foveate.report.pictures.tokens import TokenMap
from zoo import DEPTH, GRID, PATCHES, images

READING = "willReadFrequently"  # what Chromium says when these tests read colours off the maps
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
QUIET = (
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)
MEASURED = [row for row in FIGURES if row[5] is not None]
WIDE, PHONE = {"width": 1280, "height": 900}, {"width": 360, "height": 740}


def _skip_aloud(missing: str) -> None:
    warnings.warn(f"The report was NOT tested in a browser: {missing}", stacklevel=2)
    pytest.skip(missing)


@pytest.fixture(scope="module")
def browser():
    program = next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        _skip_aloud("no Chromium was found (Debian: apt-get install chromium).")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        _skip_aloud("the package playwright is missing (pip install playwright; no browser of its own is needed).")
    # Chromium refuses to sandbox itself for root; the page is our own
    flags = [*QUIET, "--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else list(QUIET)
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=program, args=flags)
        yield running
        running.close()


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """Addresses of the report with labels and without."""
    folder, maps = tmp_path_factory.mktemp("report"), gallery()
    (folder / "index.html").write_text(render(comparison(), maps), encoding="utf-8")
    (folder / "unlabelled.html").write_text(render(comparison(labelled=False)), encoding="utf-8")
    return folder


@contextmanager
def opened(browser, path, **options):
    """The page, which may neither complain nor ask for anything but itself."""
    context = browser.new_context(**({"viewport": WIDE, "reduced_motion": "reduce"} | options))
    page, complaints, requests = context.new_page(), [], []
    page.on("console", lambda message: complaints.append(message.text) if READING not in message.text else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: requests.append(request.url))
    page.goto(path.as_uri())
    yield page
    assert complaints == []
    assert [url for url in requests if not url.startswith("data:")] == [path.as_uri()]
    context.close()


@pytest.fixture
def page(browser, report):
    with opened(browser, report / "index.html") as found:
        yield found


def points(page):
    return page.locator("#plot .point:visible")


def columns(page, number):
    return page.locator(f"tbody tr > :nth-child({number})").all_text_contents()


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


def test_large_figures_have_their_names_before_them(page):
    assert page.locator(".figures > div").count() == 3
    assert page.locator(".figures > div > dt + dd").count() == 3


def test_the_shown_picture_is_named(page):
    for button in page.locator("#thumbnails button").all():
        button.click()
        assert page.locator("#picture-name").text_content() == button.get_attribute("aria-label")


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


def test_without_labels_there_is_no_accuracy_to_switch_to(browser, report):
    with opened(browser, report / "unlabelled.html") as page:
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
    page.get_by_role("button", name="See its tokens").click()
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


def test_headings_sort_the_table(page):
    original = columns(page, 1)
    button = page.locator("thead").get_by_role("button", name="Images/s")
    place = page.locator("thead button").all_text_contents().index("Images/s") + 1
    button.click()
    assert page.locator("[aria-sort]").count() == 1
    assert page.locator("th[aria-sort=descending]").inner_text().startswith("Images/s")
    fastest = sorted((row[5] for row in MEASURED), reverse=True)
    expected = [f"{rate:.0f}" if rate >= 100 else f"{rate:.1f}" for rate in fastest]
    assert columns(page, place) == [*expected, NOTHING]
    button.press("Enter")
    assert page.locator("th[aria-sort=ascending]").count() == 1
    assert columns(page, place) == [*expected[::-1], NOTHING]  # what is missing stays at the end
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


def colours(page, pane):
    return np.array(page.evaluate(PATCH_COLOURS, [pane, *GRID]))[:, :3].astype(int)


def choose(page, model, position, picture=0):
    page.get_by_label("Tokens of").select_option(model)
    page.locator("#thumbnails button").nth(picture).click()
    page.locator("#block").fill(str(position))


@pytest.mark.parametrize("model", list(models()))
def test_the_map_changes_just_the_patches_that_the_trace_names(page, model):
    trace = fv.trace(models()[model], images())
    choose(page, model, 0, picture=1)
    assert (colours(page, 0) == colours(page, 1)).all()
    for position in range(1, DEPTH + 1):
        choose(page, model, position, picture=1)
        changed = (np.abs(colours(page, 0) - colours(page, 1)) > 3).any(axis=1)
        held = TokenMap.of(trace, position - 1, 1)
        expected = (held.dropped | held.shared).flatten().numpy()
        assert not (changed & ~expected).any()
        assert (expected & ~changed).sum() <= 2  # a patch may happen to have the colour of its token's mean
        assert expected.any() == (position in (2, 3) if model == "Keys 0.8" else position >= 2)


def test_the_slider_moves_the_map_and_says_so(page):
    choose(page, "ToMe 0.65", 1)
    slider = page.get_by_label("Block", exact=True)
    assert slider.get_attribute("aria-valuetext") == f"after block 0: {PATCHES} of {PATCHES} tokens"
    plain = colours(page, 0)
    slider.focus()
    page.keyboard.press("ArrowRight")
    assert slider.get_attribute("aria-valuetext") == f"after block 1: 22 of {PATCHES} tokens"
    assert page.locator("#panes p").first.inner_text() == f"after block 1: 22 of {PATCHES} tokens"
    once = colours(page, 0)
    assert (once != plain).any()
    page.keyboard.press("ArrowRight")
    assert (colours(page, 0) != once).any()
    page.keyboard.press("Home")
    assert (colours(page, 0) == colours(page, 1)).all()
    choose(page, "Keys 0.8", 2)
    assert slider.get_attribute("aria-valuetext") == f"keys in block 1: 22 of {PATCHES}; the tokens stay"
    choose(page, "TopK 0.5", DEPTH)
    assert slider.get_attribute("aria-valuetext") == f"in block 3: 14 of {PATCHES} tokens, then none"


def test_a_second_model_stands_beside_the_first(page):
    choose(page, "ToMe 0.65", DEPTH)
    page.get_by_label("beside").select_option("TopK 0.5")
    assert (colours(page, 0) != colours(page, 1)).any()
    assert page.locator("#block").get_attribute("aria-valuetext").count("14 of 36") == 2
    page.get_by_label("beside").select_option("nothing")
    assert page.locator("#panes canvas:visible").count() == 1


def test_pointing_at_a_patch_shows_all_that_its_token_stands_for(page):
    choose(page, "ToMe 0.65", DEPTH)
    held = TokenMap.of(fv.trace(models()["ToMe 0.65"], images()), DEPTH - 1, 0)
    owner = held.owner.flatten().numpy()
    patch = int(np.flatnonzero(held.shared.flatten().numpy())[0])
    mates = owner == owner[patch]
    before = colours(page, 0)
    canvas = page.locator("#panes canvas").first
    box = canvas.bounding_box()
    middle = {"x": (patch % 6 + 0.5) * box["width"] / 6, "y": (patch // 6 + 0.5) * box["height"] / 6}
    canvas.hover(position=middle)
    said = page.locator("#token-words").inner_text()
    assert f"row {patch // 6 + 1}, column {patch % 6 + 1} shares its token with {mates.sum() - 1} other" in said
    same = (colours(page, 0) == before).all(axis=1)
    assert (same == mates).all()  # the others are darkened
    page.locator("h1").hover()
    assert page.locator("#token-words").inner_text() == ""
    assert (colours(page, 0) == before).all()


def test_the_map_by_keyboard(page):
    choose(page, "TopK 0.5", DEPTH)
    held = TokenMap.of(fv.trace(models()["TopK 0.5"], images()), DEPTH - 1, 0)
    page.locator("#panes canvas").first.focus()
    for key, row, column in (("ArrowDown", 3, 3), ("ArrowRight", 3, 4), ("ArrowUp", 2, 4), ("ArrowLeft", 2, 3)):
        page.keyboard.press(key)
        fate = "was dropped" if held.dropped[row, column] else "has a token of its own"
        assert f"row {row + 1}, column {column + 1} {fate}" in page.locator("#token-words").inner_text()
    page.keyboard.press("Escape")
    assert page.locator("#token-words").inner_text() == ""


def test_playing_walks_to_the_last_block(page):
    choose(page, "ToMe 0.65", DEPTH - 1)
    page.get_by_role("button", name="Play").click()
    assert page.get_by_role("button", name="Pause").is_visible()
    page.locator(f"#block[aria-valuetext^='after block {DEPTH - 1}']").wait_for()
    page.get_by_role("button", name="Play").wait_for()


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
