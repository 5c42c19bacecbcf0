"""A constraint in, a reduction out: the search keeps what it is asked to keep, or says that it cannot."""

import copy
import importlib
import json
from types import SimpleNamespace

import pytest
import torch

import foveate as fv
from foveate.evaluation.memory import peak_memory
from foveate.files import sealed
from foveate.models.dense import dense_model
from foveate.tuning.constraints import Constraints, UnmetConstraint, parse_constraint
from foveate.tuning.expenses import Macs, Seconds
from foveate.tuning.judging import Judge, Judged, divided, task_of
from zoo import make

strategy = importlib.import_module("foveate.tuning.strategy")
FEW = {"calibration": 40, "validation": 40, "trials": 3, "seconds": 0.02}


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


def test_measurements_of_another_version_are_refused(model, photos, tmp_path):
    file = tmp_path / "known.json"
    fv.search(model, photos, macs=0.7, methods=["ToMe"], measurements=file, **FEW)
    stored = json.loads(file.read_text())
    del stored["version"], stored["checksum"]
    file.write_text(json.dumps(sealed(stored)))
    with pytest.raises(ValueError, match="another version"):
        fv.search(model, photos, macs=0.7, methods=["ToMe"], measurements=file, **FEW)


@pytest.mark.parametrize("kind", ["classes", "embedding", "masks"])
def test_a_distance_is_the_mean_root_of_the_divergence_of_each_image(photos, kind):
    torch.manual_seed(0)
    whole = dense_model(make("timm-cls"), "linear", 3) if kind == "masks" else make("timm-cls")
    if kind == "embedding":
        whole.reset_classifier(0)
    judge = Judge(whole.eval(), photos[:30], task_of(whole))
    reduced = fv.reduce_(copy.deepcopy(whole), "TopK", fv.Keep({0: 5}))
    roots = []
    with torch.inference_mode():
        for image in photos[:30]:
            p, q = (judge.task.predict(one, image[None])[0] for one in (whole, reduced))
            if kind == "embedding":
                roots.append(float(1 - p @ q / p.norm() / q.norm()) ** 0.5)
                continue
            p, q = p.softmax(0), q.softmax(0)
            roots.append(float((p * (p / q).log()).sum(0).mean()) ** 0.5)
    assert judge.compare(reduced).distance == pytest.approx(sum(roots) / 30, rel=1e-3)


def test_the_search_lowers_the_distance_and_not_the_divergence(model, photos, monkeypatch):
    """A few images with a large divergence must not decide."""
    judged = {}

    def judge(self, reduction, limit=None):
        number = judged.setdefault(reduction, len(judged))
        return Judged(1.0 + number, 0.9, 40, "of decisions", 100.0 - number)

    monkeypatch.setattr(Judge, "judge", judge)
    found = fv.search(model, photos, macs=0.7, methods=["ToMe"], **FEW)
    assert judged[found.best.reduction] == max(judged[one.reduction] for one in found.finalists)


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

    monkeypatch.setattr(strategy, "Seconds", Predicted)
    monkeypatch.setattr(strategy, "measure_speed", measured)
    found = fv.search(model, photos, methods=["TopK"], batch_size=4, **bound, **FEW)
    assert found.met
    assert found.best.predicted_speedup >= 1.3
    assert found.best.speedup == pytest.approx(0.98 * found.best.predicted_speedup)


def test_the_fastest_that_keeps_a_quality_is_timed(model, photos, monkeypatch):
    class Backwards(Macs):
        """A machine on which the third block takes all the time."""

        def __init__(self, model, methods, batch_size, exact):
            super().__init__(fv.inspect(model).shape(), exact)

        def of_block(self, method, block, before, after):
            return super().of_block(method, block, before, after) * (1e3 if block == 2 else 1e-3)

        def whole(self):
            return self.total(fv.TopK(), (36,) * 4, 36)

    monkeypatch.setattr(strategy, "Seconds", Backwards)
    monkeypatch.setattr(strategy, "measure_speed", lambda *_, **__: SimpleNamespace(speed_up=1.5))
    found = fv.search(model, photos, agreement=0.5, optimize="latency", methods=["TopK"], **FEW)
    assert found.best.speedup == 1.5
    assert found.best.predicted_speedup > 1
    assert found.to_dict()["optimized"] == "latency"
    assert "1.50x faster" in str(found)


