"""Pose: crops, heatmaps, mirrors and OKS, each against a slow or hand-made reference; models learn."""

import copy
import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from PIL import Image

from foveate.data import DataError, Loader
from foveate.data.instances import VISIBLE, Instances
from foveate.data.keypoints import BODY, PARTS, PERSON, WHOLEBODY
from foveate.data.preprocessing import Preprocessing
from foveate.models.dense import dense_model
from foveate.tasks import Augmentation
from foveate.tasks.coco_evaluation import average_precision
from foveate.tasks.heatmaps import decode, encode, mirrored_heatmaps, person_crop
from foveate.tasks.pose import Evaluation, Pose, Training, WholeBodyPose, flipped_points

sys.path.insert(0, str(Path(__file__).parents[1] / "data"))
from coco_files import content, person, write_coco

SIZE = (64, 48)
SMALL_CLUSTR = {"depths": (1, 1, 1, 1), "embed_dims": (16, 32, 48, 64), "num_heads": (1, 1, 2, 2), "img_size": SIZE}
PLAIN = Preprocessing(*SIZE, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))


def estimator(keypoints=17):
    torch.manual_seed(0)
    return dense_model(
        timm.create_model("clustr_tiny", num_classes=0, **SMALL_CLUSTR), "heatmaps", keypoints, channels=32
    )


def dotted(points, size=(120, 160), box=None):
    """An image with a white dot at each keypoint, and the person that has them."""
    pixels = np.zeros((*size, 3), dtype=np.uint8)
    for x, y in points:
        pixels[math.floor(y) - 1 : math.floor(y) + 2, math.floor(x) - 1 : math.floor(x) + 2] = 255
    values = np.array([(x, y, VISIBLE) for x, y in points], dtype=np.float32)[None]
    box = np.array([box or (20, 10, 100, 110)], dtype=np.float32)
    areas = np.array([5000.0], dtype=np.float32)
    one, none = np.zeros(1, dtype=np.int64), np.zeros(1, dtype=bool)
    return Image.fromarray(pixels), Instances(size, 3, box, one, areas, none, None, values)


def people(count=17, seed=0):
    draws = np.random.default_rng(seed)
    return [tuple(draws.uniform((25, 15), (95, 105))) for _ in range(count)]


# -- heatmaps


@pytest.mark.parametrize("stride", [4, 8])
def test_decoding_gives_back_what_was_encoded_within_half_a_pixel(stride):
    points = torch.rand(200, 2, generator=torch.Generator().manual_seed(0)) * torch.tensor([180.0, 240.0]) + 6
    heatmaps = encode(points, (256, 192), stride)
    found, scores = decode(heatmaps[None], stride)
    assert (found[0] - points).abs().max() < 0.5
    assert scores.min() > 0.9


def test_a_heatmap_is_a_gaussian_at_the_exact_place():
    (found,) = encode(torch.tensor([[10.0, 22.0]]), (32, 24), 4, sigma=2.0)
    for row in range(8):
        for column in range(6):
            squared = (column + 0.5 - 2.5) ** 2 + (row + 0.5 - 5.5) ** 2
            assert float(found[row, column]) == pytest.approx(math.exp(-squared / 8), abs=1e-6)


def test_decoding_at_the_border_and_of_flat_maps_stays_inside():
    heatmaps = torch.zeros(1, 3, 16, 12)
    heatmaps[0, 0, 0, 0] = heatmaps[0, 1, 15, 11] = 1.0
    found, scores = decode(heatmaps, 4)
    assert found.isfinite().all()
    assert (found >= -4).all()
    assert (found <= torch.tensor([52.0, 68.0])).all()
    assert scores.tolist() == [[1.0, 1.0, 0.0]]


