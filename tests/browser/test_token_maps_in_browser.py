"""The maps of the report's tokens, in a real browser."""

from __future__ import annotations

import numpy as np
import pytest

import foveate as fv
from browser.example_report import models
from browser.page_probes import PATCH_COLOURS
from foveate.drawing.tokens import TokenMap
from zoo import DEPTH, GRID, PATCHES, images


def test_the_shown_picture_is_named(page):
    for button in page.locator("#thumbnails button").all():
        button.click()
        assert page.locator("#picture-name").text_content() == button.get_attribute("aria-label")


# a picture is decoded in the background; the label changes when it is drawn
DRAWN = "name => [...document.querySelectorAll('#panes canvas')].every(c => c.ariaLabel.startsWith(name))"


def colours(page, pane):
    return np.array(page.evaluate(PATCH_COLOURS, [pane, *GRID]))[:, :3].astype(int)


def choose(page, model, position, picture=0):
    page.get_by_label("Tokens of").select_option(model)
    button = page.locator("#thumbnails button").nth(picture)
    button.click()
    page.locator("#block").fill(str(position))
    page.wait_for_function(DRAWN, arg=button.get_attribute("aria-label").split(",")[0])


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
    assert slider.get_attribute("aria-valuetext") == f"keys in block 1: 22 of {PATCHES}; all tokens stay"
    choose(page, "TopK 0.5", DEPTH)
    assert slider.get_attribute("aria-valuetext") == f"in block 3: 14 of {PATCHES} tokens, then none"


def test_a_second_model_stands_beside_the_first(page):
    choose(page, "ToMe 0.65", DEPTH)
    page.get_by_label("next to").select_option("TopK 0.5")
    assert (colours(page, 0) != colours(page, 1)).any()
    assert page.locator("#block").get_attribute("aria-valuetext").count("14 of 36") == 2
    page.get_by_label("next to").select_option("nothing")
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