def test_a_bound_on_memory_is_met_by_a_measured_peak(model, photos):
    tokens = torch.zeros(64, 3, 24, 24)
    whole = peak_memory(model, tokens)
    least = peak_memory(fv.reduce_(make("timm-cls"), fv.TopK(), fv.Keep({0: 3})), tokens)
    bound = {"memory_mib": (whole + least) / 2, "batch_size": 64}
    found = fv.search(model, photos, methods=["TopK"], **bound, **FEW)
    assert found.best.memory_mib <= bound["memory_mib"] < whole
    assert peak_memory(found.apply_(make("timm-cls")), tokens) == pytest.approx(found.best.memory_mib, rel=0.05)
    assert found.to_dict()["unreduced_memory_mib"] == pytest.approx(whole, rel=0.05)
    with pytest.raises(UnmetConstraint, match=r"No method reaches memory <= 0.001 MiB.*The nearest: .* unreduced"):
        fv.search(model, photos, methods=["TopK"], memory_mib=0.001, **FEW)
    smallest = fv.search(model, photos, agreement=0.5, optimize="memory", methods=["TopK"], batch_size=64, **FEW)
    assert smallest.best.memory_mib == min(one.memory_mib for one in smallest.finalists) < whole


@pytest.mark.parametrize("bound", [{"agreement": 0.7}, {"miou": 0.3}, {"macs": 0.7}], ids=["pixels", "miou", "macs"])
def test_masks_are_compared_with_those_of_the_unreduced_model(photos, bound):
    torch.manual_seed(0)
    dense = dense_model(make("timm-cls"), "linear", 4).eval()
    found = fv.search(dense, photos, methods=["ToMe"], **bound, **FEW)
    assert found.best.macs < 1
    reduced = found.apply_(copy.deepcopy(dense))
    with torch.no_grad():
        ours, theirs = (one(photos[40:], upsample=False).argmax(1) for one in (reduced, dense))
    if "miou" in bound:
        ratios = [((ours == c) & (theirs == c)).sum() / ((ours == c) | (theirs == c)).sum() for c in theirs.unique()]
        assert found.best.judged.quality == pytest.approx(float(torch.stack(ratios).mean()), abs=1e-4)
    else:
        assert found.best.judged.quality == pytest.approx(float((ours == theirs).float().mean()), abs=1e-4)
        assert "of pixels unchanged" in str(found)


def test_models_whose_predictions_need_labels_are_refused(photos):
    with pytest.raises(ValueError, match="is for pose, whose predictions cannot be compared without labels"):
        fv.search(dense_model(make("timm-cls"), "heatmaps", 5), photos, macs=0.7)


def test_a_model_of_time_finds_the_times_that_it_was_made_from(model, monkeypatch):
    """Seconds that follow the formulas of its docstring, for every model that it times."""
    method, depth, patches = fv.ToMe(), 4, 36

    def blocks(counts, last=None):
        steps = list(zip((patches, *counts[:-1]), counts, strict=True))
        own = [1e-3 + 1e-5 * n + 2e-7 * n * n + 3e-5 * (n - m) for n, m in steps if m < n]
        taken = [2e-4 * (n / 3 + 2 * m / 3) + 4e-6 * n * n for n, m in steps]
        if last is not None:
            taken[-1] = last(steps[-1][0])
        return 0.01 + sum(taken), sum(own)

    def timed(self, models, rounds):
        found = {}
        for key, one in models.items():
            reducer = fv.inspect(one).reducer
            counts = (patches,) * depth if reducer is None or reducer.plan is None else reducer.plan.counts
            exact = str(key).startswith("exact")
            counts = self._after({0: 5}) if str(key).endswith("few tokens") else counts
            bare, own = blocks((patches,) * depth if key == "exact last block" else counts, last if exact else None)
            found[key] = bare + (own if isinstance(key, tuple) and key[0] == method else 0.0)
        return found

    def last(n):
        return 1e-3 + 5e-5 * n

    monkeypatch.setattr(Seconds, "_timed", timed)
    seconds = Seconds(model, [method], 2, exact_last_block=True)
    assert seconds.whole() == pytest.approx(blocks((36, 36, 36, 36))[0])
    for counts in [(36, 36, 36, 36), (30, 20, 20, 10), (36, 18, 18, 18)]:
        bare, own = blocks(counts[:3])
        expected = bare + own + last(counts[2])
        assert seconds.total(method, counts, patches) == pytest.approx(expected, rel=0.02)