def test_the_mirrored_heatmaps_of_a_mirrored_image_are_those_of_the_image():
    points = torch.rand(17, 3, generator=torch.Generator().manual_seed(1)) * 40 + 4
    flipped = flipped_points(points, SIZE[1], PERSON.mirrored)
    ours, theirs = (encode(one[:, :2], SIZE, 4)[None] for one in (points, flipped))
    assert torch.allclose(mirrored_heatmaps(theirs, PERSON.mirrored), ours, atol=1e-5)


# -- crops


@pytest.mark.parametrize(("zoom", "turn"), [(1.0, 0.0), (1.3, 0.0), (0.8, 35.0), (1.0, -90.0)])
def test_a_crop_moves_pixels_and_points_alike(zoom, turn):
    """The slow reference: the brightest pixel of the crop is where the point went."""
    image, one = dotted([(61.5, 40.5)])
    crop = person_crop(one.boxes[0], (128, 96), zoom, turn)
    moved = crop.from_image(one.keypoints[0, :, :2])
    pixels = np.asarray(crop.cut(image), dtype=float)[..., 0]
    rows, columns = np.nonzero(pixels > 128)
    assert (columns.mean() + 0.5, rows.mean() + 0.5) == pytest.approx(tuple(moved[0]), abs=0.6)
    assert crop.to_image(moved) == pytest.approx(one.keypoints[0, :, :2], abs=1e-4)


def test_a_crop_has_the_box_in_its_middle_with_room_around_it():
    _, one = dotted([(60.5, 60.5)])
    crop = person_crop(one.boxes[0], (256, 192))
    left, top, right, bottom = one.boxes[0]
    corners = crop.from_image(np.array([[left, top], [right, bottom]]))
    assert corners.mean(axis=0) == pytest.approx([96, 128])
    wide, tall = corners[1] - corners[0]
    assert max(wide / 192, tall / 256) == pytest.approx(1 / 1.25)


def test_a_flip_swaps_left_and_right():
    image, one = dotted(people())
    torch.manual_seed(0)
    pixels, plain = Training(PLAIN, PERSON.mirrored)(image, one)
    mirrored_pixels, mirrored = Training(PLAIN, PERSON.mirrored, flip=1.0)(image, one)
    assert torch.equal(mirrored_pixels, pixels.flip(-1))
    left, right = BODY.index("left_wrist"), BODY.index("right_wrist")
    assert torch.allclose(mirrored["heatmaps"][right], plain["heatmaps"][left].flip(-1), atol=1e-5)
    assert torch.allclose(mirrored["heatmaps"][left], plain["heatmaps"][right].flip(-1), atol=1e-5)


def test_unlabeled_keypoints_and_those_outside_the_crop_do_not_count():
    image, one = dotted(people())
    one.keypoints[0, 3, 2] = 0
    one.keypoints[0, 4, :2] = (159.0, 119.0)
    _, target = Training(PLAIN, PERSON.mirrored)(image, one)
    expected = torch.ones(17)
    expected[[3, 4]] = 0
    assert torch.equal(target["weights"], expected)
    prediction = target["heatmaps"][None].clone()
    prediction[0, [3, 4]] += 5
    batch = {name: value[None] for name, value in target.items()}
    assert Pose().loss(prediction, batch).item() == pytest.approx(0, abs=1e-8)
    prediction[0, 0] += 1
    assert Pose().loss(prediction, batch).item() == pytest.approx(1 / 15, rel=1e-4)


# -- metrics


def evaluated(task, count=4, noise=0.0, points=17):
    """Metrics of heatmaps that are the truth, each moved by ``noise`` pixels of the crop."""
    metrics = task.metrics()
    for number in range(count):
        image, one = dotted(people(points, number))
        one = Instances(**{**vars(one), "image_id": number})
        _, truth = Evaluation(Preprocessing(256, 192))(image, one)
        moved = torch.from_numpy(truth.crop.from_image(one.keypoints[0, :, :2])).float() + noise
        metrics.update(encode(moved, (256, 192), 4)[None], [truth])
    return metrics


