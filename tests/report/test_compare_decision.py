"""From figures to a decision: the value, the Pareto front, the rule of recommendation, what can be asked."""

import dataclasses
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveate.report.compare import Comparison, Entry, Recommendation, Refused
from foveate.report.compare.question import milliseconds
from foveate.report.compare.recommend import recommend, wilson_lower, with_pareto
from foveate.tuning.constraints import Constraints


def entry(speed=1.0, agreement=100.0, *, method="tome", budget=0.65, top1=None, **changes):
    """One setting; ``speed`` is over an unreduced model of 100 images per second."""
    values = {
        "method": method,
        "label": method.title(),
        "kind": "merge",
        "budget": budget,
        "counts": (9, 4, 4),
        "exact_last_block": True,
        "macs": 650,
        "mac_ratio": 0.65,
        "params": 10,
        "top1": top1,
        "top5": top1,
        "agreement": agreement,
        "kl": 0.1,
        "images_per_second": None if speed is None else 100 * speed,
        "speed_up": speed,
        "speed_up_quartiles": None if speed is None else (speed - 0.1, speed + 0.1),
        "efficiency": 0.9,
        "overhead": 0.1,
        "memory_mib": 3.0,
        "on_object": None,
        "pareto": False,
        "python": "import foveate as fv\nfv.reduce_(model, fv.ToMe(), fv.Budget(0.65))",
    }
    return Entry(**(values | changes))


def unreduced(**changes):
    return entry(1.0, 100.0, method="unreduced", budget=None, kind="none", python="", mac_ratio=1.0, **changes)


def comparison(*entries, **changes):
    values = {
        "model": {"name": "vit", "macs": 1000},
        "data": {
            "source": "photos",
            "images": 500,
            "labeled": False,
            "note": "no labels",
            "broken": 0,
            "split": "all",
        },
        "options": {"batch_size": 4, "budgets": [0.65]},
        "environment": {"cpu": "some", "threads": 1, "device": "cpu"},
        "demonstration": False,
        "complete": True,
        "entries": (unreduced(), *entries),
        "refused": (Refused("evit", "EViT", None, "no class token"),),
        "recommendation": Recommendation(1, "Do it.", "import foveate as fv\nfv.reduce_(model)"),
    }
    return Comparison(**(values | changes))


numbers = st.floats(0.5, 4, allow_nan=False) | st.sampled_from([1.0, 1.5, 2.0])
points = st.lists(st.tuples(numbers, st.sampled_from([80.0, 90.0, 95.0, 99.0, 100.0])), min_size=1, max_size=8)


@given(points)
def test_the_front_is_what_no_other_beats(points):
    marked = with_pareto([entry(*point) for point in points])
    for one, (speed, agreement) in zip(marked, points, strict=True):
        others = [(s, a) for s, a in points if (s, a) != (speed, agreement)]
        assert one.pareto == (not any(s >= speed and a >= agreement for s, a in others))
    assert any(one.pareto for one in marked)


def test_without_speeds_the_front_is_drawn_over_macs():
    cheap, dear, worse = (entry(None, a, mac_ratio=m) for m, a in ((0.5, 90.0), (0.8, 99.0), (0.8, 95.0)))
    assert [one.pareto for one in with_pareto([cheap, dear, worse])] == [True, True, False]


def test_what_was_not_timed_is_not_on_a_front_of_speeds():
    assert [one.pareto for one in with_pareto([unreduced(), entry(None, 100.0)])] == [True, False]


@pytest.mark.parametrize(("agreeing", "images"), [(99, 100), (500, 500), (0, 10), (480, 500), (1, 2)])
def test_the_plausible_least_solves_wilsons_equation(agreeing, images):
    """The bound is the share p at which the seen share is 1.96 standard deviations of p's own away."""
    seen, p = agreeing / images, wilson_lower(100 * agreeing / images, images) / 100
    assert 0 <= p <= seen
    assert seen - p == pytest.approx(1.959964 * math.sqrt(p * (1 - p) / images), abs=1e-9)


