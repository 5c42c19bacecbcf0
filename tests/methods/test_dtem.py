"""DTEM: ToMe by a learned embedding, which gradients reach."""

import torch
from views import HEAD_DIM, HEADS, random_view

import foveate as fv
from foveate.methods import DTEM, StepShape, ToMe
from zoo import images, make


def test_it_merges_as_tome_by_the_embedding():
    step = StepShape(9, 6, 1, HEADS * HEAD_DIM, HEADS, HEAD_DIM, has_cls=True)
    layer = DTEM().build(step, 0).double()
    view = random_view(9, module=layer)
    keys = layer(view.normed).unsqueeze(1)  # one head that is the embedding
    expected = ToMe().assign(random_view(9, keys=keys), 6)
    found = DTEM().assign(view, 6)
    assert torch.equal(found.src, expected.src)
    assert torch.equal(found.joining.dst, expected.joining.dst)
    torch.testing.assert_close(found.joining.weight, expected.joining.weight)


def test_gradients_reach_the_embedding_and_not_what_it_reads():
    view = random_view(9, module=torch.nn.Linear(6, 3).double())
    view.normed.requires_grad_()
    DTEM().combine(view, DTEM().assign(view, 6)).square().sum().backward()
    assert view.module.weight.grad.abs().sum() > 0
    assert view.normed.grad is None or view.normed.grad.abs().sum() == 0


def test_a_merged_pair_costs_its_gradient_and_no_change_of_outputs():
    model = fv.reduce_(make("timm-cls", 2), DTEM(), fv.KeepRate(0.6, blocks=(0,)))
    with torch.no_grad():
        expected = model(images(2))
    torch.testing.assert_close(model(images(2)), expected)
