"""One pass over images, in which several models predict."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from foveate.evaluation.side_by_side import evaluate, first_images, predict_side_by_side
from foveate.tasks import Classification

CPU = torch.device("cpu")


class Says(nn.Module):
    """Adds a constant to the images, and writes down that it was called."""

    def __init__(self, name, calls, offset=0.0):
        super().__init__()
        self.name, self.calls, self.offset = name, calls, offset

    def forward(self, images):
        self.calls.append(self.name)
        return images + torch.tensor([self.offset, 0.0])


def batches(number):
    made = [torch.tensor([[1.0, 0.0], [0.0, 1.0]]) for _ in range(number)]
    return [SimpleNamespace(images=images, targets=torch.tensor([0, 1])) for images in made]


def models(calls):
    return {name: Says(name, calls, offset) for name, offset in (("a", 0.0), ("b", 5.0), ("c", 0.0))}


def test_models_take_turns_in_rotating_order():
    calls = []
    found = list(predict_side_by_side(models(calls), batches(4), Classification(2).predict, CPU))
    assert "".join(calls) == "abcbcacababc"
    assert [list(batch.predictions) for batch in found] == [["a", "b", "c"]] * 4
    assert all(not prediction.requires_grad for batch in found for prediction in batch.predictions.values())


def test_every_model_is_judged_next_to_the_first():
    found = evaluate(models([]), batches(3), Classification(2), CPU, compare=True)
    assert found.images == 6
    figures = {name: metrics.compute() for name, metrics in found.metrics.items()}
    assert [figures[name]["agreement"] for name in "abc"] == [100, 50, 100]
    assert [figures[name]["top1"] for name in "abc"] == [100, 50, 100]
    assert all(found.per_second(name) > 0 for name in "abc")
    alone = evaluate(models([]), batches(1), Classification(2), CPU)
    assert "agreement" not in alone.metrics["b"].compute()


def test_a_batch_counts_for_all_models_or_for_none():
    made = models([])
    found = evaluate(made, batches(1), Classification(2), CPU, compare=True)

    class Interrupts(Classification):
        def check_prediction(self, prediction, reference, name):
            if name == "c":
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        evaluate(made, batches(1), Interrupts(2), CPU, compare=True, so_far=found)
    assert {metrics.images for metrics in found.metrics.values()} == {2}
    evaluate(made, batches(2), Classification(2), CPU, compare=True, so_far=found)
    assert {metrics.images for metrics in found.metrics.values()} == {6}


def test_outputs_that_are_not_finite_are_an_error():
    with pytest.raises(ValueError, match="b: the model's outputs are NaN or infinite"):
        evaluate({**models([]), "b": Says("b", [], float("nan"))}, batches(1), Classification(2), CPU, compare=True)


@pytest.mark.parametrize(("limit", "sizes"), [(None, [2, 2, 2]), (1, [1]), (3, [2, 1]), (4, [2, 2]), (9, [2, 2, 2])])
def test_the_limit_is_a_number_of_images(limit, sizes):
    found = list(first_images(batches(3), limit))
    assert [len(pair.images) for pair in found] == [len(pair.targets) for pair in found] == sizes
