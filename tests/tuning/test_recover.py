"""A short tuning without labels: it follows the unreduced model, and never ends worse than it began."""

import copy

import pytest
import torch
from timm.models.vision_transformer import VisionTransformer

import foveate as fv
from foveate.models.dense import dense_model
from foveate.tuning import recovering
from foveate.tuning.judging import Judged
from foveate.tuning.varying import varied
from foveate_cli.main import main
from zoo import make


@pytest.fixture(scope="module")
def photos():
    return torch.randn(80, 3, 24, 24, generator=torch.Generator().manual_seed(3))


@pytest.fixture(scope="module")
def reduced():
    return fv.reduce_(make("timm-cls"), "ToMe", fv.Keep({0: 20, 1: 10}))


def test_tuning_brings_the_reduced_model_nearer_and_leaves_the_given_one(reduced, photos):
    before = {k: v.clone() for k, v in reduced.state_dict().items()}
    found = fv.recover(reduced, photos, steps=30, lr=3e-4, batch_size=16, minutes=5)
    assert found.steps_done == 30
    assert 0 < found.steps <= 30
    assert found.after.divergence < found.before.divergence
    assert found.after.quality >= found.before.quality
    assert fv.inspect(found.model).reduction == fv.inspect(reduced).reduction
    assert all(torch.equal(before[k], v) for k, v in reduced.state_dict().items())
    again = fv.recover(reduced, photos, steps=30, lr=3e-4, batch_size=16, minutes=5)
    assert again.after == found.after  # the same seed gives the same weights


def test_a_tuning_that_harms_ends_where_it_began(reduced, photos):
    found = fv.recover(reduced, photos, steps=4, lr=30.0, minutes=5)
    assert found.steps == 0
    assert found.after == found.before
    tuned = found.model.state_dict()
    assert all(torch.equal(tuned[k], v) for k, v in reduced.state_dict().items())


def test_ctrl_c_keeps_the_best_so_far(reduced, photos):
    def stop(phase, done, total, note=""):
        if note.startswith("step 3"):
            raise KeyboardInterrupt

    found = fv.recover(reduced, photos, steps=12, lr=3e-3, minutes=5, progress=stop)
    assert not found.complete
    assert found.steps_done == 3
    assert found.after.divergence <= found.before.divergence


@pytest.mark.parametrize(("quality", "taken"), [(0.88, True), (0.8, False)])
def test_fewer_decisions_beyond_the_noise_are_not_taken(reduced, photos, monkeypatch, quality, taken):
    """Of 100 images, 90 % has a standard error of 3 points: 88 % may be noise, 80 % is not."""
    found = iter([Judged(1.0, 0.9, 100, "of decisions"), *[Judged(0.5, quality, 100, "of decisions")] * 20])
    monkeypatch.setattr(recovering.Judge, "compare", lambda self, model: next(found))
    result = fv.recover(reduced, photos, steps=3, minutes=5)
    assert (result.steps > 0) == taken
    assert result.after.divergence == (0.5 if taken else 1.0)


def test_images_held_apart_do_not_train(reduced, photos, monkeypatch):
    seen = []

    def watched(images, generator):
        seen.append(images.clone())
        return varied(images, generator)

    monkeypatch.setattr(recovering, "varied", watched)
    fv.recover(reduced, photos, steps=6, minutes=5)
    apart = {tuple(image.flatten()[:8].tolist()) for image in photos[:32]}
    assert apart.isdisjoint(tuple(image.flatten()[:8].tolist()) for batch in seen for image in batch)


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_models_run_in_the_precision_that_is_asked_for(reduced, photos, monkeypatch, precision):
    seen = []
    forward = VisionTransformer.forward_head

    def watched(self, *given, **options):
        found = forward(self, *given, **options)
        if torch.is_grad_enabled():  # the student learns; judge and teacher do not
            seen.append(found.dtype)
        return found

    monkeypatch.setattr(VisionTransformer, "forward_head", watched)
    found = fv.recover(reduced, photos, steps=2, minutes=5, precision=precision)
    assert seen == [torch.bfloat16 if precision == "bf16" else torch.float32] * 2
    assert {p.dtype for p in found.model.parameters()} == {torch.float32}


def test_an_unknown_precision_is_refused(reduced, photos):
    with pytest.raises(ValueError, match="precision must be 'fp32' or 'bf16', got 'half'"):
        fv.recover(reduced, photos, steps=1, precision="half")


def test_masks_follow_those_of_the_unreduced_model(photos):
    torch.manual_seed(0)
    model = fv.reduce_(dense_model(make("timm-cls"), "linear", 4).eval(), "ToMe", fv.Keep({0: 20, 1: 10}))
    found = fv.recover(model, photos, steps=20, lr=1e-4, batch_size=16, minutes=5)
    assert found.after.divergence < found.before.divergence
    assert "of pixels unchanged" in str(found)


def test_a_model_without_classes_follows_by_its_embedding(photos):
    torch.manual_seed(0)
    plain = VisionTransformer(img_size=24, patch_size=4, embed_dim=32, depth=3, num_heads=2, num_classes=0).eval()
    model = fv.reduce_(plain, "ToMe", fv.Keep({0: 20, 1: 10}))
    found = fv.recover(model, photos, steps=20, lr=1e-4, batch_size=16, minutes=5)
    assert found.after.divergence < found.before.divergence
    assert "cosine" in str(found)


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"minutes": 0}, "minutes must be a number above 0"),
        ({"lr": float("nan")}, "lr must be a number above 0"),
        ({"minutes": 1e-9}, "too short for one step"),
        ({"batch_size": 0}, "batch_size"),
    ],
)
def test_bad_values_are_refused(reduced, photos, given, match):
    with pytest.raises(ValueError, match=match):
        fv.recover(reduced, photos, **given)


def test_an_unreduced_model_and_too_few_images_are_refused(reduced, photos):
    with pytest.raises(ValueError, match="takes a reduced model"):
        fv.recover(make("timm-cls"), photos)
    with pytest.raises(ValueError, match="at least 64 images"):
        fv.recover(reduced, photos[:20])


def test_the_command_writes_a_model_that_loads(tmp_path, capsys):
    options = [
        "--method",
        "ToMe",
        "--budget",
        "0.7",
        "--data",
        "scenes:count=80",
        "--steps",
        "2",
        "--batch-size",
        "4",
    ]
    code = main(["recover", "scenes_vit", "--pretrained", *options, "--out", str(tmp_path / "tuned")])
    printed = capsys.readouterr().out
    assert code == 0
    assert "held apart" in printed
    tuned = fv.load(tmp_path / "tuned")
    assert fv.is_reduced(tuned)
    assert copy.deepcopy(fv.inspect(tuned).reduction.method) == fv.ToMe()


@pytest.mark.parametrize(
    ("extra", "match"),
    [
        (["--data", "scenes:count=80"], "is not reduced"),
        (["--data", "scenes:count=20", "--method", "ToMe", "--budget", "0.7"], "at least 64 images"),
        (
            ["--data", "scenes:count=80", "--method", "ToMe", "--budget", "0.7", "--minutes", "1e-7"],
            "too short",
        ),
    ],
)
def test_the_command_refuses_bad_input_and_writes_nothing(tmp_path, capsys, extra, match):
    assert main(["recover", "scenes_vit", "--pretrained", *extra, "--out", str(tmp_path / "tuned")]) == 2
    assert match in capsys.readouterr().err
    assert not (tmp_path / "tuned").exists()
