"""A constraint in, a reduction out: the search keeps what it is asked to keep, or says that it cannot."""

import importlib
import json
from types import SimpleNamespace

import pytest
import torch

import foveate as fv
from foveate.tuning.constraints import Constraints, UnmetConstraint, parse_constraint
from foveate.tuning.expenses import Macs, Seconds, _at, _quadratic
from foveate.tuning.judging import Judge, task_of
from zoo import make

searching = importlib.import_module("foveate.tuning.searching")
FEW = {"calibration": 40, "validation": 40, "trials": 3}


@pytest.fixture(scope="module")
def model():
    return make("timm-cls")


@pytest.fixture(scope="module")
def photos():
    return torch.randn(80, 3, 24, 24, generator=torch.Generator().manual_seed(3))


def test_a_budget_of_macs_is_kept_and_the_model_unchanged(model, photos, tmp_path):
    before = {k: v.clone() for k, v in model.state_dict().items()}
    found = fv.search(model, photos, macs=0.7, methods=["ToMe", "TopK"], **FEW)
    assert found.met
    assert found.complete
    assert found.best.macs <= 0.705
    assert not fv.is_reduced(model)
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())
    reduced = found.apply_(make("timm-cls"))
    assert fv.cost(reduced).macs / fv.cost(model).macs == pytest.approx(found.best.macs)
    stored = json.loads(found.save(tmp_path / "found.json").read_text())
    assert fv.Reduction.from_dict(stored["reduction"]) == found.reduction
    assert set(stored["sensitivities"]) == {"ToMe", "TopK"}


def test_the_same_seed_finds_the_same(model, photos):
    one, two = (fv.search(model, photos, macs=0.7, methods=["ToMe"], **FEW) for _ in range(2))
    assert one.reduction == two.reduction
    assert [f.judged for f in one.finalists] == [f.judged for f in two.finalists]


def test_a_bound_on_decisions_is_kept_on_other_images(model, photos):
    found = fv.search(model, photos, agreement=0.8, methods=["ToMe"], **FEW)
    assert found.met
    judge = Judge(model, photos[40:], task_of(model))
    assert judge.judge(found.reduction).quality == found.best.judged.quality >= 0.8 - found.best.judged.standard_error
    assert found.best.macs < 1


def test_what_nothing_meets_names_the_nearest(model, photos):
    with pytest.raises(UnmetConstraint, match=r"No method reaches|The nearest"):
        fv.search(model, photos, macs=0.05, methods=["ToMe"], **FEW)


def test_an_interrupted_search_keeps_what_it_found(model, photos):
    def stop(phase, done, total, note=""):
        if phase.startswith("refining"):
            raise KeyboardInterrupt

    found = fv.search(model, photos, macs=0.7, methods=["ToMe"], progress=stop, **FEW)
    assert not found.complete
    assert found.best.macs <= 0.705


def test_a_stopped_search_goes_on_from_its_measurements(model, photos, tmp_path, monkeypatch):
    file = tmp_path / "known.json"
    whole = fv.search(model, photos, macs=0.7, methods=["ToMe"], **FEW)

    def stop(phase, done, total, note=""):
        if phase.startswith("sensitivity") and done == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):  # nothing was found yet, but measurements are kept
        fv.search(model, photos, macs=0.7, methods=["ToMe"], measurements=file, progress=stop, **FEW)
    assert len(json.loads(file.read_text())["measured"]) == 4  # of five steps, two lead to as many tokens
    measured = []
    judge = Judge.judge
    monkeypatch.setattr(Judge, "judge", lambda self, *args: measured.append(args) or judge(self, *args))
    resumed = fv.search(model, photos, macs=0.7, methods=["ToMe"], measurements=file, **FEW)
    first = len(measured)
    assert resumed.reduction == whole.reduction
    assert [f.judged for f in resumed.finalists] == [f.judged for f in whole.finalists]
    measured.clear()
    fv.search(model, photos, macs=0.7, methods=["ToMe"], measurements=file, **FEW)
    assert len(measured) == len(resumed.finalists) < first  # only other images judge again


def test_measurements_of_other_images_or_damaged_ones_are_refused(model, photos, tmp_path):
    file = tmp_path / "known.json"
    fv.search(model, photos, macs=0.7, methods=["TopK"], measurements=file, **FEW)
    with pytest.raises(ValueError, match="another model or of other images"):
        fv.search(model, photos + 1, macs=0.7, methods=["TopK"], measurements=file, **FEW)
    file.write_text(file.read_text().replace("0.", "1.", 1))
    with pytest.raises(ValueError, match="another file"):
        fv.search(model, photos, macs=0.7, methods=["TopK"], measurements=file, **FEW)


