"""The comparison itself, on small untrained models and generated images; never how fast anything is."""

import copy
import dataclasses
import json
import warnings

import numpy as np
import pytest
import torch
from PIL import Image

import foveate as fv
from foveate.data import DataError
from foveate.data.preprocessing import Preprocessing
from foveate.methods.base import all_methods
from foveate.report.compare import Comparison, candidates, compare, fidelity, maps, run, timing
from foveate.report.compare.candidates import DEFAULT_BUDGETS, NAMES, default_methods, find_candidates, read_methods
from foveate.report.compare.on_object import covered_patches, share_on_object
from foveate.report.compare.saving import PARTIAL
from zoo import CLASSES, IMAGE, PATCHES, images, make

QUICK = {"methods": ("tome", "topk"), "budgets": (0.7, 0.5), "seconds": 0.001, "batch_size": 4}
TIMED = ("images_per_second", "speed_up", "speed_up_quartiles", "efficiency", "overhead", "memory_mib", "pareto")


@pytest.fixture(autouse=True)
def no_clock_and_no_gallery(monkeypatch, request):
    """Token maps have tests of their own; clocks are looked at where a test asks for them."""
    monkeypatch.setattr(maps, "collect", lambda *given: None)
    if "real_speed" not in request.fixturenames:
        monkeypatch.setattr(run, "measure_candidate", pretended)


@pytest.fixture
def real_speed():
    """Measure indeed."""


