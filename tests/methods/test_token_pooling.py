"""Token Pooling: which core call each option makes, and the tokens that come out, by plain loops."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch
from torch import Tensor

import foveate as fv
from foveate import TokenPooling
from foveate.core import (
    Clusters,
    cluster_means,
    cluster_medoids,
    first_at_random,
    first_by_score,
    kmeans,
    kmedoids,
    pool,
    unpool,
)
from foveate.methods import BlockView, StepShape
from zoo import images, make

BATCH, PREFIX, N, HEADS, HEAD_DIM = 2, 2, 11, 2, 3
CHANNELS, BLOCK = HEADS * HEAD_DIM, 3
PAPER = TokenPooling(output="medoid", rescale=False, proportional_attention=False)


@pytest.fixture
def view() -> BlockView:
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randn(BATCH, PREFIX + N, CHANNELS, generator=generator, dtype=torch.float64)
    size = torch.randint(1, 5, (BATCH, N), generator=generator).float()
    received = torch.rand(BATCH, N, generator=generator)
    keys = torch.randn(BATCH, HEADS, N, HEAD_DIM, generator=generator, dtype=torch.float64)
    return BlockView(tokens, PREFIX, size, BLOCK, has_cls=True, attn_received=received, keys=keys)


def edges(method: TokenPooling, view: BlockView, keep: int) -> list[list]:
    return [t.tolist() for t in method.assign(view, keep).edges(BATCH)]


def expected_edges(clusters: Clusters, view: BlockView, weight: Tensor | None) -> list[list]:
    return [t.tolist() for t in cluster_means(clusters, view.size, weight).edges(BATCH)]


def weighted_mean(rows: list[Tensor], weights: list[float]) -> Tensor:
    return sum(w * row for w, row in zip(weights, rows, strict=True)) / sum(weights)


def pooled_by_loops(view: BlockView, clusters: Clusters, weight: Tensor, rescale: bool) -> Tensor:
    """Prefix, then the weighted mean of every cluster, at the weighted mean norm of its members if told so."""
    out = []
    for image in range(BATCH):
        rows = [view.tokens[image, i] for i in range(PREFIX)]
        for slot in range(clusters.member.shape[1]):
            inside = [i for i in range(N) if clusters.owner[image, i] == slot]
            weights = [float(weight[image, i]) for i in inside]
            mean = weighted_mean([view.patches[image, i] for i in inside], weights)
            if rescale:
                norms = [view.patches[image, i].square().sum().sqrt() for i in inside]
                mean = mean / mean.square().sum().sqrt() * weighted_mean(norms, weights)
            rows.append(mean)
        out.append(torch.stack(rows))
    return torch.stack(out)


@pytest.mark.parametrize("keep", [1, 4, N])
@pytest.mark.parametrize("clustering", ["kmedoids", "kmeans"])
@pytest.mark.parametrize("rescale", [False, True])
def test_means_equal_plain_loops(view, rescale, clustering, keep):
    method = TokenPooling(clustering=clustering, rescale=rescale, iterations=2)
    received = view.attn_received
    cluster = kmeans if clustering == "kmeans" else kmedoids
    clusters = cluster(view.patches, first_by_score(received, keep), received, 2)
    out = method.combine(view, method.assign(view, keep))
    assert out.shape == (BATCH, PREFIX + keep, CHANNELS)
    assert torch.allclose(out, pooled_by_loops(view, clusters, received, rescale), atol=1e-5)
    assert torch.equal(out[:, :PREFIX], view.tokens[:, :PREFIX])


@pytest.mark.parametrize("keep", [1, 4, N])
@pytest.mark.parametrize("rescale", [False, True])
def test_medoids_are_patches_of_the_image_as_they_are(view, rescale, keep):
    method = TokenPooling(output="medoid", rescale=rescale, iterations=3)
    view.tokens[:, ::2, 0] = 0  # beside which not even the smallest share of another token would be lost
    assignment = method.assign(view, keep)
    out = method.combine(view, assignment)
    assert torch.equal(pool(view.tokens, assignment, prefix=PREFIX), out), "the assignment describes what is done"
    clusters = kmedoids(view.patches, first_by_score(view.attn_received, keep), view.attn_received, 3)
    for image, (owner, member) in enumerate(zip(*(t.tolist() for t in clusters), strict=True)):
        assert torch.equal(out[image, :PREFIX], view.tokens[image, :PREFIX])
        assert torch.equal(out[image, PREFIX:], view.patches[image, member])
        shown = unpool(out[:, PREFIX:], assignment)[image]
        assert torch.equal(shown, view.patches[image, [member[o] for o in owner]]), "members show their medoid"
    assert torch.equal(assignment.sizes, cluster_medoids(clusters, view.size).sizes)


@pytest.mark.parametrize("weights", ["significance", "size", "none"])
@pytest.mark.parametrize("proportional", [False, True])
def test_tokens_weigh_what_the_option_says(view, proportional, weights):
    method = TokenPooling(weights=weights, proportional_attention=proportional)
    weight = {"significance": view.attn_received, "size": view.size, "none": None}[weights]
    clusters = kmedoids(view.patches, first_by_score(view.attn_received, 4), weight, move_last=False)
    assert edges(method, view, 4) == expected_edges(clusters, view, weight)


def test_the_weights_matter(view):
    choices = ("significance", "size", "none")
    assert len({repr(edges(TokenPooling(weights=weights, iterations=2), view, 4)) for weights in choices}) == 3


def test_sizes_of_one_need_not_be_written_out(view):
    plain = BlockView(view.tokens, PREFIX, None, BLOCK, True, attn_received=view.attn_received)
    ones = BlockView(view.tokens, PREFIX, torch.ones(BATCH, N), BLOCK, True, attn_received=view.attn_received)
    for weights in ("significance", "size", "none"):
        method = TokenPooling(weights=weights)
        assert edges(method, plain, 4) == edges(method, ones, 4)
        assert torch.equal(method.assign(plain, 4).sizes, method.assign(ones, 4).sizes)


def test_sizes_add_up_whatever_tokens_weigh(view):
    for weights in ("significance", "size", "none"):
        for output in ("mean", "medoid"):
            sizes = TokenPooling(weights=weights, output=output).assign(view, 4).sizes
            assert torch.equal(sizes.sum(dim=1), view.size.sum(dim=1))


@pytest.mark.parametrize("seed", [0, 5])
def test_random_first_centers_are_those_of_the_seed_and_the_block(view, seed):
    first = first_at_random(BATCH, N, 4, seed, BLOCK)
    clusters = kmedoids(view.patches, first, view.attn_received, move_last=False)
    method = TokenPooling(start="random", seed=seed)
    assert edges(method, view, 4) == expected_edges(clusters, view, view.attn_received)


@pytest.mark.parametrize("features", ["tokens", "normed", "keys"])
def test_the_features_clustered_are_those_asked_for(view, features):
    patches, keys = view.patches, view.keys
    normed = (patches - patches.mean(-1, keepdim=True)) / (patches.var(-1, correction=0, keepdim=True) + 1e-5).sqrt()
    joined = torch.cat([keys[:, head] for head in range(HEADS)], dim=-1)
    x = {"tokens": patches, "normed": normed, "keys": joined}[features]
    clusters = kmedoids(x, first_by_score(view.attn_received, 4), view.attn_received, move_last=False)
    method = TokenPooling(features=features)
    assert edges(method, view, 4) == expected_edges(clusters, view, view.attn_received)


@pytest.mark.parametrize("clustering", ["kmedoids", "kmeans"])
def test_iterations_are_run_and_stopping_early_changes_nothing(view, clustering):
    cluster = kmeans if clustering == "kmeans" else partial(kmedoids, move_last=False)
    for iterations in (1, 2, 8):
        clusters = cluster(view.patches, first_by_score(view.attn_received, 5), view.attn_received, iterations)
        for early_stop in (False, True):
            method = TokenPooling(clustering=clustering, iterations=iterations, early_stop=early_stop)
            assert edges(method, view, 5) == expected_edges(clusters, view, view.attn_received)


def test_later_attention_weighs_by_count_where_it_is_carried():
    assert TokenPooling().proportional_attention
    assert not TokenPooling(proportional_attention=False).proportional_attention
    assert not TokenPooling(proportional_attention=False).uses_size
    assert TokenPooling(proportional_attention=False, weights="size").uses_size
    carried, not_carried = (
        fv.reduce_(make("timm-cls"), TokenPooling(proportional_attention=proportional), fv.Keep({1: 10}))(images())
        for proportional in (True, False)
    )
    assert not torch.allclose(carried, not_carried, atol=1e-3)


def test_only_what_is_read_is_computed():
    assert TokenPooling().needs(True) == {"attn_received"}
    assert TokenPooling(weights="none").needs(False) == {"attn_received"}
    assert TokenPooling(weights="size", start="random").needs(True) == set()
    assert TokenPooling(weights="none", start="random", features="keys").needs(True) == {"keys"}
    assert TokenPooling(features="keys").needs(True) == {"attn_received", "keys"}


def test_options_that_do_not_go_together_are_refused():
    with pytest.raises(ValueError, match="K-Means has no medoids"):
        TokenPooling(clustering="kmeans", output="medoid")
    with pytest.raises(ValueError, match="iterations must be at least 1, got 0"):
        TokenPooling(iterations=0)


def test_the_macs_are_one_table_of_distances_or_one_product_per_iteration():
    step = StepShape(n=20, keep=6, prefix=1, dim=32, heads=4, head_dim=5, has_cls=True)
    assert TokenPooling(iterations=9).macs(step) == 20 * 20 * 32
    assert TokenPooling(features="keys", iterations=2).macs(step) == 20 * 20 * 20
    assert TokenPooling().macs(step) == 14 * 6 * 32, "one iteration needs no table"
    assert TokenPooling(clustering="kmeans", iterations=3).macs(step) == 3 * 20 * 6 * 32
    assert TokenPooling().macs(StepShape(20, 0, 1, 32, 4, 5, True)) == 0


variants = pytest.mark.parametrize(
    "method",
    [TokenPooling(), PAPER, TokenPooling(clustering="kmeans"), TokenPooling(start="random", weights="none")],
    ids=["default", "paper", "kmeans", "random"],
)


@variants
def test_keeping_no_patch_leaves_the_class_token_alone(method):
    model = fv.reduce_(make("timm-cls"), method, fv.Keep({1: 10, 2: 0}))
    with torch.no_grad():
        assert fv.trace(model, images()).counts == (36, 10, 0, 0)
        assert model.forward_features(images()).shape == (3, 1, 32)
        assert model(images()).isfinite().all()


@variants
@pytest.mark.parametrize("family", ["timm-mean", "timm-map"])
def test_it_works_without_a_class_token(family, method):
    model = fv.reduce_(make(family), method, fv.Keep({1: 10, 2: 1}))
    with torch.no_grad():
        assert fv.trace(model, images()).counts == (36, 10, 1, 1)
        assert model(images()).isfinite().all()


@pytest.mark.parametrize(
    "method",
    [
        TokenPooling(),
        TokenPooling(clustering="kmeans"),
        PAPER,
    ],
    ids=["default", "kmeans", "paper"],
)
def test_every_patch_can_be_traced_through_two_steps(method):
    model = fv.reduce_(make("timm-cls"), method, fv.Keep({1: 10, 2: 3}))
    trace = fv.trace(model, images())
    first, second = (unpool(torch.arange(a.num_out).view(1, -1, 1).expand(3, -1, 1), a) for a in trace.steps[1:3])
    assert torch.equal(trace.owner(-1), second.squeeze(-1).gather(1, first.squeeze(-1)))


def test_on_a_model_the_most_attended_tokens_are_the_first_centers():
    model, x = make("timm-cls"), images(2)
    with torch.no_grad():
        block, tokens = model.blocks[0], model._pos_embed(model.patch_embed(x))
        q, k, _ = block.attn.qkv(block.norm1(tokens)).view(2, 37, 3, 2, 16).permute(2, 0, 3, 1, 4)
        received = torch.zeros(2, 37, dtype=torch.float64)
        for image in range(2):
            for head in range(2):
                for query in range(37):
                    logits = [float(q[image, head, query] @ k[image, head, key]) / 4 for key in range(37)]
                    top = sum(math.exp(value) for value in logits)
                    received[image] += torch.tensor([math.exp(value) / top for value in logits])
        patches = (tokens + block.attn(block.norm1(tokens)))[:, 1:]
        clusters = kmedoids(patches.double(), first_by_score(received[:, 1:], 9), received[:, 1:])
        trace = fv.trace(fv.reduce_(model, PAPER, fv.Keep({0: 9})), x)
    assert trace.steps[0].src[:, :9].tolist() == clusters.member.tolist()
    owner = unpool(torch.arange(9.0).view(1, 9, 1).expand(2, 9, 1), trace.steps[0])
    assert torch.equal(owner.squeeze(-1).long(), clusters.owner)


def test_unweighted_means_are_the_same_whatever_the_head_reads():
    method = TokenPooling(weights="none", proportional_attention=False)
    assert method.uses_size, "sizes must be tracked on every model, not only where a head asks for them"
