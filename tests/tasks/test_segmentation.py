"""Segmentation: image and mask move alike, metrics are torchmetrics', windows are the whole where one covers it."""

import json

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn.functional import cross_entropy
from torchmetrics.classification import MulticlassAccuracy, MulticlassJaccardIndex

import foveate as fv
from foveate.data.masks import IGNORED
from foveate.data.preprocessing import Preprocessing
from foveate.drawing.segments import MOST_NAMES, class_color, draw_segments, legend_of
from foveate.models.dense import dense_model
from foveate.models.dense.layers import WithAuxiliary
from foveate.tasks import Augmentation, Classification, Segmentation, SegmentationMetrics, find_task, read_options
from foveate.tasks.mask_transforms import Training, most_common_share, short_side_size
from foveate.tasks.options import parse_options, read_task, write_task
from foveate.tasks.segmentation_metrics import near_boundary
from foveate.tasks.windows import slide, window_starts
from segments import COLORS, blocks, photo
from zoo import make

PLAIN = Preprocessing(32, 48, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0), interpolation="nearest")


def nearest_class(pixels):
    """The class that each pixel's color stands for."""
    colors = torch.from_numpy(COLORS).float() / 255
    return (pixels.permute(1, 2, 0)[:, :, None] - colors).square().sum(-1).argmin(-1)


@pytest.mark.parametrize("seed", range(6))
def test_image_and_mask_move_alike(seed):
    """Colors tell classes, so the classes in the transformed image are the transformed mask."""
    mask = blocks(seed, (37, 61))
    transform = Training(PLAIN, (0.4, 1.6), 0.9, flip=0.5, photometric=False)
    torch.manual_seed(seed)
    pixels, labels = transform(photo(mask), mask.astype(np.int64))
    assert pixels.shape == (3, 32, 48)
    known = labels != IGNORED
    assert torch.equal(nearest_class(pixels)[known], labels[known])
    outside = pixels.sum(0) == 0
    assert torch.equal(~known, outside)  # padding has no class, and only padding
    assert known.any()


def test_colors_change_and_places_do_not():
    mask = blocks(3, (32, 48)).astype(np.int64)
    transform = Training(PLAIN, (1.0, 1.0), 1.0, flip=0.0, photometric=True)
    seen = {transform(photo(mask.astype(np.uint8)), mask)[0].sum().item() for _ in range(8)}
    assert len(seen) > 1
    assert torch.equal(transform(photo(mask.astype(np.uint8)), mask)[1], torch.from_numpy(mask))


def test_crops_of_one_class_are_drawn_again():
    mask = np.zeros((32, 480), dtype=np.int64)
    mask[:, 200:232] = 1
    transform = Training(PLAIN, (1.0, 1.0), 0.75, flip=0.0, photometric=False)
    shares = []
    for seed in range(30):
        torch.manual_seed(seed)
        cropped = transform.cropped(torch.zeros(3, 32, 480), torch.from_numpy(mask))[1]
        shares.append(most_common_share(cropped) < 0.75)
    plain = [most_common_share(torch.from_numpy(mask[:, s : s + 48])) < 0.75 for s in range(433)]
    assert sum(shares) / 30 > 3 * sum(plain) / 433
    assert most_common_share(torch.full((4, 4), IGNORED)) == 1


def test_sizes_keep_their_ratio():
    assert short_side_size((683, 512), 512) == (683, 512)
    assert short_side_size((100, 200), 50) == (50, 100)
    assert short_side_size((100, 1000), 50) == (20, 200)  # the longer side at most four times the shorter


def test_evaluation_leaves_the_mask_as_it_is():
    mask = blocks(1)
    pixels, labels = Segmentation(4).evaluation_transform(PLAIN)(photo(mask), mask.astype(np.int64))
    assert pixels.shape == (3, 32, 48)
    assert torch.equal(labels, torch.from_numpy(mask.astype(np.int64)))
    kept, _ = Segmentation(4, inference="slide").evaluation_transform(PLAIN)(photo(mask), mask.astype(np.int64))
    assert kept.shape == (3, 32, 45)


def some_batch(seed=0, classes=4, sizes=((20, 24), (20, 24))):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(len(sizes), classes, *sizes[0], generator=generator)
    targets = [torch.randint(0, classes - 1, size, generator=generator) for size in sizes]  # one class never occurs
    for target in targets:
        target[:3] = IGNORED
    return logits, targets


def counted(*seeds, compare=False):
    metrics = Segmentation(4).metrics()
    for seed in seeds:
        logits, targets = some_batch(seed)
        metrics.update(logits, targets, logits.roll(1, 1) if compare else None)
    return metrics


