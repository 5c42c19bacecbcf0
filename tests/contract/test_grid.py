"""The contract, part three: one feature for every patch out of a reduced encoder, at its end or behind a range."""

import copy

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import foveate as fv
from zoo import DEPTH, GRID, ONE_PER_LIBRARY, PATCHES, encoded, family_of, fits, images, main_output, make, schedule_for

GRIDS = ("grid", "grid-residual", "grid-attention")
METHODS = (fv.TopK(), fv.EViT(), fv.ToMe(), fv.Ward(), fv.HVTPool(), fv.DynamicViT(), fv.ClusterAttention())
PAIRS = [(m, f) for f in ONE_PER_LIBRARY for m in METHODS if fits(m, f)]
every_pair = pytest.mark.parametrize("pair", PAIRS, ids=lambda p: f"{p[0].name}-{p[1]}")
every_grid = pytest.mark.parametrize("output", GRIDS)


def reduced(family, method, schedule="", **options):
    model = make(family)
    torch.manual_seed(7)
    return fv.reduce_(model, method, schedule_for(method) if schedule == "" else schedule, **options)


def allowed(method, output):
    return not (isinstance(method, fv.DynamicViT) and output == "grid-attention")


def loops(tokens, steps, own_residual):
    """Every patch by hand: follow it through the steps, add up what its slots hold at the end."""
    found = torch.empty(tokens.shape[0], PATCHES, tokens.shape[2])
    for image in range(tokens.shape[0]):

        def feature(level, token, image=image):
            if level == len(steps):
                return tokens[image, token]
            step = steps[level]
            src, dst, _, present = (field[image] for field in step.assignment.edges(tokens.shape[0]))
            slots = [int(d) for s, d, p in zip(src, dst, present, strict=True) if p and s == token]
            if not slots:
                return step.before[image, token]
            now = torch.stack([feature(level + 1, slot) for slot in slots]).mean(dim=0)
            if not own_residual:
                return now
            return step.before[image, token] + now - torch.stack([step.after[image, s] for s in slots]).mean(dim=0)

        for patch in range(PATCHES):
            found[image, patch] = feature(0, patch)
    return found


@every_grid
@every_pair
def test_an_empty_schedule_changes_nothing(pair, output):
    method, family = pair
    if not allowed(method, output):
        pytest.skip("refused, as another test shows")
    model, x = make(family), images(2)
    with torch.no_grad():
        expected = main_output(model, x)
        fv.reduce_(model, method, fv.Keep({}), output=output)
        assert torch.equal(main_output(model, x), expected)


