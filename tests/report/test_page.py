"""The report's page as text: it holds everything, fetches nothing, and no name can break out of it."""

import base64
import dataclasses
import io
import json
import math
import re

import numpy as np
import pytest
import torch
from PIL import Image

import foveate as fv
from browser.example_report import FIGURES, comparison, gallery, models, pictures
from foveate.core import Assignment
from foveate.drawing.tokens import TokenMap
from foveate.evaluation.columns import BY_NAME
from foveate.methods import Site
from foveate.report.page import collect_gallery, render, words
from foveate.report.page.gallery import LARGEST_SIDE, Stage, _stages, named_by_first_patch
from foveate.report.page.words import cell
from zoo import DEPTH, PATCHES, defaults, images, reduced

EVIL = '</script><img src=x onerror="alert(1)"><!--\u2028&amp;{{version}}'


@pytest.fixture(scope="module")
def maps():
    return gallery()


@pytest.fixture(scope="module")
def page(maps):
    return render(comparison(), maps)


@pytest.fixture(scope="module")
def plain():
    """The page without token maps."""
    return render(comparison())


def embedded(page):
    (text,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    return json.loads(text)


def followed(stages, block, patches=PATCHES):
    """The token of each patch at a block, as the page's script works it out."""
    owner, left = list(range(patches)), patches
    for stage in stages:
        if (stage.block < block and not stage.keys) or stage.block == block:
            for token, *moved in stage.moved:
                for patch in moved:
                    owner[patch] = token
            left = stage.left
    return owner, left


def heaviest(assignment, image, batch):
    """The token each patch weighs most in, by plain loops; -1 where it is in none."""
    edges = (edge[image].tolist() for edge in assignment.edges(batch, torch.device("cpu")))
    held = [{} for _ in range(assignment.num_in)]
    for patch, token, share, present in zip(*edges, strict=True):
        if present:
            held[patch][token] = held[patch].get(token, 0.0) + share
    return [max(tokens, key=tokens.get) if tokens else -1 for tokens in held]


def together(owner):
    """Which patches share a token, whatever the tokens are called: each patch with the first of its token, or -1."""
    return [token if token < 0 else owner.index(token) for token in owner]


WAYS = [*defaults(), fv.FreeSlice(site=Site.KV)]


@pytest.mark.parametrize("method", WAYS, ids=lambda method: f"{method.name}-{method.site.value}")
def test_a_gallery_follows_every_patch_as_the_trace_does(method):
    model, batch = reduced("timm-cls", method), images()
    trace = fv.trace(model, batch)
    found = collect_gallery({"one": model}, batch, pictures(3), ["a", "b", "c"])
    (of_model,) = found.models
    assert (of_model.grid, of_model.blocks, of_model.ends) == (trace.grid, DEPTH, False)
    for image, walk in enumerate(of_model.walks):
        for block in range(DEPTH):
            keyed = trace.key_steps[block] is not None
            expected = trace.keys(block) if keyed else trace.after(block)
            owner, left = followed(walk.stages, block)
            overlapping = TokenMap.of(trace, block, image).overlaps
            slow = trace.owner(block)[image].tolist() if overlapping else heaviest(expected, image, len(batch))
            assert together(owner) == together(slow)
            assert left == expected.num_out
        last = max((stage.block for stage in walk.stages if stage.keys), default=-1)
        seen = TokenMap.of(trace, last, image)
        assert (walk.fuses, walk.overlaps) == (seen.fuses, seen.overlaps)


def test_only_what_changes_is_stored():
    stages = collect_gallery(models(), images(), pictures(3), "abc").models
    tome = stages[0].walks[0].stages
    assert [stage.block for stage in tome] == [1, 2]
    assert all(len(group) >= 2 for stage in tome for group in stage.moved)
    names = {token for stage in tome for token, *_ in stage.moved}
    assert names <= set(range(PATCHES))
    topk = stages[2]
    assert topk.ends
    assert sorted(p for s in topk.walks[0].stages for group in s.moved for p in group[1:]) == sorted(
        set(range(PATCHES)) - {p for p, t in enumerate(followed(topk.walks[0].stages, DEPTH)[0]) if t >= 0}
    )
    keys = stages[3].walks[0].stages
    assert [(stage.keys, stage.block) for stage in keys] == [(True, 1), (True, 2)]


def test_tokens_are_named_by_their_first_patch():
    owner = torch.tensor([[4, -1, 2, 4, 2], [0, 0, 0, 1, -1]])
    assert named_by_first_patch(owner).tolist() == [[0, -1, 2, 0, 2], [0, 0, 0, 3, -1]]
    assert named_by_first_patch(torch.full((1, 3), -1)).tolist() == [[-1, -1, -1]]


def test_a_block_that_changes_nothing_leaves_no_stage():
    same = Assignment(None, None, torch.ones(1, 4), 4, 4)
    drops = fv.Trace((2, 2), 1, 1, (4, 4), (same, None), (None, None), torch.device("cpu"))
    assert list(_stages(drops)) == []
    key = Assignment(torch.tensor([[0, 3]]), None, None, 4, 2)
    keyed = fv.Trace((2, 2), 1, 1, (4, 4), (None, None), (None, key), torch.device("cpu"))
    assert list(_stages(keyed)) == [[Stage(1, 2, True, ((-1, 1, 2),))]]


def test_pictures_are_small_and_still_themselves(maps):
    large = Image.new("RGB", (900, 900), (200, 30, 30))
    found = collect_gallery({}, images(1), [large], ["large.png"])
    (shown,) = found.pictures
    assert (shown.width, shown.height, shown.label) == (LARGEST_SIDE, LARGEST_SIDE, None)
    held = Image.open(io.BytesIO(base64.b64decode(shown.source.partition(",")[2])))
    assert np.abs(np.array(held).astype(int) - (200, 30, 30)).max() < 4
    assert large.size == (900, 900)
    assert [one.label for one in maps.pictures] == ["kind first.png", "kind second.png", "kind third.png"]
    json.dumps(maps.as_dict())


def test_a_gallery_that_does_not_fit_is_refused_in_words():
    with pytest.raises(ValueError, match=r"3 images but 2 pictures"):
        collect_gallery({}, images(3), pictures(2), "abc")
    with pytest.raises(ValueError, match=r"3 images but 1 labels"):
        collect_gallery({}, images(3), pictures(3), "abc", ["x"])
    with pytest.raises(ValueError, match=r"wide.png is 480 x 240 pixels, but the model sees 24 x 24.*crop"):
        collect_gallery({}, images(1), [Image.new("RGB", (480, 240))], ["wide.png"])


def test_a_model_in_training_stays_in_training():
    model = reduced("timm-cls", fv.ToMe()).train()
    collect_gallery({"x": model}, images(1), pictures(1), ["a"])
    assert model.training


def test_what_the_page_holds_is_what_it_was_given(maps, page, plain):
    told = embedded(page)
    assert told["comparison"] == json.loads(json.dumps(comparison().as_dict()))
    assert told["gallery"] == json.loads(json.dumps(maps.as_dict()))
    assert embedded(plain)["gallery"] is None


def test_every_setting_has_its_row_without_any_script(page):
    rows = re.findall(r'<tr data-entry="(\d+)" class="(.*?)">(.*?)</tr>', page)
    assert [int(index) for index, _, _ in rows] == list(range(len(FIGURES)))
    for (_, marks, row), (label, kind, *_, pareto) in zip(rows, FIGURES, strict=True):
        assert f"#mark-{kind}" in row
        assert label in row
        assert ("front" in marks.split()) == pareto == (">front<" in row)
    assert [index for index, marks, _ in rows if "recommended" in marks] == ["3"]
    assert "99.0\N{NARROW NO-BREAK SPACE}%" in rows[3][2]
    assert "1.42\N{MULTIPLICATION SIGN}" in rows[3][2]
    assert "(1.38\N{EN DASH}1.45)" in rows[3][2]
    assert "37.5\N{NARROW NO-BREAK SPACE}%" in rows[3][2]
    assert "reaches 0.51 of the MACs only." in page
    assert "ToMe at 0.65 is 1.4x as fast" in page
    assert "A processor" in page
    assert "some/folder" in page
    assert f"foveate {fv.__version__}" in page


def test_columns_of_which_nothing_is_known_are_left_out(plain):
    without = render(comparison(labeled=False))
    fields = re.findall(r'data-field="(\w+)"', plain)
    common = ["images_per_second", "speed_up", "mac_ratio", "kl", "overhead", "on_object"]
    assert fields == ["label", "budget", "agreement", "top1", "top5", *common]
    assert re.findall(r'data-field="(\w+)"', without) == ["label", "budget", "agreement", *common]
    assert all(one["top1"] is None for one in embedded(without)["comparison"]["entries"])


def test_the_page_fetches_nothing(page):
    assert not re.findall(r"https?:|//[a-z]+\.[a-z]", re.sub(r"base64,[\w+/=]+", "", page))
    assert not re.findall(r"(?:src|href)=\"(?!#|data:)", page)
    assert not re.findall(r"@import|url\(|fetch\(|XMLHttpRequest|WebSocket|<style[^>]+>|\sstyle=\"", page)
    (policy,) = re.findall(r'Content-Security-Policy" content="(.*?)"', page)
    assert policy.startswith("default-src 'none'; img-src data:; ")
    assert "unsafe" not in policy


def test_names_cannot_break_out_of_the_page():
    given = comparison()
    evil = comparison(
        model=given.model | {"name": EVIL},
        data=given.data | {"source": EVIL, "note": EVIL},
        environment={EVIL: EVIL},
        options={EVIL: [EVIL]},
    )
    changed = json.loads(json.dumps(evil.as_dict()))
    for part in [*changed["entries"], *changed["refused"]]:
        part.update({key: EVIL for key in ("method", "label", "python", "reason") if key in part})
    changed["recommendation"].update(sentence=EVIL, python=EVIL)
    maps = collect_gallery({EVIL: models()["ToMe 0.65"]}, images(1), pictures(1), [EVIL], [EVIL])
    page = render(type("Told", (), {"as_dict": lambda self: changed})(), maps)
    assert "<img src=x" not in page
    assert page.count("</script>") == 2
    assert page.count("<!--") == 0
    assert page.count("{{version}}") > 10  # left as they are: text of a user's is not a place to fill
    told = embedded(page)
    assert told["comparison"]["model"]["name"] == EVIL
    assert told["gallery"]["models"][0]["label"] == EVIL


def test_notices_say_what_a_reader_must_know(plain):
    assert 'class="notice">The run' not in plain
    assert "built-in demonstration" not in plain
    demonstration = render(comparison(demonstration=True))
    assert "built-in demonstration" in demonstration
    assert "says nothing about your model" in demonstration
    assert "The run was interrupted" in render(comparison(complete=False))
    noted = comparison(data=comparison().data | {"note": "The labels do not match."})
    assert "The labels do not match." in render(noted)


def test_nothing_worth_it_and_nothing_measured_still_make_a_page():
    given = comparison()
    nothing = type(given.recommendation)(None, "Nothing is worth it.", "")
    page = render(comparison(recommendation=nothing, entries=given.entries[:1], refused=()))
    assert "Nothing is worth it." in page
    assert 'class="figures"' not in page
    assert 'id="recommended-python"' not in page
    assert "Not measured" not in page


def test_the_first_sentence_is_the_headline():
    given = comparison().recommendation
    said = type(given)(3, "It is 1.4x faster, at 99.0 % & more. Seen on 20 images. Use more.", given.python)
    page = render(comparison(recommendation=said))
    assert "<h1>It is 1.4x faster, at 99.0\N{NARROW NO-BREAK SPACE}% &amp; more.</h1>" in page
    assert ">Seen on 20 images. Use more.</p>" in page


def test_what_is_not_a_number_is_missing():
    given = comparison().as_dict()
    given["entries"][2].update(kl=math.nan, images_per_second=math.inf)
    told = embedded(render(type("Told", (), {"as_dict": lambda self: given})()))
    assert told["comparison"]["entries"][2]["kl"] is None
    assert told["comparison"]["entries"][2]["images_per_second"] is None


def test_only_what_is_whole_is_called_so():
    gap = "\N{NARROW NO-BREAK SPACE}"

    def percent(value):
        return cell(BY_NAME["agreement"], value)

    def divergence(value):
        return cell(BY_NAME["kl"], value)

    assert percent(99.97) == f"99.9{gap}%"
    assert percent(100.0) == f"100.0{gap}%"
    assert percent(99.1) == f"99.1{gap}%"
    assert percent(None) == percent(math.nan) == "\N{EN DASH}"
    assert (divergence(0.0), divergence(0.00001), divergence(0.12345)) == ("0", f"<{gap}0.0001", "0.1235")


def test_absolute_paths_stay_at_home():
    told = comparison().as_dict()
    told["data"]["source"] = "/home/ada/photos/holiday"
    told["model"]["name"] = "/home/ada/runs/finetune/best"
    page = render(type("Told", (), {"as_dict": lambda self: told})())
    assert "/home/ada" not in page
    assert "\N{HORIZONTAL ELLIPSIS}/holiday" in page


@pytest.mark.parametrize("text", ["https://a.org/b/c", "images/s", "runs/a/best", "1/2", "fv.load('runs/a')"])
def test_other_texts_keep_their_slashes(text):
    assert words.without_folders(text) == text


def test_noise_is_said_as_large_as_the_figure_it_spoils():
    quiet = comparison()
    noisy = dataclasses.replace(quiet, environment=quiet.environment | {"drift": 2.1})
    chosen = quiet.entries[quiet.recommendation.entry]
    low, high = chosen.speed_up_quartiles
    headlines = [re.findall(r"<h1>(.*?)</h1>", render(one))[0] for one in (quiet, noisy)]
    assert headlines[1] == f"{headlines[0]} The machine was not quiet."
    assert '<div class="noisy"><dt>as fast as the unreduced model, not to be trusted' in render(noisy)
    assert f"<dd>{low:.2f}\N{EN DASH}{high:.2f}" in render(noisy)
    assert 'class="noisy"' not in render(quiet)
    wide = dataclasses.replace(chosen, speed_up_quartiles=(low, 1.3 * low))
    entries = tuple(wide if one is chosen else one for one in quiet.entries)
    assert "The machine was not quiet.</h1>" in render(dataclasses.replace(quiet, entries=entries))