def test_metrics_are_torchmetrics():
    iou = MulticlassJaccardIndex(4, ignore_index=IGNORED, average="none")
    accuracy = MulticlassAccuracy(4, ignore_index=IGNORED, average="micro")
    for seed in (1, 2, 3):
        logits, targets = some_batch(seed)
        iou.update(logits.argmax(1), torch.stack(targets))
        accuracy.update(logits.argmax(1), torch.stack(targets))
    found = counted(1, 2, 3)
    assert found.per_class() == pytest.approx((100 * iou.compute()).tolist(), abs=1e-4)
    assert found.compute()["miou"] == pytest.approx(100 * float(iou.compute().mean()), abs=1e-4)
    assert found.compute()["pixel_accuracy"] == pytest.approx(100 * float(accuracy.compute()), abs=1e-4)


def test_a_class_that_nobody_names_does_not_count():
    logits = torch.zeros(1, 3, 2, 2)
    logits[:, 0] = 1
    metrics = Segmentation(3).metrics()
    metrics.update(logits, torch.tensor([[[0, 0], [0, 1]]]))
    assert metrics.compute()["miou"] == pytest.approx(100 * (3 / 4 + 0) / 2)  # the third class is left out


def test_metrics_add_up_over_batches_processes_and_files():
    whole, one, other = counted(1, 2, compare=True), counted(1, compare=True), counted(2, compare=True)
    one.merge(other)
    stored = SegmentationMetrics.from_state(json.loads(json.dumps(whole.state())))
    assert one.compute() == pytest.approx(whole.compute())
    assert stored.compute() == whole.compute()
    assert stored.images == 4
    for change in ({"confusion": [[1]] * 2}, {"near": 0, "near_hits": 1}, {"loss": "x"}, {"confusion": [[-1]]}):
        with pytest.raises((ValueError, TypeError)):
            SegmentationMetrics.from_state(whole.state() | change)


def test_agreement_by_hand():
    logits, targets = some_batch(5)
    other = logits.roll(1, 1)
    metrics = Segmentation(4).metrics()
    metrics.update(logits, targets, other)
    found = metrics.compute()
    same = logits.argmax(1) == other.argmax(1)
    assert found["agreement"] == pytest.approx(100 * same.double().mean().item())
    p, q = other.softmax(1), logits.softmax(1)
    assert found["kl"] == pytest.approx((p * (p / q).log()).sum(1).mean().item(), abs=1e-5)
    near = torch.stack([near_boundary(one) for one in other.argmax(1)])
    assert found["boundary_agreement"] == pytest.approx(100 * same[near].double().mean().item())
    metrics = Segmentation(4).metrics()
    metrics.update(logits, targets, logits)
    assert (metrics.compute()["agreement"], metrics.compute()["kl"]) == (100, 0)


def test_agreement_without_masks_is_over_all_places():
    logits, other = torch.randn(2, 4, 9, 7), torch.randn(2, 4, 9, 7)
    task = Segmentation(4)
    metrics = task.metrics()
    metrics.update(logits, task.read_targets(None, 2), other)
    same = logits.argmax(1) == other.argmax(1)
    assert metrics.compute()["agreement"] == pytest.approx(100 * same.double().mean().item())
    assert "miou" not in metrics.compute()


def test_boundaries_by_plain_loops():
    mask = torch.from_numpy(blocks(7, (18, 21)).astype(np.int64))
    mask[4:9, 3:6] = IGNORED
    expected = torch.zeros_like(mask, dtype=torch.bool)
    for row in range(18):
        for column in range(21):
            around = mask[max(0, row - 2) : row + 3, max(0, column - 2) : column + 3]
            expected[row, column] = len(set(around[around != IGNORED].tolist())) > 1
    assert torch.equal(near_boundary(mask, 2), expected)


def test_predictions_are_judged_at_the_size_of_each_mask():
    logits, targets = some_batch(1, sizes=((20, 24), (40, 48), (31, 17)))
    metrics = Segmentation(4).metrics()
    metrics.update(logits, targets)
    assert int(metrics.confusion.sum()) == sum(int((target != IGNORED).sum()) for target in targets)
    task = Segmentation(4)
    assert isinstance(task.collate(targets), list)
    assert task.collate(targets[:1]).shape == (1, 20, 24)
    assert not task.any_known(task.unknown_like(targets))
    assert "class 2, but the model predicts 2" in Segmentation(2).why_unusable(targets)