@pytest.mark.parametrize("output", GRIDS[:2])
@every_pair
def test_every_patch_gets_the_features_of_its_token(pair, output):
    method, family = pair
    x = images(2)
    with torch.no_grad():
        tokens = encoded(reduced(family, method), x, record=True)
        grid = encoded(reduced(family, method, output=output), x)
        prefix = family_of(make(family)).num_prefix
        steps = [b.step for b in tokens.blocks if b.step is not None]
        expected = loops(tokens.stream.tokens[:, prefix:], steps, output == "grid-residual")
    assert grid.stream.size is grid.stream.bias is None
    torch.testing.assert_close(grid.stream.tokens[:, prefix:], expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(grid.stream.tokens[:, :prefix], tokens.stream.tokens[:, :prefix])


@pytest.mark.parametrize("family", ONE_PER_LIBRARY)
def test_in_the_last_block_every_patch_attends_to_the_tokens_that_are_left(family):
    x = images(2)
    with torch.no_grad():
        plain = reduced(family, fv.ToMe())
        tokens = encoded(plain, x, record=True)
        bound = family_of(plain)
        prefix, pieces = bound.num_prefix, bound.pieces()[-1]
        kept = tokens.blocks[-2].stream
        steps = [b.step for b in tokens.blocks[:-1] if b.step is not None]
        full = torch.cat([kept.tokens[:, :prefix], loops(kept.tokens[:, prefix:], steps, True)], dim=1)
        q = pieces.queries(pieces.normed(full))
        k, v = pieces.keys_values(pieces.normed(kept.tokens))
        size = torch.nn.functional.pad(kept.size, (prefix, 0), value=1.0)
        weights = (q @ k.transpose(2, 3) * pieces.scale).exp() * size[:, None, None, :]
        attended = weights / weights.sum(dim=-1, keepdim=True) @ v
        expected = pieces.mlp(full + pieces.after_attention(attended, pieces.normed(full)))
        got = encoded(reduced(family, fv.ToMe(), output="grid-attention"), x).stream.tokens
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


def counted_macs(model):
    with FlopCounterMode(display=False) as counter:
        model(images(1))
    return counter.get_total_flops() // 2


@every_grid
@every_pair
def test_costs_count_the_whole_grid(pair, output):
    method, family = pair
    if not allowed(method, output):
        pytest.skip("refused, as another test shows")
    model = reduced(family, method, output=output)
    assert fv.cost(model).macs == counted_macs(model)


@pytest.mark.parametrize("family", ["timm-mean", "timm-map"])
def test_heads_that_average_read_every_patch_once(family):
    x, model = images(2), reduced(family, fv.ToMe(), output="grid")
    with torch.no_grad():
        features = model.forward_features(x)
        assert features.shape[1] == PATCHES
        unreduced_head = type(make(family)).forward_head(make(family), features)
        torch.testing.assert_close(model(x), unreduced_head)
        torch.testing.assert_close(model.forward_head(features), unreduced_head)
    assert fv.cost(model).macs == counted_macs(model)


def test_transformers_hidden_states_are_full_grids():
    x, model = images(2), reduced("hf-dinov2-model", fv.ToMe(), output="grid")
    with torch.no_grad():
        out = model(x, output_hidden_states=True)
    assert {h.shape[1] for h in out.hidden_states} == {PATCHES + 1}
    assert out.last_hidden_state.shape[1] == PATCHES + 1
    dense = [fv.features(model, x, block=b) for b in range(DEPTH)]
    got = model.layernorm(out.hidden_states[-1])[:, 1:].transpose(1, 2).unflatten(2, GRID)
    torch.testing.assert_close(got, dense[-1], rtol=1e-4, atol=1e-5)


def test_timm_intermediates_of_a_residual_grid_end_in_the_features():
    x, model = images(2), reduced("timm-registers-layerscale", fv.ToMe(), output="grid-residual")
    with torch.no_grad():
        last = model.get_intermediate_layers(x, n=1, norm=True)[0]
        prefix = model.num_prefix_tokens
        torch.testing.assert_close(last, model.forward_features(x)[:, prefix:], rtol=1e-4, atol=1e-5)


@every_pair
def test_behind_a_range_every_patch_has_its_token_again(pair):
    method, family = pair
    if schedule_for(method) is None:
        with pytest.raises(fv.PlanError, match="fixes its own counts"):
            reduced(family, method, merge_unmerge=(1, 2))
        return
    x, schedule = images(2), fv.KeepRate(0.6, blocks=(1, 2))
    model = reduced(family, method, schedule, merge_unmerge=(1, 2))
    trace = fv.trace(model, x)
    plain = fv.inspect(reduced(family, method, schedule)).reducer.plan
    assert trace.counts == (PATCHES, plain.tokens_after(1), PATCHES, PATCHES)
    assert torch.equal(trace.owner(2), torch.arange(PATCHES).expand(2, -1))
    assert fv.cost(model).macs == counted_macs(model)
    with torch.no_grad():
        prefix = family_of(model).num_prefix
        tokens = encoded(reduced(family, method, schedule), x, record=True)
        steps = [b.step for b in tokens.blocks if b.step is not None]
        inside = tokens.blocks[2].stream.tokens
        full = torch.cat([inside[:, :prefix], loops(inside[:, prefix:], steps, False)], dim=1)
        expected = family_of(make(family)).pieces()[3].whole(full)
        torch.testing.assert_close(encoded(model, x).stream.tokens, expected, rtol=1e-4, atol=1e-5)


def test_a_range_may_be_the_whole_depth():
    x = images(2)
    with torch.no_grad():
        whole = encoded(reduced("timm-cls", fv.ToMe(), merge_unmerge=(0, DEPTH - 1)), x).stream.tokens
        grid = encoded(reduced("timm-cls", fv.ToMe(), output="grid"), x).stream.tokens
    assert torch.equal(whole, grid)


def test_a_budget_is_met_inside_a_range():
    model = reduced("timm-cls", fv.ToMe(), fv.Budget(0.85), merge_unmerge=(1, 2))
    plan = fv.inspect(model).reducer.plan
    assert plan.counts[0] == plan.counts[3] == PATCHES
    assert plan.counts[2] < PATCHES
    assert fv.cost(model).macs / fv.cost(make("timm-cls")).macs == pytest.approx(0.85, rel=0.01)


@pytest.mark.parametrize("output", GRIDS[:2])
@pytest.mark.parametrize("span", [None, (1, 2)])
def test_masks_in_training_and_removal_in_inference_give_the_same_grid(output, span):
    """With the same decisions; in training none is removed, but a dropped token keeps its features."""
    model = reduced("timm-cls", fv.DynamicViT(), fv.KeepRate(0.6, blocks=(1, 2)), output=output, merge_unmerge=span)
    x = images(2)
    with torch.no_grad():
        removed = encoded(model, x, record=True)
        kept = fv.trace(model, x)
    decisions = iter([(kept.owner(block) >= 0).float() for block in (1, 2)] if span is None else _kept(removed))

    class Decided(fv.DynamicViT):
        def decide(self, view, kept):
            return next(decisions)

    trained = copy.deepcopy(model).train()
    object.__setattr__(trained.foveate.reduction, "method", Decided())
    with torch.no_grad():
        masked = encoded(trained, x)
    torch.testing.assert_close(masked.stream.tokens, removed.stream.tokens, rtol=1e-4, atol=1e-5)


def _kept(removed):
    """(B, N) patches that are left after each step, as in a trace that ends before the range does."""
    total = torch.arange(PATCHES).expand(2, -1)
    for step in (b.step for b in removed.blocks if b.step is not None):
        total = total.gather(1, step.assignment.src)
        yield torch.zeros(2, PATCHES).scatter(1, total, 1.0)


@every_grid
def test_it_copies_exports_and_compiles(output):
    model, x = reduced("timm-registers-layerscale", fv.ToMe(), output=output), images(2)
    with torch.no_grad():
        expected = model.forward_features(x)
        assert torch.equal(copy.deepcopy(model).forward_features(x), expected)
        program = torch.export.export(model, (x,), dynamic_shapes=({0: torch.export.Dim("batch", min=1, max=8)},))
        torch.testing.assert_close(program.module()(images(3)), model(images(3)), rtol=1e-4, atol=1e-5)


REFUSED = [
    ({"output": "grid", "exact_last_block": True}, "exact_last_block leaves no patch tokens"),
    ({"output": "map"}, "output must be one of"),
    ({"merge_unmerge": (3, 1)}, "first and the last block"),
    ({"merge_unmerge": (1, 9)}, "merge_unmerge=(1, 9), but the model has 4 blocks"),
    ({"merge_unmerge": (2, 3), "schedule": fv.Keep({1: 20})}, "outside merge_unmerge"),
    ({"positions": "mean"}, "positions='mean' needs blocks"),
    ({"positions": "middle"}, "positions must be one of"),
]


@pytest.mark.parametrize(("options", "words"), REFUSED, ids=[words[:24] for _, words in REFUSED])
def test_what_makes_no_sense_is_refused_and_changes_nothing(options, words):
    model = make("timm-cls")
    options = {"schedule": fv.KeepRate(0.6, blocks=(1, 2))} | options
    with pytest.raises(ValueError, match=words.replace("(", r"\(").replace(")", r"\)")):
        fv.reduce_(model, fv.ToMe(), **options)
    assert not fv.is_reduced(model)


def test_dynamicvit_has_no_attention_over_dropped_tokens():
    with pytest.raises(ValueError, match="masks tokens in training"):
        reduced("timm-cls", fv.DynamicViT(), output="grid-attention")
