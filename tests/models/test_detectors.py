"""Detectors and pose heads: the paper's parameters, losses in training, detections in evaluation, files."""

import pytest
import timm
import torch

import foveate as fv
from foveate.models.by_name import load_model
from foveate.models.dense import dense_model
from foveate.models.dense.detectors import Anchors, pasted_masks

SMALL_CLUSTR = {"depths": (1, 1, 1, 1), "embed_dims": (8, 16, 24, 32), "num_heads": (1, 1, 2, 2), "img_size": 64}
SMALL_VIT = {"img_size": 64, "patch_size": 16, "embed_dim": 16, "depth": 2, "num_heads": 2, "num_classes": 0}


def clustr():
    return timm.create_model("clustr_tiny", num_classes=0, **SMALL_CLUSTR)


def reduced_vit():
    model = timm.create_model("vit_tiny_patch16_224", **SMALL_VIT)
    return fv.reduce_(model, fv.ToMe(), fv.KeepRate(0.6, blocks=(1,)))


def targets(masks=True):
    drawn = torch.zeros(1, 64, 64, dtype=torch.bool)
    drawn[0, 10:40, 8:30] = True
    some = {"boxes": torch.tensor([[8.0, 10.0, 30.0, 40.0]]), "labels": torch.tensor([2]), "masks": drawn}
    none = {"boxes": torch.zeros(0, 4), "labels": torch.zeros(0, dtype=torch.int64), "masks": drawn[:0]}
    return [some, none] if masks else [{k: v for k, v in one.items() if k != "masks"} for one in (some, none)]


@pytest.mark.parametrize(
    ("head", "parameters", "millions"), [("retinanet", 32_411_529, 32.4), ("mask-rcnn", 42_328_965, 42.3)]
)
def test_parameters_are_the_papers(head, parameters, millions):
    with torch.device("meta"):
        model = load_model(f"clustr_small+{head}", options={"num_classes": 80})
    assert sum(p.numel() for p in model.parameters()) == parameters
    assert round(parameters / 1e6, 1) == millions


@pytest.mark.parametrize("encoder", [clustr, reduced_vit])
@pytest.mark.parametrize("head", ["retinanet", "mask-rcnn"])
def test_a_detector_learns_detects_and_travels(encoder, head, tmp_path):
    torch.manual_seed(0)
    model = dense_model(encoder(), head, 3, channels=16, smallest_anchor=8, detections=10, score=1e-4)
    images = torch.randn(2, 3, 64, 64)
    losses = model.train()(images, targets=targets(masks=head == "mask-rcnn"))
    sum(losses.values()).backward()
    first = next(p for name, p in model.encoder.named_parameters() if "patch_embed" in name)
    assert first.grad.abs().sum() > 0
    with torch.no_grad():
        found = model.eval()(images)
        loaded = fv.load(fv.save(model, tmp_path / "saved"))
        again = loaded.eval()(images)
    for one, other in zip(found, again, strict=True):
        assert 0 < len(one["boxes"]) <= 10
        assert one["labels"].min() >= 0
        assert one["labels"].max() <= 2
        assert torch.allclose(one["boxes"], other["boxes"], atol=1e-3)
        assert ("masks" in one) == (head == "mask-rcnn")
    assert fv.cost(model).params == sum(p.numel() for p in model.parameters())


def test_costs_grow_with_the_image_and_count_all_proposals():
    small = dense_model(clustr(), "mask-rcnn", 3, channels=16)
    more = dense_model(clustr(), "mask-rcnn", 3, channels=16, detections=200)
    assert fv.cost(small, (3, 128, 128)).macs > fv.cost(small).macs
    per_mask = 14 * 14 * (9 * 16 * 256 + 3 * 9 * 256 * 256 + 4 * 256 * 256) + 28 * 28 * 256 * 3
    assert fv.cost(more).macs - fv.cost(small).macs == 100 * per_mask


def test_training_without_targets_says_what_is_missing():
    model = dense_model(clustr(), "retinanet", 3, channels=16).train()
    with pytest.raises(ValueError, match="targets="):
        model(torch.randn(1, 3, 64, 64))


@pytest.mark.parametrize(("head", "finest"), [("retinanet", "from stride 8"), ("mask-rcnn", "from stride 4")])
def test_strides_that_a_detector_cannot_use_are_refused(head, finest):
    encoder = timm.create_model("hvt_small_2_2d", patch_size=16, img_size=64, depth=4, num_heads=1, num_classes=0)
    with pytest.raises(ValueError, match=f"{finest}|at least 3"):
        dense_model(encoder, head, 3)


def test_images_smaller_than_the_stride_are_refused():
    model = dense_model(clustr(), "retinanet", 3, channels=16).eval()
    with pytest.raises(ValueError, match="at least 32 x 32"):
        model(torch.randn(1, 3, 16, 64))


def test_anchors_lie_at_multiples_of_their_stride_on_odd_sizes_too():
    anchors = Anchors(((8,),), (32,))
    images = torch.empty(1, 3, 100, 100)
    sizes = type("List", (), {"tensors": images, "image_sizes": [(100, 100)]})
    (found,) = anchors(sizes, [torch.zeros(1, 1, 4, 4)])
    centers = (found[:, :2] + found[:, 2:]) / 2
    assert sorted({float(x) for x in centers[:, 0]}) == [0, 32, 64, 96]


def test_a_mask_is_pasted_into_its_box():
    inside = torch.zeros(1, 28, 28)
    inside[:, 7:21] = 1  # the middle half of the rows
    (mask,) = pasted_masks(inside, torch.tensor([[10.0, 20.0, 38.0, 48.0]]), (60, 70))
    assert mask.shape == (60, 70)
    rows = mask[:, 24].nonzero().flatten()
    assert rows.min().item() in (26, 27, 28)
    assert rows.max().item() in (39, 40, 41)
    assert not mask[:, :9].any()


@pytest.mark.parametrize(("encoder", "keypoints"), [(clustr, 17), (reduced_vit, 133)])
def test_heatmaps_have_stride_four(encoder, keypoints):
    model = dense_model(encoder(), "heatmaps", keypoints, channels=16)
    assert model(torch.randn(2, 3, 64, 64)).shape == (2, keypoints, 16, 16)