def pretended(unreduced, candidate, *rest):
    speed = fv.cost(unreduced).macs / fv.cost(candidate.model).macs
    return timing.Speed(100.0, speed, (speed, speed), None, 1.0, 6)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Twenty noisy pictures in seven classes, as many as the small models predict."""
    place = tmp_path_factory.mktemp("pictures")
    for number in range(20):
        write_picture(place / f"kind{number % CLASSES}" / f"{number:02}.png", number)
    return place


def write_picture(path, number):
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(number).integers(0, 256, (30, 34, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)


def untimed(comparison):
    """A comparison without all that depends on a clock."""
    data = comparison.as_dict()
    entries = [{k: v for k, v in entry.items() if k not in TIMED} for entry in data["entries"]]
    return {**data, "entries": entries, "recommendation": None}


def titles(comparison):
    return [entry.title for entry in comparison.entries]


def test_figures_are_those_of_slow_obvious_code(real_speed):
    model, x = make("timm-cls"), images(10)
    labels = torch.arange(10) % CLASSES
    found = compare(model, [(x[:4], labels[:4]), (x[4:], labels[4:])], **QUICK)
    assert titles(found) == [
        "Unreduced",
        "Exact last block",
        "ToMe at 0.7",
        "ToMe at 0.5",
        "Top-k at 0.7",
        "Top-k at 0.5",
    ]
    with torch.no_grad():
        whole = model(x)
    for entry in found.entries:
        other = copy.deepcopy(model)
        exec(entry.python, {"model": other})
        with torch.no_grad():
            logits = other(x)
        p, q = whole.softmax(1), logits.softmax(1)
        assert entry.agreement == 100 * np.mean([int(a.argmax() == b.argmax()) for a, b in zip(p, q, strict=True)])
        assert entry.top1 == pytest.approx(100 * np.mean([a.argmax() == b for a, b in zip(q, labels, strict=True)]))
        assert entry.top5 == pytest.approx(
            100 * np.mean([b in a.topk(5).indices for a, b in zip(q, labels, strict=True)])
        )
        assert entry.kl == pytest.approx(float((p * (p / q).log()).sum(1).mean()), abs=1e-6)
        assert entry.macs == fv.cost(other).macs
        assert entry.mac_ratio == entry.macs / fv.cost(model).macs


def test_the_unreduced_model_agrees_with_itself_and_the_exact_last_block_is_exact(real_speed):
    first, exact = compare(make("timm-cls"), images(8), **QUICK).entries[:2]
    assert (first.method, first.agreement, first.kl, first.mac_ratio, first.speed_up) == ("unreduced", 100, 0, 1, 1)
    assert (exact.method, exact.agreement, exact.exact_last_block) == ("exact-last-block", 100, True)
    assert exact.kl == pytest.approx(0, abs=1e-6)
    assert first.counts == exact.counts == (PATCHES,) * 4
    assert exact.mac_ratio < 1
    assert exact.efficiency is None  # nothing is chosen


def test_budgets_are_met_and_speeds_are_there(real_speed):
    for entry in compare(make("timm-cls"), images(8), **QUICK).entries[2:]:
        assert entry.mac_ratio == pytest.approx(entry.budget, rel=0.01)
        assert entry.images_per_second > 0
        assert entry.speed_up_quartiles[0] <= entry.speed_up <= entry.speed_up_quartiles[1]
        assert entry.overhead == max(0, 1 - entry.efficiency)
        assert entry.memory_mib > 0


def test_the_model_is_left_as_it_was():
    model = make("timm-cls").train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    compare(model, images(4), **QUICK)
    assert model.training
    assert not hasattr(model, "foveate")
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


def test_candidates_share_the_weights():
    model = make("timm-cls")
    whole, _ = run._prepared(model, torch.device("cpu"))
    found = find_candidates(whole, read_methods(["tome", "ward"]), (0.7,)).all
    pointers = {tensor.data_ptr() for tensor in model.parameters()}
    assert len(found) == 4
    assert all(tensor.data_ptr() in pointers for candidate in found for tensor in candidate.model.parameters())


@pytest.mark.parametrize("batch_size", [1, 7, 20])
def test_results_do_not_depend_on_the_batch_size(folder, batch_size):
    few, many = (compare(make("timm-cls"), folder, **(QUICK | {"batch_size": size})) for size in (4, batch_size))
    for one, other in zip(few.entries, many.entries, strict=True):
        assert (one.agreement, one.top1, one.top5) == (other.agreement, other.top1, other.top5)
        assert one.kl == pytest.approx(other.kl, abs=1e-6)


def test_a_folder_a_tensor_and_batches_give_the_same(folder):
    model = make("timm-cls")
    paths = sorted(folder.glob("*/*.png"))
    transform = Preprocessing.of(model).evaluation()
    x = torch.stack([transform(Image.open(path)) for path in paths])
    labels = torch.tensor([int(path.parent.name[-1]) for path in paths])
    of_folder, of_tensor = compare(model, str(folder), **QUICK), compare(model, x, **QUICK)
    of_batches = compare(model, list(zip(x.split(6), labels.split(6), strict=True)), **QUICK)
    for one, two, three in zip(of_folder.entries, of_tensor.entries, of_batches.entries, strict=True):
        assert one.agreement == two.agreement == three.agreement
        assert one.top1 == three.top1
        assert two.top1 is None
    assert of_folder.data == {
        "source": str(folder), "split": "all", "images": 20, "labelled": True, "note": "", "broken": 0
    }  # fmt: skip
    assert not of_tensor.data["labelled"]
    assert "without labels" in of_tensor.data["note"]


def test_a_limit_draws_from_all_and_is_the_same_each_time(folder):
    one, two, other = (compare(make("timm-cls"), folder, **QUICK, limit=6, seed=seed) for seed in (0, 0, 1))
    assert one.data["images"] == 6
    assert untimed(one) == untimed(two)
    assert [e.kl for e in other.entries] != [e.kl for e in one.entries]
    data, _ = run.open_source(str(folder), None, CLASSES)
    chosen = run.FromSource(data, "", Preprocessing.of(make("timm-cls")).evaluation(), 2, limit=6, seed=0).data.pictures
    names = [chosen.name(index) for index in range(6)]
    assert len({name.split("/")[-2] for name in names}) > 2  # not the first class alone
    assert compare(make("timm-cls"), images(9), **QUICK, limit=6).data["images"] == 6


def test_labels_that_do_not_match_leave_agreement(folder):
    model = make("timm-cls")
    model.reset_classifier(CLASSES + 2)
    found = compare(model, folder, **QUICK)
    assert "has 7 classes by name and the model predicts 9" in found.data["note"]
    assert all(entry.top1 is None and entry.agreement >= 0 for entry in found.entries)
    named = compare(model, folder, **QUICK, classes=[f"kind{i}" for i in range(CLASSES)] + ["more", "most"])
    assert (named.data["note"], named.data["labelled"]) == ("", True)
    strange = compare(model, folder, **QUICK, classes=[f"other{i}" for i in range(CLASSES + 2)])
    assert "Accuracy is left out" in strange.data["note"]
    assert strange.entries[0].top1 is None


def test_labels_beyond_the_models_classes_are_not_used():
    found = compare(
        make("timm-cls"), [(images(4), torch.tensor([0, 1, 2, CLASSES])), (images(4), torch.zeros(4))], **QUICK
    )
    assert f"a label is {CLASSES}, the model predicts {CLASSES} classes" in found.data["note"]
    assert found.entries[0].top1 is None


def test_a_head_that_reads_patches_has_no_exact_last_block():
    found = compare(make("timm-mean"), images(4), **QUICK)
    assert titles(found) == ["Unreduced", "ToMe at 0.7", "ToMe at 0.5", "Top-k at 0.7", "Top-k at 0.5"]
    assert not any(entry.exact_last_block for entry in found.entries)


def test_a_method_that_refuses_the_model_is_told_of_once():
    found = compare(make("timm-mean"), images(4), **(QUICK | {"methods": ("evit", "tome")}))
    (refused,) = found.refused
    assert (refused.method, refused.budget) == ("evit", None)
    assert "no class token" in refused.reason


def test_an_unreachable_default_budget_is_refused_and_the_rest_goes_on(monkeypatch):
    """ToMe halves the tokens at most in each block, and this model has four."""
    monkeypatch.setattr(candidates, "DEFAULT_BUDGETS", (0.7, 0.1))
    found = compare(make("timm-cls"), images(4), **(QUICK | {"methods": ("tome",), "budgets": (0.7, 0.1)}))
    (refused,) = found.refused
    assert (refused.label, refused.budget) == ("ToMe", 0.1)
    least = float(refused.reason.split()[4])
    assert refused.reason == f"ToMe goes down to {least:.3f} of the MACs on this model."
    with pytest.raises(fv.PlanError):
        fv.reduce_(make("timm-cls"), fv.ToMe(), fv.Budget(least - 0.02), exact_last_block=True)
    fv.reduce_(make("timm-cls"), fv.ToMe(), fv.Budget(least), exact_last_block=True)


@pytest.mark.parametrize("budget", [0.8, 0.99])
def test_a_budget_above_the_exact_last_block_alone_is_refused_for_what_it_is(budget):
    """Of four blocks the last one is a fifth of the work, so that nothing is left to remove at 0.8."""
    found = compare(make("timm-cls"), images(2), **(QUICK | {"methods": ("topk",), "budgets": DEFAULT_BUDGETS}))
    with pytest.raises(ValueError, match=r"exact last block alone spends no more than that"):
        find_candidates(make("timm-cls"), read_methods(["topk"]), (budget,))
    assert [(r.budget, r.reason) for r in found.refused] == [(0.8, candidates.NO_TOKEN_GOES)]


def test_an_asked_budget_nobody_reaches_is_an_error_with_the_smallest():
    with pytest.raises(
        ValueError, match=r"No schedule reaches 0.05 of the MACs on this model; the smallest is 0\.\d+, with"
    ):
        compare(make("timm-cls"), images(4), **(QUICK | {"budgets": (0.7, 0.05)}))


def test_budgets_with_equal_counts_are_one_candidate():
    found = find_candidates(make("timm-cls"), read_methods(["tome"]), (0.7, 0.6999))
    assert [c.budget for c in found.all[2:]] == [0.7]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"budgets": (1.0,)}, "above 0 and below 1; got 1.0"),
        ({"budgets": (0.0,)}, "above 0 and below 1; got 0.0"),
        ({"budgets": (65,)}, "For 65 % write 0.65"),
        ({"budgets": ()}, "At least one budget"),
        ({"methods": ("tom",)}, "There is no method 'tom'. Did you mean tome"),
        ({"methods": ("qqq",)}, "Known: .*evit, "),
        ({"methods": ("tome:speed=9",)}, "ToMe has no option 'speed'"),
        ({"methods": ("dynamicvit",)}, "give that folder as a checkpoint"),
        ({"methods": ("free-slice",)}, "not made for a pretrained model"),
        ({"batch_size": 0}, "batch_size is a whole number"),
        ({"limit": 0}, "limit is a whole number"),
        ({"seconds": 0}, "seconds is a time"),
        ({"device": "toaster"}, "There is no device 'toaster'"),
        ({"checkpoints": ("/nowhere",)}, "has no foveate.json"),
    ],
)
def test_wrong_options_are_refused_in_words(changes, words):
    with pytest.raises(ValueError, match=words):
        compare(make("timm-cls"), images(2), **(QUICK | changes))


@pytest.mark.parametrize(
    ("data", "error", "words"),
    [
        (None, ValueError, "needs images"),
        (7, TypeError, "got int"),
        (torch.zeros(3, 8, 8), ValueError, "shape \\(3, 8, 8\\)"),
        (["picture"], ValueError, "got str"),
        ([], ValueError, "has no images"),
        ("/nowhere", DataError, "does not exist"),
    ],
)
def test_data_that_are_none_are_refused(data, error, words):
    with pytest.raises(error, match=words):
        compare(make("timm-cls"), data, **QUICK)


def test_a_folder_without_images_is_refused(tmp_path):
    with pytest.raises(DataError, match="has no images"):
        compare(make("timm-cls"), tmp_path, **QUICK)


def test_models_that_cannot_be_compared_are_refused():
    with pytest.raises(fv.UnsupportedModel, match="does not know"):
        compare(torch.nn.Sequential(torch.nn.Linear(2, 2)), images(2), **QUICK)
    with pytest.raises(ValueError, match="predicts no classes"):
        compare(make("timm-tokens"), images(2), **QUICK)


def test_a_model_that_answers_nonsense_is_refused():
    model = make("timm-cls")
    model.head.bias.data[0] = float("nan")
    with pytest.raises(ValueError, match="Unreduced: the model's outputs are not finite"):
        compare(model, images(2), **QUICK)


def test_images_without_a_model_are_refused(folder):
    with pytest.raises(ValueError, match="Images were given and no model"):
        compare(None, str(folder))


def test_a_corrupt_image_is_left_out_and_counted(tmp_path):
    for number in range(8):
        write_picture(tmp_path / f"{number}.png", number)
    (tmp_path / "bad.png").write_bytes(b"no picture")
    with (
        pytest.raises(DataError, match=r"1 broken images of 9 are more than max_broken=0.01"),
        pytest.warns(UserWarning, match="bad.png"),
    ):
        compare(make("timm-cls"), tmp_path, **QUICK)
    with pytest.warns(UserWarning, match=r"bad.png cannot be read and is left out"):
        found = compare(make("timm-cls"), tmp_path, **QUICK, max_broken=0.2)
    assert (found.data["images"], found.data["broken"]) == (8, 1)


def test_a_checkpoint_is_measured_as_it_is(tmp_path, real_speed):
    model = make("timm-cls")
    trained = fv.reduce_(make("timm-registers-layerscale"), fv.DynamicViT(), fv.KeepRate(0.7, blocks=(1, 2)))
    learned = fv.reduce_(copy.deepcopy(model), fv.DynamicViT(), fv.KeepRate(0.7, blocks=(1, 2)))
    other = fv.reduce_(copy.deepcopy(model), fv.ToMe(), fv.RemovePerBlock(2))
    other.reset_classifier(3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, saved in {"learned": learned, "trained": trained, "other": other}.items():
            fv.save(saved, tmp_path / name)
    folders = [tmp_path / name for name in ("learned", "trained")]
    loader = candidates.load
    blank = {"learned": make("timm-cls"), "trained": make("timm-registers-layerscale"), "other": make("timm-cls")}
    blank["other"].reset_classifier(3)
    candidates.load = lambda folder: loader(folder, blank[folder.name])  # models built by hand cannot be rebuilt
    try:
        found = compare(model, images(4), **QUICK, checkpoints=[*folders, tmp_path / "other"])
    finally:
        candidates.load = loader
    first, second = found.entries[-2:]
    assert (first.label, first.kind, first.budget) == ("DynamicViT, learned", "learned", None)
    assert first.python == f"import foveate as fv\nmodel = fv.load({str(folders[0])!r})"
    assert first.counts == tuple(fv.trace(learned.eval(), images(1)).counts)
    assert second.params > found.entries[0].params
    assert [(r.label, r.reason) for r in found.refused] == [("ToMe, other", "It predicts 3 classes, the model 7.")]


def test_a_model_that_is_reduced_already_is_one_of_the_candidates():
    model = fv.reduce_(make("timm-cls"), fv.EViT(), fv.Keep({1: 20}))
    found = compare(model, images(4), **QUICK)
    assert found.entries[0].counts == (PATCHES,) * 4
    assert (found.entries[-1].label, found.entries[-1].counts) == ("EViT, as given", (36, 20, 20, 20))
    assert fv.cost(model).macs == found.entries[-1].macs


def test_every_training_free_method_has_a_name_for_people():
    known = [name for name in all_methods() if name != "free-slice"]
    assert set(known) <= set(NAMES)
    assert {"tome", "evit", "random"} <= set(default_methods())
    assert not {"free-slice", "dynamicvit", "hvt"} & set(default_methods())
    assert DEFAULT_BUDGETS == (0.8, 0.65, 0.5)


def test_options_of_a_method_are_in_its_name_and_its_code():
    found = compare(make("timm-cls"), images(2), **(QUICK | {"methods": ("evit:fuse=false",), "budgets": (0.7,)}))
    entry = found.entries[-1]
    assert (entry.method, entry.label) == ("evit:fuse=false", "EViT (fuse=false)")
    assert entry.python.endswith("fv.reduce_(model, fv.EViT(fuse=False), fv.Budget(0.7), exact_last_block=True)")


@pytest.fixture
def interrupted(monkeypatch):
    """Ctrl-C at a call of one's choice: ``interrupted(module, name, call)``."""

    def arrange(module, name, call):
        real, calls = getattr(module, name), []

        def sometimes(*given, **named):
            calls.append(1)
            if len(calls) == call:
                raise KeyboardInterrupt
            return real(*given, **named)

        monkeypatch.setattr(module, name, sometimes)

    return arrange