def test_the_fastest_of_the_most_faithful_tier_is_recommended():
    entries = [unreduced(), entry(1.3, 99.5), entry(1.6, 99.0), entry(2.0, 98.5), entry(3.0, 90.0)]
    assert recommend(entries, 1000).entry == 2
    assert recommend([entries[0], *entries[3:]], 1000).entry == 1  # 98 % where 99 % is not to be had
    assert recommend([entries[0], entry(1.5, 98.0), entry(2.0, 97.9)], 1000).entry == 1
    assert recommend([entries[0], entry(1.5, 95.0), entry(2.0, 94.9)], 1000).entry == 1


def test_a_small_gain_is_recommended_only_where_it_is_free():
    free, costly = entry(1.06, 100.0, kind="none", budget=None), entry(1.5, 94.9)
    assert recommend([unreduced(), free, costly], 1000).entry == 1
    assert recommend([unreduced(), free, entry(1.5, 98.0)], 1000).entry == 2
    assert recommend([unreduced(), entry(1.06, 98.0)], 1000).entry is None


def test_the_sentence_says_what_agreement_counts():
    alike = {"metrics": {"cosine": 0.9871}}
    found = recommend([unreduced(), entry(1.5, 99.17, **alike)], 1000, of="nearest images").sentence
    assert "99.2 % of nearest images unchanged (embeddings have a cosine of 0.987 to" in found
    lossy = recommend([unreduced(), entry(1.5, 90.0, **alike)], 1000, of="nearest images").sentence
    assert "changes more than 5 % of the nearest images" in lossy
    assert "decisions" not in found + lossy


def test_the_baseline_is_never_recommended():
    entries = [unreduced(), entry(3.0, 100.0, method="random"), entry(1.3, 99.0)]
    assert recommend(entries, 1000).entry == 2
    only = recommend(entries[:2], 1000)
    assert (only.entry, only.sentence) == (None, "Only baselines were measured, and a baseline is never recommended.")


def test_the_sentence_says_gain_loss_and_certainty():
    found = recommend([unreduced(top1=76.04), entry(1.523, 99.17, top1=75.5)], 1000)
    assert found.sentence == (
        "Tome at 0.65 of the MACs is 1.52x as fast, with 99.2 % of decisions unchanged "
        "(top-1 75.5 % instead of 76.0 %). Measured on 1,000 images; "
        "on similar images, agreement may be as low as 98.4 %."
    )
    assert found.python.startswith("import foveate as fv\nfv.reduce_(model")
    same = recommend([unreduced(top1=76.04), entry(1.523, 99.17, top1=76.0)], 1000)
    assert "(top-1 stays 76.0 %)" in same.sentence


def test_a_machine_that_was_busy_is_told_of_with_every_decision():
    entries = [unreduced(), entry(1.5, 100.0)]
    for some in (entries, [unreduced(), entry(1.1, 60.0)]):
        assert (
            "not steady: the speed of the unreduced model varied by 1.9x" in recommend(some, 1000, drift=1.9).sentence
        )
        assert "do not trust" not in recommend(some, 1000, drift=1.9).sentence
        assert "varied by 2.1x, so settings were judged by their MACs" in recommend(some, 1000, drift=2.1).sentence
        assert "The machine" not in recommend(some, 1000, drift=1.2).sentence


