"""A mixture is one method in the first blocks and another in the later ones: nothing else changes."""

import copy
import dataclasses
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import foveate as fv
from foveate.costs import step_shape
from foveate.evaluation.speed import free_slice
from foveate.methods import BlockView, Site
from foveate.methods.options import build, describe, method_text, parse
from foveate.plans import make_plan
from test_schedules import DEIT_S
from zoo import DEPTH, GRID, images, make

NO_LOG_SIZE = {"proportional_attention": False}
MIXTURES = [
    fv.Mixture(fv.Ward(rounds=2), fv.ToMe(), 2),
    fv.Mixture(fv.Ward(), fv.TopK(), 2),  # what Ward merged goes on to count for its members
    fv.Mixture(fv.Ward(), fv.EViT(), 1),  # a fused token counts for one of them
    fv.Mixture(fv.EViT(), fv.Ward(), 2),  # and when Ward merges it for one, though it stands for many
    fv.Mixture(fv.EViT(), fv.ToMe(**NO_LOG_SIZE), 2),  # ToMe's means weigh it by what it stands for
    fv.Mixture(fv.ToMe(**NO_LOG_SIZE), fv.Ward(), 2),
    fv.Mixture(fv.TopK(), fv.ToMe(**NO_LOG_SIZE), 3),  # every token counts for one
    fv.Mixture(fv.ToMe(), fv.Ward(size_damping=0.3), 2),  # one damping for all blocks
]


def view_of(block, x, members, counts, strength, index):
    """Attention by its formula; the tokens after it, and all that a method may see of them."""
    heads = block.attn.num_heads
    n, width = x.shape[1], x.shape[2] // heads
    q, k, v = block.attn.qkv(block.norm1(x)).reshape(n, 3, heads, width).permute(1, 2, 0, 3)
    logits = q @ k.transpose(1, 2) / math.sqrt(width)
    for token, count in enumerate(counts):
        logits[:, :, 1 + token] += strength * math.log(count)
    attention = logits.softmax(dim=-1)
    x = x + block.attn.proj((attention @ v).transpose(0, 1).reshape(1, n, -1))
    scores = {
        "keys": k[None, :, 1:],
        "cls_attn": attention[:, 0, 1:].mean(0, keepdim=True),
        "attn_received": attention.sum(dim=(0, 1))[None, 1:],
    }
    size = torch.tensor([[float(len(patches)) for patches in members]])
    return BlockView(x, 1, size, index, True, GRID, None, DEPTH, **scores)


def plain_run(model, image, mixture, counts_after):
    """Logits of one image: for every token the patches it stands for, and for how many it counts in attention."""
    x = model.pos_drop(model._pos_embed(model.patch_embed(image)))
    members, counts = [[patch] for patch in range(GRID[0] * GRID[1])], [1.0] * GRID[0] * GRID[1]
    entering = [GRID[0] * GRID[1], *counts_after[:-1]]
    fewer = math.log(len(entering) * GRID[0] * GRID[1] / sum(entering))
    adding = [one.size_damping for one in (mixture.first, mixture.then) if one.proportional_attention]
    strength = 1 - max(adding, default=0) * fewer
    for index, (block, keep) in enumerate(zip(model.blocks, counts_after, strict=True)):
        method = mixture.first if index < mixture.switch else mixture.then
        view = view_of(block, x, members, counts, strength, index)
        x = view.tokens
        if keep < len(members):
            assignment, x = method.reduce(view, keep)
            edges, joined = assignment.edges(1), [[] for _ in range(keep)]
            for token, slot in zip(edges.src[0].tolist(), edges.dst[0].tolist(), strict=True):
                joined[slot].append(token)
            added = [sum(counts[token] for token in tokens) for tokens in joined]
            means = [total / len(tokens) for total, tokens in zip(added, joined, strict=True)]
            counts = added if method.proportional_attention else means
            members = [[patch for token in tokens for patch in members[token]] for tokens in joined]
        x = x + block.mlp(block.norm2(x))
    return model.head(model.norm(x)[:, 0])


