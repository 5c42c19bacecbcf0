"""What a tuning follows: predictions, and the class token after every block where it alone reaches the head."""

import pytest
import torch
from timm.models.vision_transformer import VisionTransformer
from torch.nn.functional import mse_loss

import foveate as fv
from foveate.adapters import copy_unreduced, inspect
from foveate.models.dense import dense_model
from foveate.tuning import following
from foveate.tuning.following import Following, divergence, prefix_tokens, token_error
from foveate.tuning.judging import task_of
from zoo import make


@pytest.fixture(scope="module")
def images():
    return torch.randn(8, 3, 24, 24, generator=torch.Generator().manual_seed(3))


def test_the_divergences_match_plain_formulas():
    one, two = torch.randn(2, 5, 7, generator=torch.Generator().manual_seed(0))
    p, q = two.softmax(1), one.softmax(1)
    assert divergence(one, two, True) == pytest.approx(float((p * (p / q).log()).sum() / 5), rel=1e-5)
    maps = [torch.stack([logits, logits.flip(0)], dim=2).unsqueeze(3) for logits in (one, two)]  # (5, 7, 2, 1)
    assert divergence(*maps, True) == pytest.approx(float(divergence(one, two, True)), rel=1e-5)
    cosines = [float(a @ b / (a.norm() * b.norm())) for a, b in zip(one, two, strict=True)]
    assert divergence(one, two, False) == pytest.approx(1 - sum(cosines) / 5, rel=1e-4)


def test_the_error_of_tokens_matches_a_plain_formula_and_ignores_their_scale():
    ours, theirs = torch.randn(2, 3, 4, 1, 16, generator=torch.Generator().manual_seed(0))  # blocks, B, P, C

    def normalized(tokens):
        centered = tokens - tokens.mean(-1, keepdim=True)
        return centered / centered.square().mean(-1, keepdim=True).sqrt()

    found = token_error(list(ours), list(theirs))
    assert found == pytest.approx(float(mse_loss(normalized(ours), normalized(theirs))), rel=1e-4)
    assert token_error(list(3 * ours + 1), list(theirs)) == pytest.approx(float(found), rel=1e-4)


@pytest.mark.parametrize("exact", [False, True])
def test_class_tokens_after_every_block_are_collected(images, exact):
    model = fv.reduce_(make("timm-cls"), "ToMe", fv.Keep({0: 20, 1: 10}), exact_last_block=exact)
    expected = [output.stream.tokens[:, :1] for output in inspect(model).encode(images, record=True).blocks]
    with prefix_tokens(model) as found:
        model(images)
    assert len(found) == len(inspect(model).blocks)
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
    model(images)
    assert len(found) == len(expected)  # no hook stays


def averaged():
    return VisionTransformer(img_size=24, patch_size=4, embed_dim=32, depth=2, num_heads=2, global_pool="avg")


@pytest.mark.parametrize("build", [averaged, lambda: dense_model(make("timm-cls"), "linear", 4)])
def test_a_head_that_reads_patches_follows_predictions_only(build, images):
    model = build()
    with prefix_tokens(model.eval()) as found, torch.no_grad():
        model(images)
    assert found == []


def test_class_tokens_count_beside_predictions(images, monkeypatch):
    model = fv.reduce_(make("timm-cls"), "ToMe", fv.Keep({0: 20, 1: 10}))
    teacher = copy_unreduced(make("timm-cls"))
    loss = Following(model, teacher, task_of(teacher)).loss
    with prefix_tokens(model) as ours, prefix_tokens(teacher) as theirs:
        predictions = divergence(model(images), teacher(images), True)
    expected = predictions + following.TOKEN_WEIGHT * token_error(ours, theirs)
    found = float(loss(images).detach())
    assert found == pytest.approx(float(expected.detach()), rel=1e-4)
    assert found > 1.01 * float(predictions.detach())