@pytest.mark.parametrize(("place", "call"), [("decisions", 14), ("decisions", 25), ("speed", 1), ("speed", 3)])
def test_a_resumed_run_equals_one_that_was_not_interrupted(folder, tmp_path, interrupted, monkeypatch, place, call):
    model = make("timm-cls")
    whole = compare(model, folder, **QUICK)
    monkeypatch.setattr(run, "SECONDS_BETWEEN_STORES", 0)
    module, name = (fidelity, "logits_of") if place == "decisions" else (run, "measure_candidate")
    interrupted(module, name, call)
    part = compare(model, folder, **QUICK, store=tmp_path)
    assert not part.complete
    assert part.data["images"] == {14: 8, 25: 16}.get(call, 20)
    assert sum(entry.speed_up is not None for entry in part.entries) == (call if call == 3 else 0)
    stored = json.loads((tmp_path / PARTIAL).read_text())["measured"]
    again = []
    monkeypatch.setattr(run, "measure_candidate", lambda *given: again.append(given[1].key) or pretended(*given))
    rest = compare(model, folder, **QUICK, store=tmp_path, resume=True)
    assert rest.complete
    assert untimed(rest) == untimed(whole)
    assert len(again) == len(rest.entries) - 1 - len(stored["speeds"])
    assert not set(again) & set(stored["speeds"])


