"""Different counts for different images: an average budget, real counts, and results that no other image changes."""

import json
from itertools import pairwise

import pytest
import torch

import foveate as fv
from foveate.adapters.adaptive import plans_of_levels
from foveate.costs import count, unreduced
from zoo import make

METHODS = (fv.ToMe(), fv.Ward(), fv.TokenPooling(), fv.TokenPooling(weights="none"), fv.TopK(), fv.ATS())
SCHEDULE = fv.Adaptive(0.75, blocks=(1, 2))


def drawn(number=16, seed=1):
    """Images of different contrast, so that their tokens differ in how alike they are."""
    generator = torch.Generator().manual_seed(seed)
    flat = torch.linspace(0.02, 2, number).view(-1, 1, 1, 1)
    return flat * torch.randn(number, 3, 24, 24, generator=generator)


def fitted(method, family="timm-cls", schedule=SCHEDULE):
    model = fv.reduce_(make(family), method, schedule)
    return fv.fit_adaptive_(model, drawn())


@pytest.mark.parametrize("family", ["timm-cls", "timm-mean", "timm-map", "timm-rope-mixed", "hf-vit"])
@pytest.mark.parametrize("method", METHODS, ids=repr)
def test_an_image_does_not_depend_on_its_batch(method, family):
    if method.needs_class_token and not fv.inspect(make(family)).has_cls:
        return
    model, x = fitted(method, family), drawn()
    with torch.no_grad():
        together, alone = model(x), [model(image[None]) for image in x]
    if family == "hf-vit":
        together, alone = together.logits, [one.logits for one in alone]
    torch.testing.assert_close(together, torch.cat(alone), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("method", METHODS, ids=repr)
def test_fitted_images_meet_the_budget_on_average_with_different_counts(method):
    model = fitted(method)
    shape, plans = model.foveate.shape, plans_of_levels(model.foveate, model.foveate.shape.grid)
    by_counts = {plan.counts: count(shape, plan, method, 0).macs for plan in plans}
    kept = [fv.trace(model, image[None]).counts for image in drawn()]
    whole = count(shape, unreduced(shape), None, 0).macs
    spent = [by_counts[counts] / whole for counts in kept]
    steps = sorted(macs / whole for macs in by_counts.values())
    widest = max(b - a for a, b in pairwise(steps))
    assert sum(spent) / len(spent) == pytest.approx(0.75, abs=widest / 2)  # whole levels, 16 images
    assert len(set(kept)) > 1


def test_a_batch_of_one_runs_on_as_many_tokens_as_its_level_says():
    model, seen = fitted(fv.TopK()), []
    model.blocks[3].register_forward_hook(lambda block, given, out: seen.append(out.shape[1]))
    with torch.no_grad():
        for image in drawn():
            model(image[None])
    assert [n - 1 for n in seen] == [fv.trace(model, image[None]).counts[-1] for image in drawn()]
    assert len(set(seen)) > 1


def test_cheaper_removals_never_get_more_tokens():
    schedule = fv.Adaptive(0.5, threshold=1.0)
    costs = torch.arange(8.0).repeat(3, 1) * torch.tensor([[0.1], [0.5], [3.0]])
    levels = schedule.choose(costs, [4, 6, 8, 10])
    assert levels.tolist() == [0, 2, 3]  # all, a quarter and an eighth of the removals are below the threshold


def test_predictions_in_groups_are_those_of_each_batch():
    model, batches = fitted(fv.Ward()), drawn().split(3)
    with torch.no_grad():
        expected = [model(batch) for batch in batches]
    found = list(fv.predict_grouped(model, batches, pool=7))
    assert [len(out) for out in found] == [3, 3, 3, 3, 3, 1]
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="pool must be a whole number of at least 1, got 0"):
        next(fv.predict_grouped(model, batches, pool=0))


def test_a_fitted_schedule_is_written_and_read():
    reduction = fitted(fv.Ward()).foveate.reduction
    assert fv.Reduction.from_dict(json.loads(json.dumps(reduction.to_dict()))) == reduction
    assert fv.Reduction.parse(reduction.text) == reduction
    assert eval(repr(reduction.schedule), {"Adaptive": fv.Adaptive}) == reduction.schedule


def test_without_a_threshold_the_error_says_how_to_fit_it():
    model = fv.reduce_(make("timm-cls"), fv.ToMe(), SCHEDULE)
    with pytest.raises(ValueError, match=r"has no threshold yet\. Fit it on some images: fv\.fit_adaptive_"):
        model(drawn(2))


def test_several_images_cannot_be_traced_at_once():
    with pytest.raises(ValueError, match="Trace one at a time"):
        fv.trace(fitted(fv.ToMe()), drawn(2))


def test_a_graph_of_fixed_shapes_is_refused_with_the_way_out(tmp_path):
    model = fitted(fv.ToMe())
    with pytest.raises(ValueError, match=r"need fixed shapes\. Use a fixed schedule there: fv\.reschedule_"):
        fv.export(model, tmp_path / "out", to="onnx")
    with pytest.raises(Exception, match="need fixed shapes"):
        torch.export.export(model, (drawn(2),))


@pytest.mark.parametrize(
    ("make_schedule", "words"),
    [
        (lambda: fv.Adaptive(50), "For 50 % write 0.5"),
        (lambda: fv.Adaptive(0.5, span=2), "Adaptive.span must be from 0 to 1"),
        (lambda: fv.Adaptive(0.5, levels=1), "Adaptive.levels must be from 2 to 100"),
        (lambda: fv.Adaptive(0.5, threshold="low"), "Adaptive.threshold must be a number"),
    ],
)
def test_bad_values_are_refused(make_schedule, words):
    with pytest.raises(fv.PlanError, match=words):
        make_schedule()


def test_methods_that_cannot_tell_what_a_removal_costs_are_refused():
    with pytest.raises(fv.PlanError, match="RandomSelect cannot tell what removing a token costs"):
        fv.reduce_(make("timm-cls"), fv.RandomSelect(), SCHEDULE)


def test_only_adaptive_models_can_be_fitted():
    with pytest.raises(ValueError, match="has no Adaptive schedule"):
        fv.fit_adaptive_(fv.reduce_(make("timm-cls"), fv.ToMe(), 0.8), drawn())
    with pytest.raises(ValueError, match="at least one image"):
        fv.fit_adaptive_(fv.reduce_(make("timm-cls"), fv.ToMe(), SCHEDULE), [])