def test_the_truth_has_an_average_precision_of_one():
    figures = evaluated(Pose()).compute()
    assert {name: round(value, 3) for name, value in figures.items()} == {
        "pose_ap": 100,
        "pose_ap50": 100,
        "pose_ap75": 100,
        "pose_ar": 100,
    }
    whole = evaluated(WholeBodyPose(), points=133).compute()
    assert set(whole) >= set(WholeBodyPose.figures)
    assert all(round(value, 3) == 100 for value in whole.values())


def test_a_part_without_labels_has_no_figures_and_parts_are_judged_apart():
    metrics = evaluated(WholeBodyPose(), points=133)
    for row in metrics.truth:
        row["keypoints"][3 * PARTS["foot"].start : 3 * PARTS["foot"].stop] = [0.0] * 18
    for row in metrics.found:
        hand = slice(3 * PARTS["hand"].start, 3 * PARTS["hand"].stop)
        row["keypoints"][hand] = [value + 50 for value in row["keypoints"][hand]]
    figures = metrics.compute()
    assert "foot_ap" not in figures
    assert round(figures["body_ap"], 3) == round(figures["face_ap"], 3) == 100
    assert figures["hand_ap"] == 0
    assert figures["whole_ap"] < 100


def test_the_sigmas_of_a_part_are_its_own():
    """Moved by 2 pixels of the crop, a face (sigmas near 0.01) fails most thresholds; a body (0.026 to 0.107) none."""
    figures = evaluated(WholeBodyPose(), noise=2.0, points=133).compute()
    assert figures["body_ap"] > 95
    assert figures["foot_ap"] > 95
    assert figures["face_ap"] == pytest.approx(30, abs=10)
    assert figures["hand_ap"] < 100


@pytest.mark.parametrize(("distance", "passed"), [(0.0, 10), (4.0, 7), (6.0, 3), (20.0, 0)])
def test_similarity_by_hand(distance, passed):
    """One keypoint: OKS = exp(-d^2 / (2 area (2 sigma)^2)); AP is the share of thresholds 0.5, 0.55, ... it passes."""
    area, sigma = 1000.0, 0.1
    oks = math.exp(-(distance**2) / (2 * area * (2 * sigma) ** 2))
    thresholds = [0.5 + 0.05 * i for i in range(10)]
    plain = {"image_id": 1, "category_id": 1}
    truth = [plain | {"bbox": [0, 0, 40, 40], "area": area, "iscrowd": 0, "keypoints": [10, 10, 2], "num_keypoints": 1}]
    found = [plain | {"keypoints": [10 + distance, 10, 1], "score": 1.0}]
    figures = average_precision([{"id": 1, "height": 50, "width": 50}], truth, found, "keypoints", [sigma])
    assert sum(oks >= limit for limit in thresholds) == passed
    assert figures["ap"] == pytest.approx(10 * passed)


def test_metrics_merge_and_travel_as_json():
    whole, first, second = (evaluated(Pose(), count) for count in (6, 3, 6))
    second.truth, second.found, second.people = second.truth[3:], second.found[3:], 3
    before = copy.copy(first)
    merged = type(first).from_state(json.loads(json.dumps(first.state())))
    merged.merge(second)
    assert merged.compute() == pytest.approx(whole.compute())
    assert (merged.images, before.images) == (6, 3)
    with pytest.raises(ValueError, match="must be a list"):
        type(first).from_state(first.state() | {"truth": 4})
    with pytest.raises(ValueError, match="3 persons"):
        type(first).from_state(first.state() | {"found": []})


def test_unknown_people_have_no_figures():
    task, metrics = Pose(), Pose().metrics()
    image, one = dotted(people())
    _, truth = Evaluation(PLAIN)(image, one)
    metrics.update(torch.rand(1, 17, 16, 12), task.unknown_like([truth]))
    assert metrics.compute() == {}
    assert task.any_known([truth])
    assert not task.any_known(task.unknown_like([truth]))


