"""Ward as a method: its weights, its rescaled means, its cost."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor

import foveate as fv
from foveate import Ward
from foveate.core import Clusters, cluster_means, unpool, ward_greedy, ward_rounds
from foveate.methods import BlockView, StepShape
from zoo import images, make

BATCH, PREFIX, N, CHANNELS = 2, 2, 12, 5


def view_of(has_cls: bool = True, sized: bool = True) -> BlockView:
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randn(BATCH, PREFIX + N, CHANNELS, generator=generator, dtype=torch.float64)
    size = torch.randint(1, 5, (BATCH, N), generator=generator).float()
    received, row = (torch.rand(BATCH, N, generator=generator) for _ in range(2))
    scores = {"attn_received": received, "cls_attn": row} if has_cls else {"attn_received": received}
    return BlockView(tokens, PREFIX, size if sized else None, 3, has_cls, **scores)


def weight_of(view: BlockView) -> Tensor:
    """Attention received; with a class token, its geometric mean with the attention that pays."""
    return (view.attn_received * view.cls_attn) ** 0.5 if view.has_cls else view.attn_received


def clusters_of(method: Ward, view: BlockView, keep: int) -> Clusters:
    if method.search == "greedy":
        return ward_greedy(view.patches, keep, weight_of(view))
    return ward_rounds(view.patches, keep, weight_of(view), method.rounds)


def run(method: Ward, view: BlockView, keep: int) -> Tensor:
    return method.combine(view, method.assign(view, keep))


METHODS = [Ward(), Ward(rounds=1), Ward(search="greedy")]
methods = pytest.mark.parametrize("method", METHODS, ids=["rounds", "one round", "greedy"])


@methods
@pytest.mark.parametrize("keep", [1, 5, 9, N])
@pytest.mark.parametrize("has_cls", [False, True])
@pytest.mark.parametrize("sized", [False, True])
def test_weights_are_attention_received_times_class_attention_where_there_is_a_class(method, keep, has_cls, sized):
    view = view_of(has_cls, sized)
    got = method.assign(view, keep)
    expected = cluster_means(clusters_of(method, view, keep), view.size, weight_of(view))
    for a, b in zip(got.edges(BATCH), expected.edges(BATCH), strict=True):
        assert torch.allclose(a, b)
    assert torch.equal(got.sizes, expected.sizes)
    assert torch.equal(got.sizes.sum(dim=1), view.size.sum(dim=1) if sized else torch.full((BATCH,), float(N)))


def test_the_class_attention_and_the_search_matter():
    view = view_of()
    without = dataclasses.replace(view, has_cls=False)
    results = [run(method, v, 5) for method in METHODS for v in (view, without)]
    for i, a in enumerate(results):
        assert not any(torch.allclose(a, b) for b in results[i + 1 :])


@methods
@pytest.mark.parametrize("rescale", [False, True])
@pytest.mark.parametrize("keep", [1, 4, 9])
def test_tokens_equal_plain_loops(method, rescale, keep):
    view = view_of()
    weight, clusters = weight_of(view), clusters_of(method, view, keep)
    out = run(dataclasses.replace(method, rescale=rescale), view, keep)
    assert out.shape == (BATCH, PREFIX + keep, CHANNELS)
    for image in range(BATCH):
        for slot in range(keep):
            inside = [i for i in range(N) if clusters.owner[image, i] == slot]
            share = [float(weight[image, i]) / sum(float(weight[image, j]) for j in inside) for i in inside]
            rows = [view.patches[image, i] for i in inside]
            mean = sum(s * row for s, row in zip(share, rows, strict=True))
            if rescale:
                norm = sum(s * row.square().sum().sqrt() for s, row in zip(share, rows, strict=True))
                mean = mean / mean.square().sum().sqrt() * norm
            assert torch.allclose(out[image, PREFIX + slot], mean, atol=1e-5)


@methods
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_the_prefix_and_tokens_that_did_not_merge_are_as_they_were(method, dtype):
    view = view_of(sized=False)
    view = dataclasses.replace(view, tokens=view.tokens.to(dtype))
    clusters = clusters_of(method, view, 8)
    out = run(method, view, 8)
    assert torch.equal(out[:, :PREFIX], view.tokens[:, :PREFIX])
    single = 0
    for image in range(BATCH):
        for slot in range(8):
            inside = [i for i in range(N) if clusters.owner[image, i] == slot]
            if len(inside) == 1:
                assert torch.equal(out[image, PREFIX + slot], view.patches[image, inside[0]])
                single += 1
    assert single >= BATCH, "the case must have some"


@methods
def test_keeping_all_changes_nothing(method):
    view = view_of()
    assert torch.equal(run(method, view, N), view.tokens)


def test_a_mean_of_opposite_tokens_stays_finite():
    tokens = torch.tensor([[[1.0, 2.0], [3.0, 4.0], [-3.0, -4.0]]])
    ones = torch.ones(1, 2)
    view = BlockView(tokens, 1, None, 0, True, attn_received=ones, cls_attn=ones)
    assert run(Ward(), view, 1).tolist() == [[[1.0, 2.0], [0.0, 0.0]]]


@methods
def test_an_image_does_not_depend_on_its_batch(method):
    view = view_of()
    together = run(method, view, 5)
    for i in range(BATCH):
        names = ("tokens", "size", "attn_received", "cls_attn")
        alone = dataclasses.replace(view, **{name: getattr(view, name)[i : i + 1] for name in names})
        assert torch.allclose(run(method, alone, 5)[0], together[i])


def test_gradients_flow_through_the_tokens_alone():
    view = view_of()
    tokens, received = view.tokens.requires_grad_(), view.attn_received.requires_grad_()
    run(Ward(), dataclasses.replace(view, tokens=tokens, attn_received=received), 5).square().sum().backward()
    assert tokens.grad.abs().sum(dim=-1).min() > 0, "every token has a part"
    assert received.grad is None


@pytest.mark.parametrize(
    ("n", "keep", "rounds", "products"),
    [
        (10, 4, 3, 5 * 5 + 4 * 4 + 3 * 3),  # 2 merges in each round: 10, 8, 6
        (9, 7, 3, 5 * 4 + 4 * 4),  # 1 in each of two
        (9, 7, 1, 5 * 4),
        (9, 1, 3, 5 * 4 + 3 * 3 + 2 * 1 + 1 * 1),  # 3, 3, 1 and, a round more than asked for, 1
        (7, 7, 3, 0),
        (7, 0, 3, 0),
    ],
)
def test_macs_of_rounds_are_products_of_sources_with_targets(n, keep, rounds, products):
    step = StepShape(n, keep, prefix=1, dim=32, heads=4, head_dim=8, has_cls=True)
    assert Ward(rounds=rounds).macs(step) == products * 32
    assert Ward(search="greedy").macs(step) == (n * n * 32 if keep else 0)


def test_options_and_needs():
    assert Ward().proportional_attention
    assert not Ward(proportional_attention=False).proportional_attention
    assert Ward().needs(True) == {"attn_received", "cls_attn"}
    assert Ward().needs(False) == {"attn_received"}
    with pytest.raises(ValueError, match="rounds must be at least 1, got 0"):
        Ward(rounds=0)


def test_later_attention_weighs_by_size_where_it_is_carried():
    carried, not_carried = (
        fv.reduce_(make("timm-cls"), Ward(proportional_attention=proportional), fv.Keep({1: 10}))(images())
        for proportional in (True, False)
    )
    assert not torch.allclose(carried, not_carried, atol=1e-3)


@methods
def test_keeping_no_patch_leaves_the_class_token_alone(method):
    model = fv.reduce_(make("timm-cls"), method, fv.Keep({1: 10, 2: 0}))
    with torch.no_grad():
        assert fv.trace(model, images()).counts == (36, 10, 0, 0)
        assert model.forward_features(images()).shape == (3, 1, 32)
        assert model(images()).isfinite().all()


@methods
@pytest.mark.parametrize("family", ["timm-cls", "timm-mean", "timm-map"])
def test_every_patch_can_be_traced_through_two_steps(family, method):
    model = fv.reduce_(make(family), method, fv.Keep({1: 10, 2: 3}))
    with torch.no_grad():
        assert model(images()).isfinite().all()
    trace = fv.trace(model, images())
    assert trace.counts == (36, 10, 3, 3)
    first, second = (unpool(torch.arange(a.num_out).view(1, -1, 1).expand(3, -1, 1), a) for a in trace.steps[1:3])
    assert torch.equal(trace.owner(-1), second.squeeze(-1).gather(1, first.squeeze(-1)))