@pytest.mark.parametrize("mixture", MIXTURES, ids=method_text)
def test_each_block_has_its_method_and_sizes_pass_from_one_to_the_other(mixture):
    plain, counts = make("timm-cls"), (28, 21, 14, 9)
    reduced = fv.reduce_(make("timm-cls"), mixture, fv.Keep(list(counts)))
    with torch.no_grad():
        for image in images(2).split(1):
            expected = plain_run(plain, image, mixture, counts)
            torch.testing.assert_close(reduced(image), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("switch", [1, 2, 3])
def test_two_equal_halves_are_the_method_itself(switch):
    x, schedule = images(), fv.Keep([28, 21, 14, 9])
    alone = fv.reduce_(make("timm-cls"), fv.Ward(), schedule)
    mixed = fv.reduce_(make("timm-cls"), fv.Mixture(fv.Ward(), fv.Ward(), switch), schedule)
    with torch.no_grad():
        assert torch.equal(alone(x), mixed(x))
    assert fv.cost(alone) == fv.cost(mixed)


def test_its_own_cost_is_that_of_each_method_in_its_blocks():
    counts, mixture = (28, 21, 14, 9), fv.Mixture(fv.ToMe(), fv.Ward(rounds=1), 2)

    def own(method, block):
        """What the method takes in this block, if earlier ones end with the same number of tokens."""
        plan = make_plan(fv.inspect(make("timm-cls")).shape(), method, fv.Keep(list(counts)))
        return method.macs(step_shape(fv.inspect(make("timm-cls")).shape(), plan, block))

    found = fv.cost(fv.reduce_(make("timm-cls"), mixture, fv.Keep(list(counts))))
    expected = [own(mixture.first, 0), own(mixture.first, 1), own(mixture.then, 2), own(mixture.then, 3)]
    assert found.reduction_macs == sum(expected)
    assert min(expected) > 0


def test_a_step_is_as_small_as_the_method_of_its_block_allows():
    mixture = fv.Mixture(fv.ToMe(), fv.TopK(), 2)
    assert fv.reduce_(make("timm-cls"), mixture, fv.Keep({2: 3})).foveate.plan.counts == (36, 36, 3, 3)
    with pytest.raises(fv.PlanError, match="asks ToMe to go from 36 tokens to 3 in block 1; ToMe can reach 18"):
        fv.reduce_(make("timm-cls"), mixture, fv.Keep({1: 3}))
    removed = fv.reduce_(make("timm-cls"), mixture, fv.RemovePerBlock(30)).foveate.plan.counts
    assert removed == (18, 9, 1, 1)
    fused = fv.Mixture(fv.TopK(), fv.EViT(), 2)  # EViT keeps a slot for what it fuses
    assert fv.reduce_(make("timm-cls"), fused, fv.KeepRate(0.5, (1, 2))).foveate.plan.counts == (36, 18, 10, 10)


@pytest.mark.parametrize("fraction", [0.35, 0.5, 0.8])
@pytest.mark.parametrize("mixture", MIXTURES[:4], ids=method_text)
def test_a_budget_is_met_in_blocks_like_those_of_the_first_method(mixture, fraction):
    mixed = dataclasses.replace(mixture, switch=6)
    plans = [make_plan(DEIT_S, method, fv.Budget(fraction)) for method in (mixed, mixed.first)]
    acting = [[block for block in range(12) if plan.acts_in(block)] for plan in plans]
    assert abs(acting[0][0] - acting[1][0]) <= 1  # the two differ in what they cost themselves
    assert acting[0][-1] == acting[1][-1]


@pytest.mark.parametrize(("span", "kinds"), [((0, 1), "first"), ((2, 3), "then"), ((1, 2), "both")])
def test_blocks_that_are_merged_and_unmerged_keep_their_method(span, kinds):
    mixture = fv.Mixture(fv.TopK(), fv.ToMe(), 2)
    method = mixture if kinds == "both" else getattr(mixture, kinds)
    for schedule in (fv.KeepRate(0.5, span), fv.RemovePerBlock(25)):
        found = [fv.reduce_(make("timm-cls"), one, schedule, merge_unmerge=span) for one in (mixture, method)]
        assert found[0].foveate.plan.counts == found[1].foveate.plan.counts
        with torch.no_grad():
            assert torch.equal(found[0](images()), found[1](images()))
    budget = fv.reduce_(make("timm-cls"), mixture, 0.95, merge_unmerge=span)
    assert fv.cost(budget).macs == pytest.approx(0.95 * fv.cost(make("timm-cls")).macs, rel=0.01)


def test_the_limit_of_its_speed_cuts_at_both_sites():
    mixture = fv.Mixture(fv.FreeSlice(Site.PRE_BLOCK), fv.ToMe(), 2)
    model = fv.reduce_(make("timm-cls"), mixture, fv.KeepRate(0.6, (1, 2)))
    limit = free_slice(model)
    assert limit.method == fv.Mixture(fv.FreeSlice(Site.PRE_BLOCK), fv.FreeSlice(Site.POST_ATTN), 2)
    sliced = limit.apply_(make("timm-cls"))
    assert fv.cost(sliced).tokens == fv.cost(model).tokens
    assert fv.cost(sliced).macs == fv.cost(model).macs - fv.cost(model).reduction_macs


PARTS = st.sampled_from(
    [
        *(fv.ToMe(), fv.ToMe(k=3, split="kth"), fv.TopK(), fv.EViT(fuse=False), fv.Ward(rounds=5, rescale=False)),
        *(fv.TokenPooling(iterations=2), fv.RandomSelect(9), fv.FreeSlice(Site.POST_BLOCK)),
    ]
)


@given(PARTS, PARTS, st.integers(1, 40))
@settings(max_examples=60, deadline=None)
def test_every_written_form_reads_back(first, then, switch):
    mixture = fv.Mixture(first, then, switch)
    assert parse(method_text(mixture)) == mixture
    data = describe(mixture)
    assert build(data["name"], data["options"]) == mixture
    reduction = fv.Reduction(mixture, 0.5, exact_last_block=True)
    assert fv.Reduction.parse(reduction.text) == reduction
    assert fv.Reduction.from_dict(reduction.to_dict()) == reduction
    written = {}
    exec(reduction.code().replace("fv.reduce_(model, ", "found = fv.Reduction("), written)
    assert written["found"] == reduction


def test_its_text_names_both_parts_and_files_all_their_options():
    mixture = parse(" mixture : first = ward( rounds = 2 ) , switch = 6 ")
    assert mixture == fv.Mixture(fv.Ward(rounds=2), fv.ToMe(), 6)
    assert method_text(mixture) == "Mixture:first=Ward(rounds=2),then=ToMe,switch=6"
    assert method_text(fv.Mixture()) == "Mixture:first=Ward,then=ToMe,switch=2"
    assert (
        fv.Mixture("ward(rounds=2)", "tome", 6) == parse("mixture(first=ward:rounds=2,then=ToMe(),switch=6)") == mixture
    )
    assert "proportional_attention=true" in describe(mixture)["options"]["then"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("first=warrd", "There is no method 'warrd'. Did you mean Ward"),
        ("first=ward(turns=3)", "Ward has no option 'turns'"),
        ("first=ward(rounds=3", r"Parentheses do not match in 'Mixture:first=ward\(rounds=3'"),
        ("first=mixture(first=ward(rounds=2),then=tome)", "first cannot be Mixture, because a mixture has two methods"),
        ("then=DynamicViT", "then cannot be DynamicViT, because it learns modules of its own. Use a method"),
        ("then=free-slice(site=kv)", "then cannot be FreeSlice, because it reduces keys and values"),
        ("first=DCT", "first cannot be DCT, because its tokens do not stand for patches"),
        ("first=", "There is no method ''"),
        ("switch=0", "switch must be at least 1, got 0. Use one method alone"),
        ("switch=half", "switch must be a whole number; got 'half'"),
        ("second=ToMe", "Mixture has no option 'second'. Its options: first, then, switch"),
    ],
)
def test_what_cannot_be_mixed_is_refused_with_the_reason(text, words):
    with pytest.raises(ValueError, match=words):
        parse(f"Mixture:{text}")


