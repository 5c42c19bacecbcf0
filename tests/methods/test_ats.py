"""ATS: tokens sampled along the cumulative significance, held against loops."""

import pytest
from views import random_view

import foveate as fv
from foveate.methods import ATS
from zoo import images, make


def kept_by_loops(scores, keep):
    total, running, cumulative = sum(scores), 0.0, []
    for score in scores:
        running += score / total
        cumulative.append(running)
    points = [(2 * k - 1) / (2 * keep) for k in range(1, keep + 1)]
    taken = {min(range(len(scores)), key=lambda i: abs(cumulative[i] - point)) for point in points}
    others = sorted(set(range(len(scores))) - taken, key=lambda i: -scores[i])
    return sorted(taken | set(others[: keep - len(taken)]))


@pytest.mark.parametrize("keep", [1, 3, 6, 9])
def test_tokens_equal_plain_loops(keep):
    view = random_view(10, seed=keep)
    kept = ATS().assign(view, keep).src.tolist()
    assert kept == [kept_by_loops(scores, keep) for scores in view.cls_value_attn.tolist()]


def test_its_score_is_attention_times_the_norm_of_values(monkeypatch):
    model, seen = make("timm-cls", 2), []
    monkeypatch.setattr(
        ATS, "assign", lambda self, view, keep: seen.append(view) or fv.TopK.assign(fv.TopK(), view, keep)
    )
    monkeypatch.setattr(ATS, "needs", lambda self, has_cls: frozenset({"cls_value_attn", "cls_attn"}))
    x = images(2)
    fv.reduce_(model, ATS(), fv.Keep({0: 5}))(x)
    block = fv.restore_(model).blocks[0]
    qkv = block.attn.qkv(block.norm1(fv.inspect(model).embed(x)))
    q, k, v = qkv.unflatten(2, (3, 2, -1)).permute(2, 0, 3, 1, 4)
    rows = (q[:, :, :1] * block.attn.scale @ k.transpose(2, 3)).softmax(dim=-1)[:, :, 0]
    expected = (rows * v.norm(dim=-1)).sum(dim=1)[:, 1:]
    assert (seen[0].cls_value_attn - expected).abs().max() < 1e-5


def test_a_model_without_a_class_token_is_refused():
    with pytest.raises(ValueError, match="class token"):
        fv.reduce_(make("timm-mean", 2), ATS(), 0.8)