@pytest.mark.parametrize("bound", [{"speedup": 1.3}, {"latency_ms": 7500}])
def test_bounds_on_time_are_met_by_predicted_times_and_then_measured(model, photos, bound, monkeypatch):
    """Times as they would be if the model took ten seconds, all of it in MACs, and measured a little slower."""

    class Predicted(Macs):
        def __init__(self, model, methods, batch_size, exact):
            assert batch_size == 4
            super().__init__(fv.inspect(model).shape(), exact)
            self.scale = 10.0 / super().whole()

        def of_block(self, *step):
            return self.scale * super().of_block(*step)

        def fixed(self):
            return self.scale * super().fixed()

        def whole(self):
            return 10.0

    def measured(model, reduction, batch_size, seconds):
        ratio = fv.cost(model).macs / fv.cost(reduction.apply_(make("timm-cls"))).macs
        return SimpleNamespace(speed_up=0.98 * ratio)

    monkeypatch.setattr(searching, "Seconds", Predicted)
    monkeypatch.setattr(searching, "measure_speed", measured)
    found = fv.search(model, photos, methods=["TopK"], batch_size=4, **bound, **FEW)
    assert found.met
    assert found.best.predicted_speedup >= 1.3
    assert found.best.speedup == pytest.approx(0.98 * found.best.predicted_speedup)


def test_times_of_blocks_are_fitted_by_a_quadratic():
    counts = [10, 50, 100, 150, 196]
    fit = _quadratic(counts, [1e-3 + 2e-5 * n + 3e-7 * n * n for n in counts])
    assert _at(fit, 75) == pytest.approx(1e-3 + 2e-5 * 75 + 3e-7 * 75**2, rel=1e-3)


def test_a_model_of_time_adds_up_to_the_unreduced_model(model):
    seconds = Seconds(model, [fv.TopK()], 2, exact_last_block=False, rounds=2)
    blocks = sum(seconds.of_block(fv.TopK(), block, 36, 36) for block in range(4))
    assert blocks > 0
    assert blocks + seconds.fixed() == pytest.approx(max(seconds.whole(), blocks))
    assert Seconds(model, [], 2, exact_last_block=True, rounds=2).of_block(fv.TopK(), 3, 36, 36) >= 0


BAD = [
    ({}, "needs a constraint"),
    ({"agreement": 99}, "share of at most 1"),
    ({"macs": 0}, "above 0"),
    ({"macs": 0.5, "speedup": 2.0}, "takes one of them"),
    ({"cosine": 0.9}, "predicts classes. Use agreement"),
    ({"macs": 0.5, "methods": ["ClusterAttention"]}, "cannot be searched"),
    ({"macs": 0.5, "methods": ["nonsense"]}, "nonsense"),
    ({"macs": 0.5, "calibration": 0}, "at least 1"),
]


@pytest.mark.parametrize(("options", "words"), BAD, ids=[words[:20] for _, words in BAD])
def test_bad_questions_are_refused(model, photos, options, words):
    with pytest.raises((ValueError, TypeError), match=words):
        fv.search(model, photos, **options)


def test_too_few_images_are_refused(model, photos):
    with pytest.raises(ValueError, match="at least 64 images"):
        fv.search(model, photos[:50], macs=0.5)


def test_a_reduced_model_is_refused(photos):
    with pytest.raises(ValueError, match="unreduced model"):
        fv.search(fv.reduce_(make("timm-cls"), fv.ToMe(), 0.7), photos, macs=0.5)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("agreement>=0.99", {"agreement": 0.99}),
        ("agreement >= 99%", {"agreement": 0.99}),
        ("latency<=12ms", {"latency_ms": 12}),
        ("latency<=0.5s", {"latency_ms": 500}),
        ("speedup>=2x", {"speedup": 2.0}),
        ("macs=40%", {"macs": 0.4}),
    ],
)
def test_constraints_are_read_from_text(text, expected):
    assert parse_constraint(text) == pytest.approx(expected)
    assert str(Constraints(**parse_constraint(text)))


@pytest.mark.parametrize(
    "text", ["agreement<=0.9", "speed>=2", "macs", "macs<=x", "latency>=3ms", "macs<=0.4.1", "macs<=4ms"]
)
def test_wrong_constraints_are_refused(text):
    with pytest.raises(ValueError, match=r"constraint|bounded by|number|wrong unit"):
        parse_constraint(text)


@pytest.mark.parametrize("text", ["latency<=12", "latency<=12x", "latency<=12%"])
def test_a_latency_without_its_unit_is_refused(text):
    with pytest.raises(ValueError, match="Write 12ms or 12s"):
        parse_constraint(text)


def test_a_latency_in_seconds_is_refused(model, photos):
    with pytest.raises(ValueError, match=r"For 0.012 seconds write 12\."):
        fv.search(model, photos, latency_ms=0.012)