def test_a_corrupt_image_before_the_interruption_is_still_counted_after_it(tmp_path, interrupted):
    photos = tmp_path / "photos"
    for number in range(8):
        write_picture(photos / f"{number}.png", number)
    (photos / "0.png").write_bytes(b"no picture")
    options = QUICK | {"max_broken": 0.2, "store": tmp_path / "report"}
    interrupted(run, "measure_candidate", 1)
    with pytest.warns(UserWarning, match=r"0.png cannot be read"):
        compare(make("timm-cls"), photos, **options)
    found = compare(make("timm-cls"), photos, **options, resume=True)
    assert (found.complete, found.data["images"], found.data["broken"]) == (True, 7, 1)


def test_ctrl_c_before_anything_is_measured_is_just_that(folder, tmp_path, interrupted):
    interrupted(fidelity, "logits_of", 2)
    with pytest.raises(KeyboardInterrupt):
        compare(make("timm-cls"), folder, **QUICK, store=tmp_path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"budgets": (0.7,)}, r"budgets was \[0.7, 0.5\], now \[0.7\]"),
        ({"batch_size": 5}, "batch_size was 4, now 5"),
        ({"limit": 7}, "limit was None, now 7"),
        ({"seed": 3}, "seed was 0, now 3"),
        ({"name": "another"}, "model was .*'name': 'VisionTransformer'"),
    ],
)
def test_a_run_with_other_options_does_not_go_on(folder, tmp_path, interrupted, change, words):
    interrupted(run, "measure_candidate", 2)
    compare(make("timm-cls"), folder, **QUICK, store=tmp_path)
    with pytest.raises(ValueError, match=words):
        compare(make("timm-cls"), folder, **(QUICK | change), store=tmp_path, resume=True)


