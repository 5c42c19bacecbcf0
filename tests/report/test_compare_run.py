"""The comparison itself, on small untrained models and generated images; never how fast anything is."""

import copy
import dataclasses
import warnings

import numpy as np
import pytest
import torch
from PIL import Image

import foveate as fv
from comparing import QUICK, pretended, titles, untimed
from foveate.data.preprocessing import Preprocessing
from foveate.data.source import drawn_from
from foveate.methods.registry import all_methods
from foveate.report.compare import Comparison, candidates, compare, preparing, run, timing
from foveate.report.compare.candidates import (
    DEFAULT_BUDGETS,
    default_methods,
    find_candidates,
    label_of,
    read_methods,
)
from foveate.report.compare.on_object import covered_patches, share_on_object
from foveate.tasks import Classification
from zoo import CLASSES, IMAGE, PATCHES, images, make

pytestmark = pytest.mark.usefixtures("no_clock_and_no_gallery")


def test_figures_are_those_of_slow_obvious_code(real_speed):
    model, x = make("timm-cls"), images(10)
    labels = torch.arange(10) % CLASSES
    found = compare(model, [(x[:4], labels[:4]), (x[4:], labels[4:])], **QUICK)
    assert titles(found) == [
        "Unreduced",
        "Exact last block",
        "ToMe at 0.7",
        "ToMe at 0.5",
        "TopK at 0.7",
        "TopK at 0.5",
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
    whole, _ = preparing.prepared(model, torch.device("cpu"))
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
        "source": str(folder), "split": "all", "images": 20, "labeled": True, "note": "", "broken": 0,
        "agreement_of": "decisions",
    }  # fmt: skip
    assert not of_tensor.data["labeled"]
    assert "have no labels" in of_tensor.data["note"]


def test_a_limit_draws_from_all_and_is_the_same_each_time(folder):
    one, two, other = (compare(make("timm-cls"), folder, **QUICK, limit=6, seed=seed) for seed in (0, 0, 1))
    assert one.data["images"] == 6
    assert untimed(one) == untimed(two)
    assert [e.kl for e in other.entries] != [e.kl for e in one.entries]
    data = Classification(CLASSES).open_matching(str(folder)).data
    chosen = drawn_from(data, 6, seed=0).pictures
    names = [chosen.name(index) for index in range(6)]
    assert len({name.split("/")[-2] for name in names}) > 2  # not the first class alone
    assert compare(make("timm-cls"), images(9), **QUICK, limit=6).data["images"] == 6


def test_labels_that_do_not_match_leave_agreement(folder):
    model = make("timm-cls")
    model.reset_classifier(CLASSES + 2)
    found = compare(model, folder, **QUICK)
    assert "has 7 named classes, but the model predicts 9" in found.data["note"]
    assert all(entry.top1 is None and entry.agreement >= 0 for entry in found.entries)
    named = compare(model, folder, **QUICK, classes=[f"kind{i}" for i in range(CLASSES)] + ["more", "most"])
    assert (named.data["note"], named.data["labeled"]) == ("", True)
    strange = compare(model, folder, **QUICK, classes=[f"other{i}" for i in range(CLASSES + 2)])
    assert "Accuracy is left out" in strange.data["note"]
    assert strange.entries[0].top1 is None


def test_labels_beyond_the_models_classes_are_not_used():
    found = compare(
        make("timm-cls"),
        [(images(4), torch.tensor([0, 1, 2, CLASSES])), (images(4), torch.zeros(4, dtype=torch.long))],
        **QUICK,
    )
    assert f"a label is {CLASSES}, but the model predicts {CLASSES} classes" in found.data["note"]
    assert found.entries[0].top1 is None


def test_a_head_that_reads_patches_has_no_exact_last_block():
    found = compare(make("timm-mean"), images(4), **QUICK)
    assert titles(found) == ["Unreduced", "ToMe at 0.7", "ToMe at 0.5", "TopK at 0.7", "TopK at 0.5"]
    assert not any(entry.exact_last_block for entry in found.entries)


def test_a_method_that_refuses_the_model_is_told_of_once():
    found = compare(make("timm-mean"), images(4), **(QUICK | {"methods": ("evit", "tome")}))
    (refused,) = found.refused
    assert (refused.method, refused.budget) == ("EViT", None)
    assert "no class token" in refused.reason


def test_an_unreachable_default_budget_is_refused_and_the_rest_goes_on(monkeypatch):
    """ToMe halves the tokens at most in each block, and this model has four."""
    monkeypatch.setattr(candidates, "DEFAULT_BUDGETS", (0.7, 0.1))
    found = compare(make("timm-cls"), images(4), **(QUICK | {"methods": ("tome",), "budgets": (0.7, 0.1)}))
    (refused,) = found.refused
    assert (refused.label, refused.budget) == ("ToMe", 0.1)
    least = float(refused.reason.split()[4])
    assert refused.reason == f"ToMe cannot go below {least:.3f} of the MACs on this model."
    with pytest.raises(fv.PlanError):
        fv.reduce_(make("timm-cls"), fv.ToMe(), fv.Budget(least - 0.02), exact_last_block=True)
    fv.reduce_(make("timm-cls"), fv.ToMe(), fv.Budget(least), exact_last_block=True)