# -- models


def test_training_for_seconds_lowers_the_loss_and_the_flip_test_averages():
    task = Pose.for_data(Pose.open("scenes:objects,count=4,size=64", "train"))
    model = estimator(5)
    data = Pose.open("scenes:objects,count=4,size=64", "train")
    transform = task.training_transform(Preprocessing.of(model), Augmentation(kind="evaluation"))
    batch = next(Loader(data, transform, 4, seed=0, train=True, rules=task).epoch(0))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    losses = []
    for _ in range(8):
        (loss,) = task.losses(model.train(), batch.images, batch.targets).values()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]
    with torch.no_grad():
        plain = model.eval()(batch.images)
        flipped = model(batch.images.flip(-1)).flip(-1)[:, [0, 1, 4, 3, 2]]
        assert torch.allclose(task.predict(model, batch.images), (plain + flipped) / 2, atol=1e-5)


# -- data and bad input


def written(tmp_path, rows):
    data = content(rows, categories=((1, "person"),))
    data["categories"] = [{"id": 1, "name": "person", "keypoints": list(BODY), "skeleton": []}]
    return write_coco(tmp_path, data, "person_keypoints_val2017.json", "val2017")


def test_each_labeled_person_is_a_sample(tmp_path):
    labeled, unlabeled = [30, 30, 2] * 17, [0, 0, 0] * 17
    rows = [person(1, labeled), person(2, unlabeled), person(3, labeled, image=2), person(4, labeled, iscrowd=1)]
    data = Pose.open(str(written(tmp_path, rows)), "val")
    assert len(data) == 2
    assert data.classes == BODY
    samples = [data.read(i) for i in range(2)]
    assert [len(sample.target) for sample in samples] == [1, 1]
    assert len({sample.name for sample in samples}) == 2
    assert data.target(1).image_id == 2


def test_scenes_give_one_object_each():
    data = Pose.open("scenes:objects,count=6,size=96", "val")
    assert len(data) == 6
    assert all(len(data.read(i).target) == 1 for i in range(6))
    assert data.classes == ("center", "top", "left", "bottom", "right")


def test_what_does_not_fit_is_named(tmp_path):
    folder = str(written(tmp_path, [person(1, [30, 30, 2] * 17)]))
    assert "17 keypoints, but the model predicts 5" in Pose.for_model(estimator(5)).open_matching(folder).mismatch
    assert Pose.for_model(estimator(17)).open_matching(folder).mismatch == ""
    with pytest.raises(ValueError, match=r"is for classification, not for pose.*ENCODER\+heatmaps"):
        Pose.for_model(timm.create_model("clustr_tiny", num_classes=3, **SMALL_CLUSTR))
    with pytest.raises(DataError, match=r"no \*wholebody_"):
        WholeBodyPose.open(folder, "val")
    with pytest.raises(DataError, match="labeled keypoint"):
        Pose.open(str(written(tmp_path / "none", [person(1, [0, 0, 0] * 17)])), "val")
    with pytest.raises(DataError, match="other keypoints"):
        Pose.open(folder, "val", classes=("a", "b"))
    with pytest.raises(ValueError, match="zoom is a share"):
        Pose(zoom=2.0)


def test_a_picture_shows_limbs_between_keypoints():
    image = Image.new("RGB", (480, 640))
    points = torch.rand(133, 2, generator=torch.Generator().manual_seed(0)) * torch.tensor([180.0, 240.0]) + 6
    drawn = np.asarray(WholeBodyPose().draw(image, encode(points, (256, 192), 4)))
    for number in (9, 10, 17, 60, 130):
        x, y = (int(value * 2.5) for value in points[number])
        assert drawn[y, x].any(), WHOLEBODY.names[number]
    blank = np.asarray(WholeBodyPose().draw(image, torch.zeros(133, 64, 48)))
    assert not blank.any()
