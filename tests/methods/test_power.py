"""PoWER-BERT: ranking by attention received on a real block, and the search for counts."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import foveate as fv
from foveate import PoWER, PoWERSearch, TokenPooling, ToMe
from foveate.core import keep_topk
from foveate.methods import BlockView
from foveate.methods.power import (
    SoftExtract,
    found_counts,
    hard_counts,
    mass_penalty,
    project_retention_,
    soft_extracts,
)
from zoo import DEPTH, PATCHES, images, make

BATCH, PREFIX, N, CHANNELS = 2, 2, 9, 4


@pytest.fixture
def view() -> BlockView:
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randn(BATCH, PREFIX + N, CHANNELS, generator=generator, dtype=torch.float64)
    received = torch.rand(BATCH, N, generator=generator)
    module = SoftExtract(N)
    with torch.no_grad():
        module.retention.copy_(torch.linspace(1.2, -0.2, N))
    return BlockView(tokens, PREFIX, None, block=1, has_cls=True, attn_received=received, module=module)


def search(family: str = "timm-cls", seed: int | None = None) -> nn.Module:
    model = fv.reduce_(make(family), PoWERSearch())
    if seed is not None:
        generator = torch.Generator().manual_seed(seed)
        for module in soft_extracts(model):
            module.retention.data = 2 * torch.rand(PATCHES, generator=generator) - 0.5
    return model


def ranked(score: Tensor) -> list[int]:
    values = score.tolist()
    return sorted(range(len(values)), key=values.__getitem__, reverse=True)


def attention_received(block: nn.Module, tokens: Tensor) -> Tensor:
    """Sum over heads and queries of a timm block's attention matrix, one entry after another: (B, tokens)."""
    b, n, dim = tokens.shape
    attn = block.attn
    q, k, _ = attn.qkv(block.norm1(tokens)).view(b, n, 3, attn.num_heads, -1).permute(2, 0, 3, 1, 4)
    received = torch.zeros(b, n, dtype=torch.float64)
    for image in range(b):
        for head in range(attn.num_heads):
            logits = (q[image, head] @ k[image, head].T / math.sqrt(dim // attn.num_heads)).tolist()
            for row in logits:
                total = sum(math.exp(value) for value in row)
                for key, value in enumerate(row):
                    received[image, key] += math.exp(value) / total
    return received


@pytest.mark.parametrize("keep", [0, 1, 4, N])
def test_the_tokens_that_receive_most_attention_stay_in_order(view, keep):
    out = PoWER().combine(view, PoWER().assign(view, keep))
    for image in range(BATCH):
        kept = sorted(ranked(view.attn_received[image])[:keep])
        assert torch.equal(out[image], torch.cat([view.tokens[image, :PREFIX], view.patches[image, kept]]))


@pytest.mark.parametrize("family", ["timm-cls", "timm-mean", "timm-registers-layerscale"])
def test_a_reduced_model_equals_plain_loops_over_its_attention(family):
    model, x, counts = make(family), images(2), {1: 20, 2: 7}
    prefix = model.num_prefix_tokens
    with torch.no_grad():
        tokens = model._pos_embed(model.patch_embed(x))
        for index, block in enumerate(model.blocks):
            received = attention_received(block, tokens)
            tokens = tokens + block.ls1(block.attn(block.norm1(tokens)))
            if index in counts:
                kept = [sorted(ranked(row[prefix:])[: counts[index]]) for row in received]
                rows = [[*range(prefix), *(prefix + i for i in image)] for image in kept]
                tokens = torch.stack([tokens[i, row] for i, row in enumerate(rows)])
            tokens = tokens + block.ls2(block.mlp(block.norm2(tokens)))
        expected = model.forward_head(model.norm(tokens))
        got = fv.reduce_(model, PoWER(), fv.Keep(counts))(x)
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


def test_keeping_no_patch_leaves_the_class_token_alone():
    model = fv.reduce_(make("timm-cls"), PoWER(), fv.Keep({1: 10, 2: 0}))
    with torch.no_grad():
        assert fv.trace(model, images()).counts == (36, 10, 0, 0)
        assert model.forward_features(images()).shape == (3, 1, 32)
        assert model(images()).isfinite().all()


def test_the_search_multiplies_each_token_by_the_value_of_its_rank(view):
    out = PoWERSearch().combine(view, PoWERSearch().assign(view, N))
    expected = view.tokens.clone()
    for image in range(BATCH):
        for rank, token in enumerate(ranked(view.attn_received[image])):
            worth = min(1.0, max(0.0, float(view.module.retention.detach()[rank])))
            expected[image, PREFIX + token] *= worth
    assert torch.allclose(out, expected)
    assert torch.equal(out[:, :PREFIX], view.tokens[:, :PREFIX])


def test_of_equal_tokens_the_first_ranks_first():
    module = SoftExtract(4)
    module.retention.data = torch.tensor([0.8, 0.6, 0.4, 0.2])
    assert module(torch.tensor([[1.0, 2.0, 1.0, 2.0]])).tolist() == [[pytest.approx(v) for v in (0.4, 0.8, 0.2, 0.6)]]


@pytest.mark.parametrize("family", ["timm-cls", "timm-mean", "timm-registers-map", "hf-dinov2", "torchvision"])
def test_a_search_that_has_not_begun_changes_nothing(family):
    model, x = make(family), images()
    with torch.no_grad():
        outputs = [m(x) for m in (model, search(family))]
    expected, got = (out if isinstance(out, Tensor) else out.logits for out in outputs)
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
    assert [len(module.retention) for module in soft_extracts(search(family))] == [PATCHES] * DEPTH


def test_gradients_reach_every_retention_parameter_that_matters():
    model = search(seed=3)
    model(images()).square().sum().backward()
    for module in soft_extracts(model)[:-1]:
        assert module.retention.grad.abs().min() > 0, "also those outside [0, 1]"
    assert not soft_extracts(model)[-1].retention.grad.any(), "the head reads the class token alone"


def test_retention_acts_between_zero_and_one_while_gradients_pass():
    module = SoftExtract(5)
    module.retention.data = torch.tensor([-3.0, 0.0, 0.25, 1.0, 1.5])
    assert module.clamped().tolist() == [0.0, 0.0, 0.25, 1.0, 1.0]
    assert module.mass().item() == 2.25
    (module.clamped() * torch.arange(1.0, 6.0)).sum().backward()
    assert module.retention.grad.tolist() == [1.0, 2.0, 3.0, 4.0, 5.0]
    module.project_()
    assert module.retention.tolist() == [0.0, 0.0, 0.25, 1.0, 1.0]
    assert module.retention.requires_grad


def test_projecting_a_model_projects_every_block():
    model = search(seed=1)
    wanted = [module.clamped().tolist() for module in soft_extracts(model)]
    project_retention_(model)
    assert [module.retention.tolist() for module in soft_extracts(model)] == wanted


def test_the_penalty_counts_later_blocks_more():
    model = search(seed=2)
    penalty = mass_penalty(model)
    masses = [sum(min(1.0, max(0.0, r)) for r in module.retention.tolist()) for module in soft_extracts(model)]
    assert penalty.item() == pytest.approx(sum(block * mass for block, mass in enumerate(masses, start=1)), rel=1e-5)
    penalty.backward()
    for block, module in enumerate(soft_extracts(model), start=1):
        assert module.retention.grad.tolist() == [float(block)] * PATCHES


@given(st.lists(st.floats(-5, 300), max_size=8))
def test_hard_counts_round_up_and_never_rise(masses):
    counts = hard_counts(masses)
    assert counts == [max(0, min(math.ceil(mass - 1e-4) for mass in masses[: i + 1])) for i in range(len(masses))]
    assert counts == sorted(counts, reverse=True)
    assert all(count < mass + 1 for count, mass in zip(counts, masses, strict=True) if mass >= 0)


@given(st.lists(st.integers(0, 600), max_size=8).map(lambda counts: sorted(counts, reverse=True)))
def test_whole_masses_are_their_own_counts(counts):
    assert hard_counts(map(float, counts)) == counts
    assert hard_counts(count + 5e-5 for count in counts) == counts, "a sum may end a hair above"
    assert hard_counts(max(0, count - 5e-5) for count in counts) == counts


def set_masses(model: nn.Module, masses: list[float]) -> None:
    for module, mass in zip(soft_extracts(model), masses, strict=True):
        module.retention.data = (mass - torch.arange(float(PATCHES))).clamp(-1, 2)


def test_counts_found_can_be_kept_by_other_methods():
    model = search()
    assert found_counts(model) == [PATCHES] * DEPTH
    set_masses(model, [30.5, 20.25, 12.0, 15.5])
    counts = found_counts(model)
    assert counts == [31, 21, 12, 12]
    fv.restore_(model)
    for method in (PoWER(), TokenPooling(), ToMe()):
        with torch.no_grad():
            assert fv.reduce_(model, method, fv.Keep(counts))(images()).isfinite().all()
        assert model.foveate.plan.counts == tuple(counts)
        fv.restore_(model)


def test_a_search_is_refused_where_the_last_block_is_exact_and_its_counts_are_not():
    model = make("timm-cls")
    with pytest.raises(fv.PlanError, match="PoWERSearch also acts in the last block"):
        fv.reduce_(model, PoWERSearch(), exact_last_block=True)
    counts = found_counts(fv.reduce_(model, PoWERSearch()))
    fv.reduce_(fv.restore_(model), PoWER(), fv.Keep(counts), exact_last_block=True)


def test_a_rank_worth_nothing_still_counts_as_a_patch_where_the_head_averages():
    model = fv.reduce_(make("timm-mean"), PoWERSearch())
    last = model.foveate.learned["3"].retention
    with torch.no_grad():
        last[10:] = 1e-12
        almost = model(images())
        last[10:] = 0
        torch.testing.assert_close(model(images()), almost, rtol=1e-4, atol=1e-5)


def test_counts_that_fall_by_more_than_half_are_beyond_tome():
    model = search()
    set_masses(model, [36, 12, 10, 8])
    schedule = fv.Keep(found_counts(model))
    fv.restore_(model)
    assert fv.reduce_(make("timm-cls"), TokenPooling(), schedule).foveate.plan.counts == (36, 12, 10, 8)
    with pytest.raises(fv.PlanError, match="12"):
        fv.reduce_(model, ToMe(), schedule)


def test_a_model_without_search_modules_is_named():
    for verb in (soft_extracts, mass_penalty, found_counts, project_retention_):
        with pytest.raises(ValueError, match=r"reduce_\(model, PoWERSearch\(\)\)"):
            verb(make("timm-cls"))


def test_an_image_of_another_size_is_refused_in_words():
    model = search("timm-dynamic")
    with pytest.raises(ValueError, match="set up for 36 patch tokens; the image has 48"):
        model(torch.randn(1, 3, 24, 32))


def test_a_schedule_beside_the_search_is_refused():
    with pytest.raises(fv.PlanError, match="fixes its own counts"):
        fv.reduce_(make("timm-cls"), PoWERSearch(), fv.Keep({1: 10}))


def masses_after_training(strength: float) -> list[float]:
    model, x, label = search(), images(), torch.tensor([0, 1, 2])
    parameters = [module.retention for module in soft_extracts(model)]
    optimizer = torch.optim.SGD(parameters, lr=0.01)
    for _ in range(5):
        loss = nn.functional.cross_entropy(model(x), label) + strength * mass_penalty(model)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        project_retention_(model)
    return [module.mass().item() for module in soft_extracts(model)]


def test_training_with_the_penalty_lowers_the_masses_and_more_so_in_later_blocks():
    free, held = masses_after_training(0.0), masses_after_training(1.0)
    assert all(b < a - 0.5 for a, b in zip(free, held, strict=True))
    assert held == sorted(held, reverse=True)
    assert masses_after_training(1.0) == held


def test_the_search_leaves_with_the_reduction():
    model = make("timm-cls")
    names = list(model.state_dict())
    fv.reduce_(model, PoWERSearch())
    added = [name for name in model.state_dict() if name not in names]
    assert added == [f"foveate.learned.{block}.retention" for block in range(DEPTH)]
    assert list(fv.restore_(model).state_dict()) == names


@pytest.mark.parametrize("method", [PoWER(), PoWERSearch()])
def test_self_attention_can_be_left_out_of_significance(view, method):
    others = view.attn_received.flip(1)
    view = dataclasses.replace(view, attn_received=None, attn_from_others=others)
    plain = dataclasses.replace(view, attn_received=others, attn_from_others=None)
    without = dataclasses.replace(method, self_attention=False)
    assert without.needs(True) == {"attn_from_others"}
    found, expected = (m.combine(v, m.assign(v, N)) for m, v in ((without, view), (method, plain)))
    assert torch.equal(found, expected)


def test_a_model_ranks_by_the_attention_of_others():
    model = fv.reduce_(make("timm-cls"), PoWER(self_attention=False), fv.Keep({1: 9}))
    seen = []

    def assign(self, view, keep):
        seen.append(view)
        return keep_topk(view.attn_from_others, keep)

    with pytest.MonkeyPatch.context() as patch, torch.no_grad():
        patch.setattr(PoWER, "assign", assign)
        model(images())
        x = model.blocks[0](model._pos_embed(model.patch_embed(images())))
        attn = model.blocks[1].attn
        q, k, _ = attn.qkv(model.blocks[1].norm1(x)).unflatten(2, (3, attn.num_heads, -1)).permute(2, 0, 3, 1, 4)
        weights = ((q @ k.transpose(2, 3)) * attn.scale).softmax(-1)
    own = weights.diagonal(dim1=2, dim2=3)
    torch.testing.assert_close(seen[0].attn_from_others, (weights.sum(2) - own).sum(1)[:, 1:])


def test_masses_are_rounded_down_to_one_at_least_as_published():
    assert hard_counts([30.5, 20.99995, 12.0, 15.5, 0.2], round_down=True) == [30, 21, 12, 12, 1]
    model = search()
    set_masses(model, [30.5, 20.25, 12.0, 15.5])
    assert found_counts(model, round_down=True) == [30, 20, 12, 12]