def test_on_a_busy_machine_a_setting_is_chosen_by_its_macs_and_no_speed_is_claimed():
    half, lucky = entry(1.4, 99.5, budget=0.5, mac_ratio=0.5), entry(2.85, 99.5, budget=0.8, mac_ratio=0.8)
    entries = [unreduced(), half, lucky]
    assert recommend(entries, 1000, drift=1.9).entry == 2
    busy = recommend(entries, 1000, drift=2.1)
    assert busy.entry == 1
    assert busy.sentence.startswith("Tome at 0.5 of the MACs saves 50 % of the MACs, with 99.5 % of decisions")
    assert "as fast" not in busy.sentence
    nothing = recommend([unreduced(), entry(3.0, 99.5, mac_ratio=0.9, budget=0.9)], 1000, drift=2.1)
    assert nothing.entry == 1  # worth it for free: 99 % at 1.11 times by MACs
    assert recommend([unreduced(), entry(3.0, 96.0, mac_ratio=0.9)], 1000, drift=2.1).entry is None
    unmet = recommend(entries, 1000, drift=2.1, asked=Constraints(agreement=0.999)).sentence
    assert "The nearest, Tome at 0.5 of the MACs, saves 50 % of the MACs, with 99.5 %" in unmet
    assert " ms " not in unmet


def test_an_asked_speed_is_judged_by_what_was_timed_even_on_a_busy_machine():
    entries = [unreduced(), entry(1.4, 99.5, mac_ratio=0.5), entry(2.85, 99.5, mac_ratio=0.8)]
    found = recommend(entries, 1000, drift=2.1, asked=Constraints(speedup=2))
    assert found.entry == 2
    assert "so do not trust these speeds" in found.sentence


def test_few_images_are_called_few():
    entries = [unreduced(), entry(1.5, 100.0)]
    assert "few images" in recommend(entries, 60).sentence
    assert "few images" not in recommend(entries, 600).sentence


def test_almost_all_is_not_called_all():
    assert "99.9 % of decisions" in recommend([unreduced(), entry(1.5, 99.98)], 5000).sentence


def test_where_nothing_is_worth_it_the_sentence_says_what_came_nearest():
    slow = recommend([unreduced(), entry(0.9, 100.0), entry(1.1, 60.0)], 1000)
    assert (slow.entry, slow.python) == (None, "")
    assert "at least 1.2x the speed of the unreduced model is required" in slow.sentence
    assert "and the fastest, Tome at 0.65 of the MACs, is 1.10x as fast." in slow.sentence
    lossy = recommend([unreduced(), entry(1.5, 90.0), entry(2.0, 80.0)], 1000)
    assert lossy.entry is None
    assert "changes more than 5 % of the decisions" in lossy.sentence
    assert "1.50x as fast, with 90.0 %" in lossy.sentence


def test_without_speeds_nothing_is_recommended():
    assert recommend([unreduced(), entry(None, 100.0)], 1000).entry is None


def test_plain_data_and_back_is_the_same_value():
    whole = comparison(entry(1.4, 99.0), entry(None, 98.0, method="evit"))
    assert Comparison.from_dict(json.loads(json.dumps(whole.as_dict()))) == whole
    assert "gallery" not in dataclasses.replace(whole, gallery=object()).as_dict()


def test_the_table_is_flat_and_names_the_recommended_row():
    rows = comparison(entry(1.4, 99.0)).table()
    assert [row["recommended"] for row in rows] == [False, True]
    assert rows[1]["counts"] == "9 4 4"
    assert rows[1]["speed_up_first_quartile"] == pytest.approx(1.3)
    assert not any(isinstance(value, list | tuple | dict) for row in rows for value in row.values())


def test_best_is_the_fastest_that_is_faithful_enough():
    asked = comparison(entry(1.4, 99.2), entry(2.0, 97.0), entry(5.0, 100.0, method="random"))
    assert asked.best().speed_up == 1.4
    assert asked.best(agreement=0.97).speed_up == 2.0
    assert asked.best(agreement=1.0).method == "unreduced"