def test_a_run_with_other_weights_does_not_go_on(folder, tmp_path, interrupted):
    interrupted(run, "measure_candidate", 2)
    compare(make("timm-cls"), folder, **QUICK, store=tmp_path)
    other = make("timm-cls")
    other.head.bias.data[0] += 1
    with pytest.raises(ValueError, match="is of another comparison: model was"):
        compare(other, folder, **QUICK, store=tmp_path, resume=True)


def test_a_partial_file_that_is_none_is_refused(tmp_path):
    (tmp_path / PARTIAL).write_text("{")
    with pytest.raises(ValueError, match="not valid JSON"):
        compare(make("timm-cls"), images(2), **QUICK, store=tmp_path, resume=True)


def test_peak_memory_is_what_a_pass_holds():
    x = torch.zeros(4, 1024)  # 16 KiB
    held = timing.peak_memory(torch.nn.Sequential(torch.nn.ReLU(), torch.nn.ReLU()), x)
    assert held == pytest.approx(2 * 16 / 1024)


def test_share_on_object_counts_tokens_by_their_patches():
    """The object covers the upper half; a model that keeps everything has half of its tokens there."""
    model, x = make("timm-cls"), images(2)
    mask = np.zeros((IMAGE, IMAGE), dtype=bool)
    mask[: IMAGE // 2] = True
    covered = covered_patches([mask, mask], dataclasses.replace(Preprocessing.of(model), crop_pct=1.0), (6, 6))
    assert covered.shape == (2, PATCHES)
    assert covered.mean() == pytest.approx(0.5, abs=0.02)
    assert share_on_object(model, x, covered) == pytest.approx(50, abs=2)
    cut = fv.reduce_(copy.deepcopy(model), fv.FreeSlice(), fv.Keep({1: 12}))  # the first two rows of six
    assert share_on_object(cut, x, covered) == pytest.approx(100, abs=2)
    merged = fv.reduce_(copy.deepcopy(model), fv.ToMe(), fv.RemovePerBlock(6))
    owner = fv.trace(merged, x).owner(-1)
    slow = [covered[b][owner[b] == t].mean() for b in range(2) for t in range(int(owner[b].max()) + 1)]
    assert share_on_object(merged, x, covered) == pytest.approx(100 * float(torch.stack(slow).mean()), abs=0.01)


def test_the_drift_of_the_machine_is_that_of_the_unreduced_model(monkeypatch):
    rates = iter([100.0, 50.0, 80.0, 90.0, 100.0])

    def drifting(*given):
        return dataclasses.replace(pretended(*given), unreduced_per_second=next(rates))

    monkeypatch.setattr(run, "measure_candidate", drifting)
    found = compare(make("timm-cls"), images(4), **QUICK)
    assert "was 2.0x as fast at times as at others" in found.recommendation.sentence
    assert found.entries[0].images_per_second == 90.0  # the median
    assert found.entries[2].images_per_second == pytest.approx(90.0 * found.entries[2].speed_up)


def test_progress_tells_of_every_phase(folder):
    told = []
    compare(make("timm-cls"), folder, **QUICK, progress=lambda *given: told.append(given))
    assert ("decisions", 4, 20) in told
    assert ("decisions", 20, 20) in told
    assert ("speed and memory", 5, 5) in told
    assert Comparison  # the type that is returned is public
