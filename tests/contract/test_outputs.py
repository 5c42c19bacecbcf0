"""The contract, part one: what a reduced model returns, for every pair of method and family that can differ."""

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

import foveate as fv
from foveate.adapters import Heads
from foveate.core import pool, slot_weights, unpool
from foveate.methods import Site, all_methods
from pairs import PAIRS, pair_id
from zoo import (
    DEPTH,
    DIM,
    FAMILIES,
    GRID,
    IMAGE,
    PATCHES,
    encoded,
    family_of,
    images,
    main_output,
    make,
    num_prefix,
    reduced,
    schedule_for,
    shared,
)

every_pair = pytest.mark.parametrize("pair", PAIRS, ids=pair_id)
every_family = pytest.mark.parametrize("family", FAMILIES)


def outputs(model, x) -> list[Tensor]:
    out = model(x)
    return [out] if isinstance(out, Tensor) else [t for t in out.to_tuple() if isinstance(t, Tensor)]


@every_pair
def test_an_empty_schedule_changes_nothing(pair):
    method, family = pair
    model, x = make(family), images()
    with torch.no_grad():
        expected = outputs(model, x)
        fv.reduce_(model, method, fv.Keep({}))
        got = outputs(model, x)
    assert len(got) == len(expected)
    for a, b in zip(got, expected, strict=True):
        assert torch.equal(a, b)


@every_pair
def test_tokens_are_as_many_as_planned(pair):
    method, family = pair
    model = shared(family, method)
    trace, plan = fv.trace(model, images()), model.foveate.plan
    assert trace.counts == tuple(plan.tokens_after(i) for i in range(DEPTH))
    assert fv.cost(model).tokens == tuple(trace.num_prefix + n for n in trace.counts)
    acting = [i for i in range(DEPTH) if plan.acts_in(i)]
    assert acting, "the contract's schedule must reduce something"
    for i in acting:
        step = trace.key_steps[i] if method.site is Site.KV else trace.steps[i]
        assert (step.num_in, step.num_out) == (plan.before(i), plan.counts[i])


@every_pair
def test_prefix_tokens_are_untouched_by_the_reduction(pair, monkeypatch):
    method, family = pair
    seen = []

    def watch(kind):
        original = kind.combine

        def spy(self, view, assignment):
            out = original(self, view, assignment)
            seen.append((view, out))
            return out

        monkeypatch.setattr(kind, "combine", spy)

    for kind in {type(method.in_block(block, DEPTH)) for block in range(DEPTH)}:
        watch(kind)
    model = shared(family, method)
    with torch.no_grad():
        main_output(model, images())
    prefix = num_prefix(model)
    assert seen
    for view, out in seen:
        assert view.prefix == prefix
        assert torch.equal(out[:, :prefix], view.tokens[:, :prefix])


@every_pair
def test_an_image_does_not_depend_on_its_batch(pair):
    method, family = pair
    model, x = shared(family, method), images(3)
    with torch.no_grad():
        together = main_output(model, x)
        alone = torch.cat([main_output(model, x[i : i + 1]) for i in range(3)])
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-5)


def counted_macs(model) -> int:
    fastpath = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)  # the counter does not see inside it
    try:
        with FlopCounterMode(display=False) as counter:
            model(images(1))
    finally:
        torch.backends.mha.set_fastpath_enabled(fastpath)
    return counter.get_total_flops() // 2


@every_pair
def test_macs_equal_torchs_flop_counter(pair):
    method, family = pair
    model = shared(family, method)
    assert fv.cost(model, (3, IMAGE, IMAGE)).macs == counted_macs(model)


@every_family
def test_macs_of_the_unreduced_model_equal_torchs_flop_counter(family):
    assert fv.cost(make(family)).macs == counted_macs(make(family))


@every_family
def test_own_macs_are_what_a_method_adds_to_the_free_slice(family):
    model = reduced(family, fv.ToMe())
    slice_ = fv.reduce_(make(family), fv.FreeSlice(), fv.Keep(model.foveate.plan.counts))
    assert fv.cost(model).reduction_macs == fv.cost(model).macs - fv.cost(slice_).macs > 0