@pytest.mark.parametrize("deep", ["Mixture:first=" * 2000 + "ToMe", "Mixture(first=" * 2000 + "ToMe" + ")" * 2000])
def test_a_text_that_nests_too_deeply_is_refused(deep):
    with pytest.raises(ValueError, match="At most 10 methods with options fit into one text; got 'Mixture"):
        parse(deep)


def test_a_class_instead_of_a_method_is_refused():
    with pytest.raises(ValueError, match=r"Mixture.then must be a method, such as ToMe\(\) or 'tome'; got <class"):
        fv.Mixture(then=fv.ToMe)


def test_a_switch_behind_the_last_block_is_refused_and_the_model_stays():
    model = make("timm-cls")
    with pytest.raises(ValueError, match=r"Mixture.switch=4, but of 4 blocks \(0..3\) none .* from 1 to 3"):
        fv.reduce_(model, fv.Mixture(switch=4), fv.Keep({}))
    assert not fv.is_reduced(model)


@pytest.mark.parametrize("mixture", [fv.Mixture(fv.EViT(), fv.ToMe()), fv.Mixture(fv.ToMe(), fv.EViT())], ids=repr)
def test_a_part_that_needs_a_class_token_is_named(mixture):
    with pytest.raises(ValueError, match="EViT ranks by class-token attention; this model has no class token"):
        fv.reduce_(make("timm-mean"), mixture, 0.5)


def test_images_with_counts_of_their_own_are_refused():
    with pytest.raises(fv.PlanError, match="Mixture cannot tell what removing a token costs"):
        fv.reduce_(make("timm-cls"), fv.Mixture(), fv.Adaptive(0.7))


def test_it_is_saved_and_loaded(tmp_path):
    model = fv.reduce_(make("timm-cls"), MIXTURES[0], fv.KeepRate(0.6, (1, 2)))
    fv.save(model, tmp_path / "saved")
    again = fv.load(tmp_path / "saved", model=copy.deepcopy(make("timm-cls")))
    assert fv.inspect(again).reduction == fv.inspect(model).reduction
    with torch.no_grad():
        assert torch.equal(again(images()), model(images()))