def test_a_model_of_time_adds_up_to_the_unreduced_model(model):
    seconds = Seconds(model, [fv.TopK()], 2, exact_last_block=False, rounds=2)
    blocks = sum(seconds.of_block(fv.TopK(), block, 36, 36) for block in range(4))
    assert blocks >= 0  # on a busy machine this small model may show no time per token; the test above knows its times
    assert blocks + seconds.fixed() == pytest.approx(seconds.whole())
    assert Seconds(model, [], 2, exact_last_block=True, rounds=2).of_block(fv.TopK(), 3, 36, 36) >= 0


BAD = [
    ({}, "needs a constraint"),
    ({"agreement": 99}, "share of at most 1"),
    ({"macs": 0}, "above 0"),
    ({"macs": 0.5, "speedup": 2.0}, "takes one of them"),
    ({"cosine": 0.9}, "this model predicts classes. Use agreement"),
    ({"miou": 0.9}, "this model predicts classes. Use agreement"),
    ({"macs": 0.5, "optimize": "latency"}, "is for a bound on quality"),
    ({"agreement": 0.9, "optimize": "speed"}, "one of macs, latency, memory"),
    ({"macs": 0.5, "methods": ["ClusterAttention"]}, "cannot be searched"),
    ({"macs": 0.5, "methods": ["nonsense"]}, "nonsense"),
    ({"macs": 0.5, "calibration": 0}, "at least 1"),
]


@pytest.mark.parametrize(("options", "words"), BAD, ids=[words[:20] for _, words in BAD])
def test_bad_questions_are_refused(model, photos, options, words):
    with pytest.raises((ValueError, TypeError), match=words):
        fv.search(model, photos, **options)


@pytest.mark.parametrize(
    ("images", "asked", "choosing"),
    [(500, (468, 32), 468), (512, (256, 256), 256), (300, (256, 256), 150), (64, (256, 256), 32), (100, (90, 90), 50)],
)
def test_images_are_divided_as_asked_or_in_proportion(images, asked, choosing):
    ours, theirs = divided(torch.arange(images).view(-1, 1, 1, 1), *asked)
    assert (len(ours), len(theirs)) == (choosing, images - choosing)


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
        ("miou>=0.95", {"miou": 0.95}),
        ("memory<=200MiB", {"memory_mib": 200}),
        ("memory<=1.5 GiB", {"memory_mib": 1536}),
    ],
)
def test_constraints_are_read_from_text(text, expected):
    assert parse_constraint(text) == pytest.approx(expected)
    assert str(Constraints(**parse_constraint(text)))


@pytest.mark.parametrize(
    "text", ["agreement<=0.9", "speed>=2", "macs", "macs<=x", "latency>=3ms", "macs<=0.4.1", "macs<=4ms", "memory<=200"]
)
def test_wrong_constraints_are_refused(text):
    with pytest.raises(ValueError, match=r"constraint|bounded by|number|wrong unit|Write 200MiB or 200GiB"):
        parse_constraint(text)


@pytest.mark.parametrize("text", ["latency<=12", "latency<=12x", "latency<=12%"])
def test_a_latency_without_its_unit_is_refused(text):
    with pytest.raises(ValueError, match="Write 12ms or 12s"):
        parse_constraint(text)


def test_a_latency_in_seconds_is_refused(model, photos):
    with pytest.raises(ValueError, match=r"For 0.012 seconds write 12\."):
        fv.search(model, photos, latency_ms=0.012)
