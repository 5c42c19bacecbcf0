"""Detection: transforms move image and objects alike, AP is COCO's, models learn, bad input is named."""

import copy
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from PIL import Image

import foveate as fv
from foveate.data import DataError, Loader, Sample, open_data
from foveate.data.instances import Instances, tight_boxes
from foveate.data.preprocessing import Preprocessing
from foveate.data.scenes.objects import objects_scene
from foveate.models.dense import dense_model
from foveate.tasks import Augmentation, find_task
from foveate.tasks.coco_evaluation import average_precision
from foveate.tasks.detection import Detection, InstanceSegmentation
from foveate.tasks.detection_metrics import DetectionMetrics, restored, truth_of
from foveate.tasks.instance_transforms import Evaluation, Training, resized_size

sys.path.insert(0, str(Path(__file__).parents[1] / "data"))
from coco_files import annotation, content, write_coco

SMALL_CLUSTR = {"depths": (1, 1, 1, 1), "embed_dims": (16, 32, 48, 64), "num_heads": (1, 1, 2, 2), "img_size": 64}
PLAIN = {"mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 1.0)}


def detector(head="retinanet", classes=10, **options):
    torch.manual_seed(0)
    encoder = timm.create_model("clustr_tiny", num_classes=0, **SMALL_CLUSTR)
    return dense_model(encoder, head, classes, channels=16, smallest_anchor=12, **options)


def painted(boxes, size=(40, 60)):
    """An image whose objects are bright rectangles, each of another brightness, with masks to match."""
    pixels = np.zeros((*size, 3), dtype=np.uint8)
    masks = np.zeros((len(boxes), *size), dtype=bool)
    for number, (left, top, right, bottom) in enumerate(boxes):
        pixels[top:bottom, left:right] = 100 + 50 * number
        masks[number, top:bottom, left:right] = True
    crowd = np.zeros(len(boxes), dtype=bool)
    labels = np.arange(len(boxes))
    areas = masks.sum(axis=(1, 2)).astype(np.float32)
    return Image.fromarray(pixels), Instances(size, 7, tight_boxes(masks), labels, areas, crowd, masks)


# -- transforms


@pytest.mark.parametrize(
    ("size", "short", "long", "expected"),
    [
        ((480, 640), 800, 1333, (800, 1067)),
        ((640, 480), 800, 1333, (1067, 800)),
        ((200, 600), 800, 1333, (444, 1333)),
        ((50, 50), 100, 100, (100, 100)),
    ],
)
def test_the_short_side_decides_until_the_long_side_is_too_long(size, short, long, expected):
    assert resized_size(size, short, long) == expected


@pytest.mark.parametrize(
    "options",
    [{}, {"flip": 1.0}, {"short_sides": (50, 90)}, {"jitter": (0.5, 1.6)}, {"jitter": (1.5, 2.0), "flip": 1.0}],
    ids=str,
)
@pytest.mark.parametrize("seed", range(3))
def test_image_boxes_and_masks_move_alike(options, seed):
    """The slow reference: where the bright pixels of an object are after the transform, there are its box and mask."""
    torch.manual_seed(seed)
    boxes = [(4, 6, 20, 26), (30, 10, 50, 36)]
    image, instances = painted(boxes)
    pixels, target = Training(Preprocessing(80, 120, **PLAIN), **options)(image, instances)
    assert len(target["boxes"]) == len(target["labels"]) == len(target["masks"])
    for box, label, mask in zip(target["boxes"], target["labels"], target["masks"], strict=True):
        brightness = (100 + 50 * int(label)) / 255
        bright = (pixels[0] - brightness).abs() < 0.06
        inside = torch.zeros_like(bright)
        rows, columns = mask.nonzero(as_tuple=True)
        inside[rows, columns] = True
        assert (bright & inside).sum() >= 0.8 * inside.sum()
        assert (bright & ~inside).sum() <= 0.3 * max(1, int(bright.sum()))  # soft edges of the brighter object
        left, top, right, bottom = tight_boxes(mask[None].numpy())[0]
        assert torch.allclose(box, torch.tensor([left, top, right, bottom]), atol=1.6)


def test_a_flip_moves_the_box_to_the_other_side():
    image, instances = painted([(4, 6, 20, 26)])
    _, target = Training(Preprocessing(40, 60, **PLAIN), flip=1.0)(image, instances)
    assert target["boxes"].tolist() == [[40, 6, 56, 26]]


def test_objects_that_a_crop_leaves_out_are_dropped_and_crowds_are_not_learned():
    image, instances = painted([(0, 0, 6, 6), (20, 10, 50, 36)])
    kept = []
    for seed in range(12):
        torch.manual_seed(seed)
        _, target = Training(Preprocessing(40, 60, **PLAIN), jitter=(2.0, 2.0))(image, instances)
        kept.append(target["labels"].tolist())
        assert (target["boxes"][:, 2:] > target["boxes"][:, :2]).all()
    assert [1] in kept
    crowd = Instances(**{**vars(instances), "crowd": np.array([True, False])})
    _, target = Training(Preprocessing(40, 60, **PLAIN))(image, crowd)
    assert target["labels"].tolist() == [1]


def test_an_image_without_objects_has_an_empty_target():
    image, instances = painted([])
    for options in ({}, {"jitter": (0.5, 2.0), "flip": 1.0}):
        _, target = Training(Preprocessing(40, 60, **PLAIN), **options)(image, instances)
        assert target["boxes"].shape == (0, 4)


def test_batches_are_padded_and_their_size_does_not_move_boxes():
    task = InstanceSegmentation(10)
    images = [torch.ones(3, 40, 70), torch.ones(3, 64, 33)]
    batch = task.stack(images)
    assert batch.shape == (2, 3, 64, 96)
    assert batch[0, :, :40, :70].min() == 1
    assert batch[0].sum() == 3 * 40 * 70
    masks = torch.ones(2, 40, 70, dtype=torch.bool)
    (padded,) = task._padded([{"masks": masks}], (64, 96))
    assert padded["masks"].shape == (2, 64, 96)
    assert padded["masks"].sum() == masks.sum()


# -- metrics


def found_like(instances, score=0.9, shift=0.0):
    """Detections that are the truth, in the model's pixels, twice as large as the stored ones."""
    count = len(instances)
    whole = torch.ones(count, 28, 28)
    boxes = 2 * torch.from_numpy(instances.boxes) + shift
    labels = torch.from_numpy(instances.labels)
    return {"boxes": boxes, "labels": labels, "scores": torch.full((count,), score), "masks": whole}


def test_the_truth_has_an_average_precision_of_one():
    metrics = DetectionMetrics(with_masks=True)
    for number in range(3):
        _, instances = painted([(4, 6, 20, 26), (30, 10, 50, 36)])
        instances = Instances(**{**vars(instances), "image_id": number})
        metrics.update([found_like(instances)], [truth_of(instances, (2.0, 2.0))])
    figures = metrics.compute()
    assert figures["box_ap"] == figures["box_ap50"] == figures["box_ap75"] == pytest.approx(100)
    assert figures["mask_ap50"] == pytest.approx(100)
    assert "box_ap_large" not in figures  # no object is that large
    assert metrics.images == 3


def test_a_small_case_by_hand():
    """One class, two objects, three guesses: right, wrong, right. Precision 1 up to recall 1/2, then 2/3.

    COCO reads precision at 101 recalls, 51 of them up to 1/2: (51 * 1 + 50 * 2 / 3) / 101.
    """
    images = [{"id": 1, "height": 100, "width": 100}]
    plain = {"image_id": 1, "category_id": 4}
    truth = [plain | {"bbox": box, "area": 400.0, "iscrowd": 0} for box in ([0, 0, 20, 20], [50, 50, 20, 20])]
    guesses = ([0, 0, 20, 20], 0.9), ([0, 70, 20, 20], 0.8), ([50, 50, 20, 20], 0.7)
    found = [plain | {"bbox": box, "score": score} for box, score in guesses]
    figures = average_precision(images, truth, found, "bbox")
    expected = 100 * (51 + 50 * 2 / 3) / 101
    assert (figures["ap"], figures["ap50"]) == pytest.approx((expected, expected))
    assert figures["ar"] == pytest.approx(100)


def test_crowds_are_neither_found_nor_missed():
    _, instances = painted([(4, 6, 20, 26), (30, 10, 50, 36)])
    crowd = Instances(**{**vars(instances), "labels": np.zeros(2, dtype=np.int64), "crowd": np.array([False, True])})
    metrics = DetectionMetrics()
    one = {name: value[:1] for name, value in found_like(crowd).items() if name != "masks"}
    metrics.update([one], [truth_of(crowd, (2.0, 2.0))])
    assert metrics.compute()["box_ap"] == pytest.approx(100)


def test_metrics_merge_and_travel_as_json():
    _, instances = painted([(4, 6, 20, 26), (30, 10, 50, 36)])
    whole, parts = DetectionMetrics(True), [DetectionMetrics(True), DetectionMetrics(True)]
    for number in range(4):
        one = Instances(**{**vars(instances), "image_id": number})
        given = [found_like(one, 0.5 + number / 10, shift=8.0 * (number % 2))], [truth_of(one, (2.0, 2.0))]
        whole.update(*given)
        before = copy.copy(parts[number % 2])
        parts[number % 2].update(*given)
        assert before.images < parts[number % 2].images, "an update must not change a shallow copy"
    first, second = (DetectionMetrics.from_state(json.loads(json.dumps(part.state()))) for part in parts)
    first.merge(second)
    assert first.compute() == pytest.approx(whole.compute())
    assert 0 < whole.compute()["box_ap"] < 100


def test_broken_states_are_refused():
    state = DetectionMetrics().state()
    with pytest.raises(ValueError, match="list of rows"):
        DetectionMetrics.from_state(state | {"truth": 3})
    with pytest.raises(ValueError, match="not seen"):
        DetectionMetrics.from_state(state | {"truth": [{"image_id": 3}]})


def test_without_objects_there_is_no_figure():
    metrics = DetectionMetrics()
    _, empty = painted([])
    metrics.update([found_like(empty)], [truth_of(empty, (1.0, 1.0))])
    assert metrics.compute() == {}
    assert metrics.images == 1


def test_boxes_in_the_padding_are_clipped_to_the_image():
    found = {"boxes": torch.tensor([[10.0, 10, 500, 500], [300, 300, 400, 400]])}
    found |= {"labels": torch.tensor([0, 1]), "scores": torch.tensor([0.5, 0.4])}
    whole = restored(found, (60, 80), (2.0, 2.0))
    assert whole["boxes"].tolist() == [[5, 5, 80, 60]]
    assert whole["labels"].tolist() == [0]


# -- models


@pytest.mark.parametrize("name", ["detection", "instance-segmentation"])
def test_training_for_seconds_lowers_the_loss(name):
    kind = find_task(name)
    data = open_data("scenes:objects,count=2,size=64", "train")
    task = kind.for_data(data)
    model = detector({"detection": "retinanet", "instance-segmentation": "mask-rcnn"}[name], detections=5)
    if name == "instance-segmentation":  # a mask takes 0.5 GMACs, whatever the encoder
        model.head.roi_heads.fg_bg_sampler.batch_size_per_image = 16
    transform = task.training_transform(Preprocessing.of(model), Augmentation(kind="evaluation"))
    batch = next(Loader(data, transform, 2, seed=0, train=True, rules=task).epoch(0))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    losses = []
    for _ in range(12 if name == "detection" else 6):
        torch.manual_seed(0)
        parts = task.losses(model.train(), batch.images, batch.targets)
        total = task.loss(parts, batch.targets)
        optimizer.zero_grad()
        total.backward()
        optimizer.step()
        losses.append(total.item())
    assert losses[-1] < 0.9 * losses[0]
    evaluation = task.evaluation_transform(Preprocessing.of(model))
    (again,) = Loader(data, evaluation, 2, seed=0, train=False, rules=task).epoch(0)
    metrics = task.metrics()
    with torch.no_grad():
        metrics.update(task.predict(model.eval(), again.images), again.targets)
    assert set(metrics.compute()) <= {f"{kind}_{f}" for kind in ("box", "mask") for f in FIGURES}
    assert task.any_known(again.targets)
    assert not task.any_known(task.unknown_like(again.targets))


FIGURES = ("ap", "ap50", "ap75", "ap_small", "ap_medium", "ap_large", "ar")


def test_a_run_trains_evaluates_and_is_resumed(tmp_path):
    values = {
        "data.task": "detection",
        "data.batch_size": 2,
        "data.workers": 0,
        "schedule.epochs": 2,
        "schedule.warmup_epochs": 0.0,
        "model.options": SMALL_CLUSTR | {"image_size": 64, "head": {"channels": 8, "smallest_anchor": 12}},
    }
    values["model.options"].pop("img_size")
    options = {"model": "clustr_tiny+retinanet", "data": "scenes:objects,count=2,size=64", "overrides": values}
    whole = fv.train(_plain(), out=tmp_path / "whole", **options)
    assert {"classes", "boxes"} == set(whole.history[-1]["train"])
    assert "box_ap" in whole.history[-1]["val"]
    stopped = {**options, "overrides": values | {"run.steps": 1}}
    fv.train(_plain(), out=tmp_path / "again", **stopped)
    resumed = fv.train(_plain(), out=tmp_path / "again", resume=True, **options)
    assert resumed.history[-1]["train"] == pytest.approx(whole.history[-1]["train"])


def _plain():
    from foveate.training.config import TrainConfig

    return TrainConfig()


# -- bad input


def test_models_without_a_detector_are_refused():
    model = timm.create_model("clustr_tiny", num_classes=3, **SMALL_CLUSTR)
    with pytest.raises(ValueError, match=r"is for classification, not for detection.*ENCODER\+retinanet"):
        Detection.for_model(model)
    with pytest.raises(ValueError, match=r"ENCODER\+mask-rcnn"):
        InstanceSegmentation.for_model(detector())


def test_classes_that_do_not_fit_are_named(tmp_path):
    folder = write_coco(tmp_path, content([annotation(1)]), "instances_val2017.json", "val2017")
    task = Detection.for_model(detector(classes=10))
    assert "has 2 classes, but the model predicts 10" in task.open_matching(str(folder)).mismatch
    with pytest.raises(ValueError, match="3 class names, but the model predicts 10"):
        task.open_matching(str(folder), names=("a", "b", "c"))
    fitting = Detection(2).open_matching(str(folder), names=("dog", "cat"))
    assert fitting.mismatch == ""
    assert fitting.task.classes == ("dog", "cat")


def test_data_without_boxes_and_useless_options_are_refused():
    sample = Sample(Image.new("RGB", (8, 8)), 3, "a.png")
    with pytest.raises(DataError, match=r"a\.png has no boxes"):
        Detection(3).transformed(Evaluation(Preprocessing(64, 64)), sample)
    with pytest.raises(ValueError, match=r"augmentation\.mixup"):
        Detection(3).training_transform(Preprocessing(64, 64), Augmentation(mixup=0.8))
    with pytest.raises(ValueError, match="Set one of them"):
        Detection(3, short_sides=(10, 20), jitter=(0.5, 1.0))
    with pytest.raises(ValueError, match="jitter must be two numbers"):
        Detection(3, jitter=(2.0, 1.0))
    with pytest.raises(ValueError, match="smoothing"):
        Detection.for_data(open_data("scenes:objects,count=2", "val"), smoothing=0.1)


# -- pictures


def test_a_picture_shows_boxes_where_they_are():
    scene = objects_scene(3, size=480)
    count = len(scene.instances)
    found = {"boxes": torch.from_numpy(scene.instances.boxes), "labels": torch.from_numpy(scene.instances.labels)}
    found |= {"scores": torch.full((count,), 0.9), "masks": torch.ones(count, 28, 28)}
    found["canvas"] = torch.tensor([480, 480])
    drawn = np.asarray(InstanceSegmentation(10, tuple("abcdefghij")).draw(scene.image, found), dtype=int)
    before = np.asarray(scene.image, dtype=int)
    left, top, right, bottom = scene.instances.boxes[0].astype(int)
    changed = np.abs(drawn - before).sum(axis=2) > 30
    assert changed[top + 30 : bottom - 5, left].mean() > 0.9
    assert changed[bottom - 1, left:right].mean() > 0.9
    away = np.ones_like(changed)
    for one in scene.instances.boxes.astype(int):
        away[max(0, one[1] - 30) : one[3] + 2, max(0, one[0] - 2) : max(one[2] + 2, one[0] + 120)] = False
    assert not changed[away].any()
    faint = found | {"scores": torch.full((count,), 0.1)}
    assert np.array_equal(np.asarray(Detection(10).draw(scene.image, faint)), np.asarray(scene.image))