@pytest.mark.parametrize("budget", [0.8, 0.99])
def test_a_budget_above_the_exact_last_block_alone_is_refused_for_what_it_is(budget):
    """Of four blocks the last one is a fifth of the work, so that nothing is left to remove at 0.8."""
    found = compare(make("timm-cls"), images(2), **(QUICK | {"methods": ("topk",), "budgets": DEFAULT_BUDGETS}))
    with pytest.raises(ValueError, match=r"exact last block alone meets this budget"):
        find_candidates(make("timm-cls"), read_methods(["topk"]), (budget,))
    assert [(r.budget, r.reason) for r in found.refused] == [(0.8, candidates.NO_TOKEN_GOES)]


def test_an_asked_budget_nobody_reaches_is_an_error_with_the_smallest():
    with pytest.raises(
        ValueError, match=r"No method reaches 0.05 of the MACs on this model; the smallest is 0\.\d+, with"
    ):
        compare(make("timm-cls"), images(4), **(QUICK | {"budgets": (0.7, 0.05)}))


def test_budgets_with_equal_counts_are_one_candidate():
    found = find_candidates(make("timm-cls"), read_methods(["tome"]), (0.7, 0.6999))
    assert [c.budget for c in found.all[2:]] == [0.7]


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
    assert (first.label, first.kind, first.budget) == (f"DynamicViT, {tmp_path.name}/learned", "learned", None)
    assert first.python == f"import foveate as fv\nmodel = fv.load({str(folders[0])!r})"
    assert first.counts == tuple(fv.trace(learned.eval(), images(1)).counts)
    with pytest.raises(
        ValueError, match=r"DynamicViT, .*/learned has its own weights\. Load it instead: model = fv.load\("
    ):
        first.apply_(make("timm-cls"))
    assert second.params > found.entries[0].params
    assert [(r.label, r.reason) for r in found.refused] == [
        (f"ToMe, {tmp_path.name}/other", "It predicts 3 classes, but the model 7.")
    ]


def test_a_model_that_is_reduced_already_is_one_of_the_candidates():
    model = fv.reduce_(make("timm-cls"), fv.EViT(), fv.Keep({1: 20}))
    found = compare(model, images(4), **QUICK)
    assert found.entries[0].counts == (PATCHES,) * 4
    assert (found.entries[-1].label, found.entries[-1].counts) == ("EViT, as given", (36, 20, 20, 20))
    assert fv.cost(model).macs == found.entries[-1].macs


def test_every_method_has_a_name_for_people_and_the_default_are_those_that_need_no_training():
    labels = [label_of(method()) for method in all_methods().values()]
    assert len(set(labels)) == len(labels)
    assert [label for label in labels if "baseline" in label] == [
        "RadialSelect (baseline)",
        "RandomSelect (baseline)",
    ]
    assert {"ToMe", "EViT", "RandomSelect"} <= set(default_methods())
    assert not {"FreeSlice", "DynamicViT", "HVTPool"} & set(default_methods())
    assert DEFAULT_BUDGETS == (0.8, 0.65, 0.5)


def test_options_of_a_method_are_in_its_name_and_its_code():
    found = compare(make("timm-cls"), images(2), **(QUICK | {"methods": ("evit:fuse=false",), "budgets": (0.7,)}))
    entry = found.entries[-1]
    assert (entry.method, entry.label) == ("EViT:fuse=false", "EViT (fuse=false)")
    assert entry.python.endswith("fv.reduce_(model, fv.EViT(fuse=False), fv.Budget(0.7), exact_last_block=True)")


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
    assert "varied by 2.0x" in found.recommendation.sentence
    assert found.entries[0].images_per_second == 90.0  # the median
    assert found.entries[2].images_per_second == pytest.approx(90.0 * found.entries[2].speed_up)


def test_progress_tells_of_every_phase(folder):
    told = []
    found = fv.compare(make("timm-cls"), folder, **QUICK, progress=lambda *given: told.append(given))
    assert isinstance(found, Comparison)
    assert ("decisions", 4, 20) in told
    assert ("decisions", 20, 20) in told
    assert ("speed and memory", 5, 5) in told


def test_an_entry_applies_itself_as_its_two_lines_do():
    methods = ("tome", "evit:fuse=false", "ward", "token-pooling:output=medoid", "cluster-attention")
    found = compare(make("timm-cls"), images(2), **(QUICK | {"methods": methods, "budgets": (0.7,)}))
    assert len(found.entries) == 2 + len(methods)
    for entry in found.entries:
        ours, theirs = entry.apply_(make("timm-cls")), {"model": make("timm-cls")}
        exec(entry.python, theirs)
        assert torch.equal(ours(images(2)), theirs["model"](images(2))), entry.title