@every_pair
def test_features_cover_the_patch_grid(pair):
    method, family = pair
    model = shared(family, method)
    with torch.no_grad():
        dense = fv.features(model, images(2))
    assert dense.shape == (2, DIM, *GRID)
    assert dense.isfinite().all()


@every_pair
def test_every_patch_of_a_token_shows_that_token(pair):
    method, family = pair
    model, x = shared(family, method), images(2)
    with torch.no_grad():
        dense = fv.features(model, x).flatten(2).transpose(1, 2)
        trace = fv.trace(model, x)
        left = encoded(model, x, record=True).blocks[-1].stream.tokens  # before a head that needs the grid gets it
        tokens = family_of(model).final_norm(left)[:, trace.num_prefix :]
    whole = trace.after(-1)
    edges = whole.edges(2)
    degree = torch.zeros(2, whole.num_in).scatter_add(1, edges.src, edges.present.float())
    spread = unpool(tokens, whole)
    single = degree == 1  # patches in several tokens show a mean, dropped ones their last features
    torch.testing.assert_close(dense[single], spread[single], rtol=1e-4, atol=1e-5)


@every_pair
def test_spreading_back_keeps_the_means_of_clusters(pair):
    method, family = pair
    trace = fv.trace(shared(family, method), images(2))
    x = torch.randn(2, PATCHES, 5)
    for step in (s for s in (*trace.steps, *trace.key_steps) if s is not None and s.num_in == PATCHES):
        if (step.edges(2).src.sort(dim=1).values.diff(dim=1) == 0).any():
            continue  # overlapping windows: a token in two of them shows a mean of both
        y = pool(x, step)
        torch.testing.assert_close(pool(unpool(y, step), step), y * slot_weights(step, 2).unsqueeze(-1))


@every_pair
def test_half_precision_and_autocast_give_finite_outputs_of_their_kind(pair):
    method, family = pair
    x = images(2)
    with torch.no_grad():
        model = reduced(family, method)
        exact = main_output(model, x)
        with torch.autocast("cpu", torch.bfloat16):
            mixed = main_output(model, x)
        half = main_output(model.bfloat16(), x.bfloat16())
    assert exact.dtype is torch.float32
    assert half.dtype is torch.bfloat16
    assert mixed.isfinite().all()
    assert half.isfinite().all()


@every_pair
def test_a_nan_in_one_image_stays_in_that_image(pair):
    method, family = pair
    model, x = shared(family, method), images(3).clone()
    with torch.no_grad():
        clean = main_output(model, x)
        x[1] = float("nan")
        out = main_output(model, x)
    assert out[1].isnan().any()
    torch.testing.assert_close(out[[0, 2]], clean[[0, 2]], rtol=1e-4, atol=1e-5)


@every_family
def test_the_engines_pieces_make_up_the_whole_block(family):
    """LayerScale, gates, qk-norm, post-norm: whatever the block does, its pieces must add up to it."""
    model = make(family)
    bound = family_of(model)
    with torch.no_grad():
        x, source = bound.embed_with_positions(images(2))
        for index, pieces in enumerate(bound.pieces()):
            rows = None if source is None else source.rows(None, index)
            normed = pieces.normed(x)
            q, k, v = pieces.project(normed)
            apart = (pieces.queries(normed), *pieces.keys_values(normed))
            for whole, part in zip((q, k, v), apart, strict=True):
                torch.testing.assert_close(whole, part)
            (q, k, v), bias = pieces.placed(Heads(q, k, v), rows, rows)
            logits = q @ k.transpose(-2, -1) * pieces.scale + (0 if bias is None else bias)
            attended = torch.softmax(logits, dim=-1) @ v
            put_together = pieces.mlp(x + pieces.after_attention(attended, normed))
            x = pieces.whole(x, rows)
            torch.testing.assert_close(put_together, x, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("method", [m() for m in all_methods().values()], ids=lambda m: m.name)
def test_the_schedule_may_be_left_out_only_where_the_method_fixes_its_counts(method):
    if schedule_for(method) is None:
        assert fv.reduce_(make("timm-cls"), method).foveate.plan.counts
    else:
        with pytest.raises(fv.PlanError, match="needs a schedule"):
            fv.reduce_(make("timm-cls"), method)
