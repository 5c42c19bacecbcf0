"""Tasks: what classification counts, and that another task is an addition."""

import json
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torch.nn.functional import cross_entropy

from foveate.data import Loader, Sample
from foveate.data.source import ImageData
from foveate.evaluation.side_by_side import evaluate
from foveate.tasks import Classification, ClassificationMetrics, Metrics, Task, find_task, register, task_names
from foveate.tasks.base import chunk, first, to_device

LOGITS = torch.tensor([[3.0, 2, 1, 0, -1, -2], [0, 1, 2, 3, 4, 5], [5, 4, 3, 2, 1, 0], [0, 0, 0, 0, 0, 1]])
LABELS = torch.tensor([1, 5, -1, 0])


def counted(*parts, reference=None):
    metrics = ClassificationMetrics()
    for part in parts:
        others = None if reference is None else reference[part]
        metrics.update(LOGITS[part], LABELS[part], others)
    return metrics


def test_metrics_by_hand():
    found = counted(slice(0, 4)).compute()
    known = LABELS >= 0
    assert found["top1"] == pytest.approx(100 / 3)
    assert found["top5"] == 100
    assert found["loss"] == pytest.approx(cross_entropy(LOGITS[known], LABELS[known]).item())
    assert "agreement" not in found  # nothing to agree with


def test_agreement_and_divergence_are_those_of_the_reference():
    others = LOGITS.roll(1, dims=1)
    found = counted(slice(0, 4), reference=others).compute()
    assert found["agreement"] == 100 * (LOGITS.argmax(1) == others.argmax(1)).double().mean().item()
    p, q = others.softmax(1), LOGITS.softmax(1)
    assert found["kl"] == pytest.approx((p * (p / q).log()).sum(1).mean().item(), abs=1e-6)
    same = counted(slice(0, 4), reference=LOGITS).compute()
    assert (same["agreement"], same["kl"]) == (100, 0)


def test_metrics_add_up_over_batches_processes_and_files():
    whole = counted(slice(0, 4), reference=LOGITS)
    batches = counted(slice(0, 1), slice(1, 4), reference=LOGITS)
    one, other = counted(slice(0, 3), reference=LOGITS), counted(slice(3, 4), reference=LOGITS)
    one.merge(other)
    stored = ClassificationMetrics.from_state(json.loads(json.dumps(whole.state())))
    assert whole.compute() == pytest.approx(batches.compute())
    assert whole.compute() == pytest.approx(one.compute())
    assert stored == whole


def test_nothing_is_known_without_labels():
    metrics = ClassificationMetrics()
    metrics.update(LOGITS, torch.full((4,), -1))
    assert (metrics.images, metrics.compute()) == (4, {})
    assert metrics.get("top1") is None


def test_labels_are_smoothed_once():
    task, labels = Classification(6, smoothing=0.2), torch.tensor([0, 1, 2, 3])
    assert task.loss(LOGITS, labels) == cross_entropy(LOGITS, labels, label_smoothing=0.2)
    soft = torch.tensor([[0.7, 0.3, 0, 0, 0, 0]]).expand(4, 6)  # smoothing would change these
    assert task.loss(LOGITS, soft) == cross_entropy(LOGITS, soft)


def test_a_prediction_is_drawn_over_a_copy():
    image = Image.new("RGB", (80, 40), "blue")
    drawn = Classification(6, tuple("abcdef")).draw(image, LOGITS[0])
    assert drawn.size == image.size
    assert drawn.tobytes() != image.tobytes()
    assert image.getextrema() == ((0, 0), (0, 0), (255, 255))


def test_captions_are_names_of_classes():
    task = Classification(2, ("cat", "dog"))
    assert [task.caption(label) for label in (0, torch.tensor(1), -1, 2)] == ["cat", "dog", "", ""]
    assert Classification(2).caption(0) == ""


def test_tasks_are_found_by_name():
    assert find_task("classification") is Classification
    assert Classification.name == "classification"
    with pytest.raises(ValueError, match=r"no task 'sorting'\. Known: classification"):
        find_task("sorting")
    with pytest.raises(ValueError, match="A task named 'classification' is already registered"):
        register("classification")(Classification)


def test_targets_of_any_kind_are_moved_divided_and_cut():
    boxes = [torch.zeros(n, 4) for n in (1, 2, 3, 4)]
    nested = {"masks": torch.arange(8).view(4, 2), "boxes": boxes}
    moved = to_device(nested, torch.device("meta"))
    assert {moved["masks"].device.type, *(box.device.type for box in moved["boxes"])} == {"meta"}
    halves = chunk(nested, 2)
    assert [half["masks"].tolist() for half in halves] == [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]
    assert [len(half["boxes"]) for half in halves] == [2, 2]
    assert [len(box) for box in first(nested, 3)["boxes"]] == [1, 2, 3]


# -- another task: where is the bright half of an image? Its target is a mask that flips with the image.


@dataclass
class Overlap(Metrics):
    images: int = 0
    shares: list[float] = field(default_factory=list)

    def update(self, prediction, targets, reference=None):
        self.images += len(targets)
        self.shares = [*self.shares, *((prediction > 0) == targets).float().mean(dim=(1, 2)).tolist()]

    def merge(self, other):
        self.images, self.shares = self.images + other.images, [*self.shares, *other.shares]

    def compute(self):
        return {"overlap": 100 * sum(self.shares) / len(self.shares)}

    def state(self):
        return {"images": self.images, "shares": self.shares}

    @classmethod
    def from_state(cls, state):
        return cls(**state)


@dataclass(frozen=True)
class BrightHalf(Task):
    monitor = "overlap"
    figures = ("overlap",)

    @classmethod
    def for_data(cls, data, **options):
        return cls()

    @classmethod
    def for_model(cls, model):
        return cls()

    def transformed(self, transform, sample):
        return transform(sample.image, sample.target)

    def collate(self, targets):
        return torch.stack(list(targets))

    def training_transform(self, preprocessing, options):
        return flipped

    def unknown_like(self, targets):
        return torch.zeros_like(targets)

    def predict(self, model, images):
        return model(images).mean(dim=1)

    def loss(self, prediction, targets):
        return (prediction - targets.float()).square().mean()

    def metrics(self):
        return Overlap()


def flipped(image, mask):
    """Image and target alike."""
    pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1).float()
    return (pixels - 128).flip(2), mask.flip(1)


class Halves:
    def __len__(self):
        return 6

    def name(self, index):
        return f"half {index}"

    def open(self, index):
        image = Image.new("RGB", (4, 4), "black")
        image.paste("white", (2 * (index % 2), 0, 2 + 2 * (index % 2), 4))
        return image


class HalvesData(ImageData):
    def read(self, index):
        columns = torch.arange(4).expand(4, 4) // 2
        return Sample(self.pictures.open(index), columns == index % 2, self.pictures.name(index))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_task_with_masks_is_an_addition(workers):
    """Its targets pass the loader, are transformed with their images, and are judged by the one pass."""
    data = HalvesData(Halves(), "val", None, None, None)
    loader = Loader(data, flipped, 4, seed=0, train=False, workers=workers, rules=BrightHalf())
    found = evaluate({"model": nn.Identity()}, loader.epoch(0), BrightHalf(), torch.device("cpu"))
    assert found.images == 6
    assert found.metrics["model"].compute() == {"overlap": 100}


def test_a_task_is_registered_in_one_place():
    name = "bright half"
    try:
        assert register(name)(BrightHalf) is BrightHalf
        assert name in task_names()
        assert find_task(name) is BrightHalf
    finally:
        register.by_name.pop(name, None)
