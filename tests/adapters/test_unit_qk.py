"""Normalised queries and keys (Token Pooling, appendix F): logits are alpha * cos(q, k), on every family."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import foveate as fv
from foveate.adapters import Heads
from foveate.adapters.unit_qk import _unit
from zoo import DEPTH, DIM, FAMILIES, HEADS, ONE_PER_LIBRARY, images, main_output, make

EMPTY = fv.Keep({})
TWO_SITES = fv.KeepRate(0.6, blocks=(1, 2))


def tokens_by_hand(model, x, alpha: list[float]) -> torch.Tensor:
    """Embedding and blocks with attention written out."""
    family = fv.inspect(model)
    tokens, source = family.embed_with_positions(x)
    for index, (pieces, scale) in enumerate(zip(family.pieces(), alpha, strict=True)):
        rows = None if source is None else source.rows(None, index)
        tokens = pieces.entered(tokens, rows)
        normed = pieces.normed(tokens)
        q, k, v = pieces.project(normed)
        (q, k, v), bias = pieces.placed(Heads(q, k, v), rows, rows)
        cosine = torch.einsum("bhqd,bhkd->bhqk", q, k) / (q.norm(dim=-1)[..., None] * k.norm(dim=-1)[:, :, None])
        attended = (scale * cosine + (0 if bias is None else bias)).softmax(dim=-1) @ v
        tokens = pieces.mlp(tokens + pieces.after_attention(attended, normed))
    return tokens


def tokens_of(model, x) -> torch.Tensor:
    return fv.inspect(model).encode(x).stream.tokens


@pytest.mark.parametrize("family", FAMILIES)
def test_attention_compares_directions_alone(family):
    with torch.no_grad():
        expected = tokens_by_hand(make(family), images(2), [1.0] * DEPTH)
        model = fv.reduce_(make(family), fv.PoWER(), EMPTY, unit_qk="fixed")
        torch.testing.assert_close(tokens_of(model, images(2)), expected, rtol=1e-4, atol=1e-4)
        assert main_output(model, images(2)).isfinite().all()


@pytest.mark.parametrize("family", ONE_PER_LIBRARY)
def test_the_learned_scale_starts_at_the_root_of_the_head_width_and_is_one_per_block(family):
    model = fv.reduce_(make(family), fv.PoWER(), EMPTY, unit_qk="learned")
    name, alpha = next((n, p) for n, p in model.named_parameters() if n.startswith("foveate."))
    assert name == "foveate.unit_scales.alpha"
    assert alpha.tolist() == pytest.approx([(DIM / HEADS) ** 0.5] * DEPTH)
    with torch.no_grad():
        alpha.copy_(torch.tensor([0.5, 1.0, 2.0, 4.0]))
        expected = tokens_by_hand(make(family), images(2), alpha.tolist())
        torch.testing.assert_close(tokens_of(model, images(2)), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("family", ONE_PER_LIBRARY)
@pytest.mark.parametrize("method", [fv.TokenPooling(), fv.PoWER(), fv.ToMe()], ids=lambda m: m.name)
def test_it_goes_with_a_reduction_and_every_scale_learns(method, family):
    model = fv.reduce_(make(family), method, TWO_SITES, unit_qk="learned")
    main_output(model, images()).square().mean().backward()
    assert (model.foveate.unit_scales.alpha.grad != 0).all()


def test_the_exact_last_block_is_exact_with_unit_heads_too():
    with torch.no_grad():
        whole = fv.reduce_(make("timm-cls"), fv.ToMe(), TWO_SITES, unit_qk="learned")(images())
        exact = fv.reduce_(make("timm-cls"), fv.ToMe(), TWO_SITES, unit_qk="learned", exact_last_block=True)(images())
    torch.testing.assert_close(exact, whole, rtol=1e-4, atol=1e-5)


def test_cost_stays_and_restore_removes_it():
    model = make("timm-cls")
    plain, expected = fv.cost(model), model(images(1))
    fv.reduce_(model, fv.PoWER(), EMPTY, unit_qk="learned")
    assert fv.cost(model).macs == plain.macs
    with FlopCounterMode(display=False) as counter:
        changed = model(images(1))
    assert counter.get_total_flops() == 2 * plain.macs
    assert not torch.allclose(changed, expected)
    fv.restore_(model)
    assert torch.equal(model(images(1)), expected)


@pytest.mark.parametrize("kind", ["fixed", "learned"])
def test_saving_keeps_it(kind, tmp_path):
    model = fv.reduce_(make("timm-cls"), fv.TokenPooling(), TWO_SITES, unit_qk=kind)
    if kind == "learned":
        torch.nn.init.constant_(model.foveate.unit_scales.alpha, 2.5)
    with pytest.warns(UserWarning, match="cannot be rebuilt"):
        fv.save(model, tmp_path / "saved")
    loaded = fv.load(tmp_path / "saved", model=make("timm-cls"))
    assert loaded.foveate.unit_qk == kind
    with torch.no_grad():
        assert torch.equal(loaded(images()), model(images()))


def test_an_unknown_kind_is_refused_and_leaves_the_model_alone():
    model = make("timm-cls")
    with pytest.raises(ValueError, match=r"unit_qk must be 'fixed', 'learned' or None; got 'yes'"):
        fv.reduce_(model, fv.PoWER(), EMPTY, unit_qk="yes")
    assert not hasattr(model, "foveate")


def test_a_head_of_zeros_is_no_trouble_in_half_precision():
    zeros = torch.zeros(1, 1, 2, 4, dtype=torch.float16)
    assert _unit(zeros).isfinite().all()
    assert _unit(zeros + 3).dtype is torch.float16
