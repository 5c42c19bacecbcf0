"""PatchMerger, SiT and Sinkhorn: slots that mix all tokens, held against their equations for one image at a time."""

import math

import pytest
import torch
from views import HEAD_DIM, HEADS, random_view

import foveate as fv
from foveate.methods import PatchMerger, Sinkhorn, SiT, StepShape
from zoo import images, make

LEARNED = (PatchMerger(), SiT(), Sinkhorn(), Sinkhorn(epsilon=0.1, iterations=8))


def with_module(method, n=7, keep=3):
    step = StepShape(n, keep, 1, HEADS * HEAD_DIM, HEADS, HEAD_DIM, has_cls=True)
    return random_view(n, module=method.build(step, 0).double())


def weights_by_loops(method, module, rows):
    """(K, n) as lists."""
    x = torch.tensor(rows, dtype=torch.float64)
    if isinstance(method, PatchMerger):
        logits = [[float(q @ module.norm(token)) for token in x] for q in module.queries]
        return [softmax(row) for row in logits]
    if isinstance(method, SiT):
        logits = [[float(v) for v in module.weight(token) * module.scale] for token in x]
        return [softmax(list(column)) for column in zip(*logits, strict=True)]
    unit = [c / c.norm() for c in module.centers]
    plan = [[math.exp(float(c @ (t / t.norm())) / method.epsilon) for t in x] for c in unit]
    for _ in range(method.iterations):
        plan = [[v / sum(row) for v in row] for row in plan]
        columns = [sum(column) for column in zip(*plan, strict=True)]
        plan = [[v / total for v, total in zip(row, columns, strict=True)] for row in plan]
    return [[v / sum(row) for v in row] for row in plan]


def softmax(values):
    return [math.exp(v) / sum(map(math.exp, values)) for v in values]


@pytest.mark.parametrize("method", LEARNED, ids=repr)
def test_slots_are_the_mixtures_of_the_equations(method):
    view = with_module(method)
    assignment = method.assign(view, 3)
    out = method.combine(view, assignment)[:, view.prefix :]
    for image in range(2):
        weights = torch.tensor(weights_by_loops(method, view.module, view.patches[image].tolist())).double()
        torch.testing.assert_close(out[image], weights @ view.patches[image], rtol=1e-4, atol=1e-5)
        assert assignment.dst[image].tolist() == weights.argmax(dim=0).tolist()


def test_every_center_of_a_sharp_plan_gets_its_share():
    method = Sinkhorn(epsilon=0.1, iterations=200)
    view = with_module(method, n=12, keep=3)
    plan = view.module.plan(view.patches)
    torch.testing.assert_close(plan.sum(dim=2), torch.full((2, 3), 4.0), rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(plan.sum(dim=1), torch.ones(2, 12), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("method", LEARNED[:3], ids=repr)
def test_its_modules_get_gradients(method):
    model = fv.reduce_(make("timm-cls", 2), method, fv.KeepRate(0.5, blocks=(1,)))
    model(images(2)).square().sum().backward()
    assert all(p.grad.abs().sum() > 0 for p in model.foveate.parameters())


def test_another_number_of_slots_than_learned_is_an_error_that_says_so():
    model = fv.reduce_(make("timm-cls", 2), PatchMerger(), fv.Keep({1: 9}))
    with pytest.raises(ValueError, match="has learned 9 slots for block 1, but this schedule asks for 5"):
        fv.reschedule_(model, fv.Keep({1: 5}))(images(1))


@pytest.mark.parametrize("options", [{"epsilon": 0.0}, {"iterations": 0}])
def test_options_that_mean_nothing_are_refused(options):
    with pytest.raises(ValueError, match=r"must be (above 0|at least 1)"):
        Sinkhorn(**options)