def test_best_for_a_latency_is_the_most_faithful_that_is_quick_enough():
    asked = comparison(entry(1.4, 99.2), entry(2.0, 97.0), entry(2.5, 80.0))
    assert milliseconds(asked.entries[0], 4) == 40.0  # 4 images at 100 a second
    assert asked.best(latency_ms=40).method == "unreduced"
    assert asked.best(latency_ms=30).speed_up == 1.4
    assert asked.best(latency_ms=20).speed_up == 2.0
    with pytest.raises(ValueError, match=r"No setting takes 1 ms or less for a batch of 4 .* Tome at 0.65, takes 16"):
        asked.best(latency_ms=1)
    with pytest.raises(ValueError, match=r"97 % of decisions unchanged"):
        asked.best(agreement=0.97, latency_ms=16)


@pytest.mark.parametrize(
    ("question", "words"),
    [
        ({"agreement": 99}, "For 99 % write 0.99"),
        ({"agreement": -1}, "from 0 to 1"),
        ({"latency_ms": 0}, "above 0"),
        ({"latency_ms": 0.012}, "0.012 seconds write 12"),
    ],
)
def test_questions_that_mean_nothing_are_refused(question, words):
    with pytest.raises(ValueError, match=words):
        comparison(entry()).best(**question)


def test_best_needs_speeds():
    with pytest.raises(ValueError, match="No speed was measured"):
        comparison(entries=(entry(None),)).best()


def test_a_notebook_shows_sentence_notes_and_front():
    shown = comparison(entry(1.4, 99.0, pareto=True, label="<b>"), demonstration=True, complete=False)._repr_html_()
    for text in ("Do it.", "no labels", "built-in demonstration", "interrupted", "&lt;b&gt; at 0.65", "1.40x"):
        assert text in shown
    assert "<b> at" not in shown


def test_plot_draws_every_setting(tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed: Comparison.plot cannot be tested")
    figure = comparison(entry(1.4, 99.0), entry(None, 98.0, method="evit")).plot(tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size > 1000
    labels = [line.get_label() for line in figure.axes[0].lines]
    assert labels == ["Unreduced", "Tome", "Pareto front"]  # what was not timed has no place on this axis


def test_plot_without_matplotlib_says_what_is_missing(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match="pip install matplotlib"):
        comparison(entry()).plot()


# -- what the user asked for replaces the rule

FRONT = (
    unreduced(),
    entry(1.1, 99.8, budget=0.8),
    entry(1.5, 97.0, budget=0.65),
    entry(2.2, 91.0, budget=0.5),
    entry(3.0, 93.0, method="RandomSelect", budget=0.4),  # a baseline is never recommended
)


@pytest.mark.parametrize(
    ("bounds", "chosen"),
    [
        ({"agreement": 0.9}, 3),  # the fastest that keeps it
        ({"agreement": 0.97}, 2),
        ({"agreement": 0.99}, 1),
        ({"speedup": 1.4}, 2),  # the most faithful that is fast enough
        ({"latency_ms": 160}, 1),  # a batch of 16 at 100 images per second takes 160 ms unreduced
        ({"latency_ms": 80}, 3),
        ({"agreement": 0.9, "speedup": 2.0}, 3),
    ],
)
def test_what_was_asked_decides(bounds, chosen):
    found = recommend(FRONT, 500, asked=Constraints(**bounds), batch_size=16)
    assert found.entry == chosen
    assert found.python == FRONT[chosen].python


@pytest.mark.parametrize("bounds", [{"agreement": 0.999}, {"speedup": 2.5}, {"agreement": 0.95, "speedup": 2.0}])
def test_what_nothing_meets_names_the_nearest(bounds):
    found = recommend(FRONT, 500, asked=Constraints(**bounds), batch_size=16)
    assert found.entry is None
    assert found.python == ""
    assert f"Nothing that was measured meets {Constraints(**bounds)}" in found.sentence
    assert "The nearest" in found.sentence


def test_only_baselines_meet_nothing():
    found = recommend((FRONT[0], FRONT[-1]), 500, asked=Constraints(agreement=0.5), batch_size=16)
    assert found.entry is None
    assert "baseline" in found.sentence