def test_the_loss_is_the_mean_over_labeled_pixels():
    logits, targets = some_batch(2)
    targets = torch.stack(targets)
    task = Segmentation(4, smoothing=0.1)
    expected = cross_entropy(logits, targets, ignore_index=IGNORED, label_smoothing=0.1)
    assert task.loss(logits, targets) == pytest.approx(expected.item(), rel=1e-5)
    both = task.loss(WithAuxiliary(logits, 2 * logits), targets)
    second = cross_entropy(2 * logits, targets, ignore_index=IGNORED, label_smoothing=0.1)
    assert both == pytest.approx((expected + 0.4 * second).item(), rel=1e-5)
    assert task.loss(logits, task.unknown_like(targets)) == 0
    assert task.imitation_loss(logits, logits) == pytest.approx(0, abs=1e-6)


def test_one_window_that_covers_the_image_is_the_whole():
    model = dense_model(make("timm-cls"), "linear", 5).eval()
    images = torch.randn(2, *model.image_size, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        whole = Segmentation(5).predict(model, images)
        windows = Segmentation(5, inference="slide").predict(model, images)
    assert torch.equal(torch.nn.functional.interpolate(whole, size=(24, 24), mode="bilinear"), windows)


def test_windows_cover_every_pixel_and_are_averaged():
    assert window_starts(10, 4, 3) == [0, 3, 6]
    assert window_starts(11, 4, 3) == [0, 3, 6, 7]
    assert window_starts(3, 4, 3) == [0]
    images = torch.randn(2, 3, 17, 23)
    same = slide(lambda part: part[:, :2] * 2, images, (8, 9), 2 / 3)  # a model that looks at single pixels
    assert torch.allclose(same, 2 * images[:, :2], atol=1e-6)
    small = slide(lambda part: part[:, :2] * 2, images[..., :5, :6], (8, 9), 2 / 3)
    assert torch.allclose(small, 2 * images[:, :2, :5, :6])


def test_a_task_on_a_model_without_features_is_refused():
    with pytest.raises(ValueError, match=r"is for classification, not for segmentation.*ENCODER\+linear"):
        Segmentation.for_model(make("timm-cls"))
    with pytest.raises(ValueError, match="is for segmentation, not for classification"):
        Classification.for_model(dense_model(make("timm-cls"), "linear", 5))


def test_options_are_read_in_their_types(tmp_path):
    task = find_task("segmentation")
    given = parse_options(["ignore=11", "reduce_zero_label=true", "scale=0.5,2", "inference=slide", "stride=0.5"])
    read = read_options(task, given)
    assert read == {"ignore": 11, "reduce_zero_label": True, "scale": (0.5, 2.0), "inference": "slide", "stride": 0.5}
    write_task(tmp_path, "segmentation", {"ignore": 11})
    assert read_task(tmp_path) == ("segmentation", {"ignore": 11})
    assert read_task(tmp_path / "none") == (None, {})
    for wrong, words in (
        ({"ignored": 1}, "no option 'ignored'. Its options: ignore"),
        ({"ignore": "x"}, "whole number"),
        ({"inference": "all"}, "one of whole, slide"),
        ({"scale": 3}, "a list"),
        ({"photometric": "perhaps"}, "true or false"),
    ):
        with pytest.raises(ValueError, match=words):
            read_options(task, wrong)
    with pytest.raises(ValueError, match="It has none"):
        read_options(Classification, {"ignore": 1})
    for wrong in ({"scale": (2.0, 1.0)}, {"stride": 0.0}, {"cat_max_ratio": 2.0}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            Segmentation(4, **wrong)


def test_augmentations_that_know_no_masks_are_refused():
    with pytest.raises(ValueError, match=r"does not use augmentation\.mixup"):
        Segmentation(4).training_transform(PLAIN, Augmentation(mixup=0.8))


def test_masks_are_drawn_over_a_copy_with_a_legend():
    mask = blocks(2, (60, 80))
    image = photo(mask)
    before = image.tobytes()
    drawn = draw_segments(image, torch.from_numpy(mask), ("a", "b", "c", "d"))
    assert image.tobytes() == before
    assert drawn.width >= 480  # legible on a phone
    assert drawn.height > 480 * 60 / 80
    colors = {color for _, color in drawn.getcolors(maxcolors=drawn.width * drawn.height)}
    assert {class_color(number) for number in np.unique(mask)} <= colors
    names = [name for name, _ in legend_of(torch.arange(40).repeat_interleave(torch.arange(40, 0, -1)), None)]
    assert names[0] == "class 0"
    assert names[-1] == f"{40 - MOST_NAMES} more"
    logits = torch.randn(4, 8, 8)
    assert isinstance(Segmentation(4).draw(image, logits), Image.Image)
    assert fv.inspect(dense_model(make("timm-cls"), "linear", 5)).task == "segmentation"
