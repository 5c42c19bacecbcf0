"""ToMe on patch tokens alone, held against the original algorithm on the whole sequence, class token included."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from foveate.core import pool_size
from foveate.methods import BlockView, StepShape, ToMe

HEADS, HEAD_DIM, BATCH = 2, 3, 3


@dataclass
class Sequence:
    """One image's whole sequence in plain Python."""

    rows: list[list[float]]
    sizes: list[float]


def cosine(a: list[float], b: list[float]) -> float:
    dot = sum(x * y for x, y in zip(a, b, strict=True))
    return dot / math.sqrt(sum(x * x for x in a)) / math.sqrt(sum(y * y for y in b))


def mean_key(row: list[float]) -> list[float]:
    """The metric: keys averaged over heads. In these tests a token's keys are the token itself, cut into heads."""
    return [sum(row[h * HEAD_DIM + d] for h in range(HEADS)) / HEADS for d in range(HEAD_DIM)]


def original_tome(sequence: Sequence, r: int, prefix: int) -> Sequence:
    """Bolya et al.: alternate split of the whole sequence, best partner by cosine, the r best pairs merge.

    The class token (prefix 1) is the first source and never merges; a distillation token (prefix 2) is the first
    destination, never merged into, and stays in second place.
    """
    rows, sizes = sequence.rows, sequence.sizes
    sources = list(range(0, len(rows), 2))
    destinations = list(range(1, len(rows), 2))
    partner, similarity = {}, {}
    for i in sources:
        for j in destinations:
            value = cosine(mean_key(rows[i]), mean_key(rows[j]))
            value = -math.inf if i < prefix or j < prefix else value
            if i not in partner or value > similarity[i]:
                partner[i], similarity[i] = j, value
    merged = sorted(sources, key=lambda i: similarity[i], reverse=True)[:r]
    members = {i: [i] for i in range(len(rows)) if i not in merged}
    for i in merged:
        members[partner[i]].append(i)
    order = [i for i in sources if i not in merged] + destinations
    if prefix == 2:
        order = [0, 1, *(i for i in order if i > 1)]
    out = Sequence([], [])
    for i in order:
        total = sum(sizes[m] for m in members[i])
        out.rows.append([sum(sizes[m] * rows[m][c] for m in members[i]) / total for c in range(len(rows[i]))])
        out.sizes.append(total)
    return out


def view_of(tokens: Tensor, prefix: int, size: Tensor | None, block: int) -> BlockView:
    patches = tokens[:, prefix:]
    keys = patches.unflatten(2, (HEADS, HEAD_DIM)).transpose(1, 2)
    return BlockView(tokens, prefix, size, block, has_cls=prefix > 0, keys=keys)


def random_tokens(length: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(BATCH, length, HEADS * HEAD_DIM, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("prefix", [0, 1, 2])
@pytest.mark.parametrize(("n", "removals"), [(16, (5, 4)), (17, (8, 4)), (12, (1, 5)), (13, (3, 0)), (4, (2, 1))])
def test_two_steps_give_the_tokens_sizes_and_order_of_the_original(n, removals, prefix):
    tokens, size = random_tokens(prefix + n, seed=n), None
    expected = [Sequence(image, [1.0] * (prefix + n)) for image in tokens.tolist()]
    method = ToMe()
    for block, r in enumerate(removals):
        view = view_of(tokens, prefix, size, block)
        patches = view.patches.shape[1]
        assignment = method.assign(view, patches - r)
        tokens = method.combine(view, assignment)
        size = pool_size(torch.ones(BATCH, patches) if size is None else size, assignment)
        expected = [original_tome(sequence, r, prefix) for sequence in expected]
        reference = torch.tensor([sequence.rows for sequence in expected], dtype=torch.float64)
        assert tokens.shape == reference.shape
        assert torch.allclose(tokens, reference, atol=1e-5)
        assert size.tolist() == [sequence.sizes[prefix:] for sequence in expected]


@pytest.mark.parametrize("prefix", [1, 2, 5])
def test_prefix_tokens_are_never_merged_even_if_they_equal_every_patch(prefix):
    tokens = torch.ones(1, prefix + 8, HEADS * HEAD_DIM)
    tokens[:, :prefix] *= torch.arange(2, prefix + 2)[:, None]  # same direction, other lengths: they can be told apart
    view = view_of(tokens, prefix, None, 0)
    out = ToMe().combine(view, ToMe().assign(view, 4))
    assert torch.equal(out[:, :prefix], tokens[:, :prefix])
    assert torch.allclose(out[:, prefix:], torch.ones(1, 4, HEADS * HEAD_DIM))


@pytest.mark.parametrize("prefix", [0, 1])
@pytest.mark.parametrize("n", [2, 7, 12])
def test_the_smallest_count_it_names_is_the_smallest_it_reaches(n, prefix):
    view = view_of(random_tokens(prefix + n, seed=n), prefix, None, 0)
    least = ToMe().fewest(n)
    assert ToMe().assign(view, least).num_out == least
    with pytest.raises(ValueError, match="at most half"):
        ToMe().assign(view, least - 1)


@pytest.mark.parametrize("prefix", [0, 1, 2])
@pytest.mark.parametrize("n", [6, 7])
def test_its_macs_are_one_product_of_every_source_with_every_destination(n, prefix):
    positions = range(prefix, prefix + n)
    pairs = sum(1 for i in positions for j in positions if i % 2 == 0 and j % 2 == 1)
    step = StepShape(n, n - 1, prefix, HEADS * HEAD_DIM, HEADS, HEAD_DIM, has_cls=prefix > 0)
    assert ToMe().macs(step) == pairs * HEAD_DIM


def test_later_attention_weighs_by_size_unless_told_otherwise():
    assert ToMe().proportional_attention
    assert not ToMe(proportional_attention=False).proportional_attention


@pytest.mark.parametrize(("n", "k", "keep"), [(10, 4, 5), (10, 4, 2), (9, 3, 3), (3, 4, 1), (12, 2, 6)])
def test_every_kth_token_is_a_target(n, k, keep):
    view = view_of(random_tokens(n, seed=n), 0, None, 0)
    targets = [i for i in range(n) if i % k == k - 1] or [n - 1]
    _check_merges(view, ToMe(split="kth", k=k), keep, [i for i in range(n) if i not in targets], targets)


@pytest.mark.parametrize("keep", [1, 4, 8])
def test_a_random_draw_of_sources_merges_completely(keep):
    view = view_of(random_tokens(9, seed=keep), 0, None, 2)
    kept = ToMe(split="random").assign(view, keep).src
    assert (kept == kept[:1]).all(), "one draw for all images"
    targets = kept[0].tolist()
    _check_merges(view, ToMe(split="random"), keep, [i for i in range(9) if i not in targets], targets)
    if keep == 4:
        assert ToMe(split="random", seed=1).assign(view, 4).src[0].tolist() != targets


def _check_merges(view: BlockView, method: ToMe, keep: int, sources: list[int], targets: list[int]) -> None:
    """The most similar sources merge into their best targets, and the others stay in order."""
    n = view.patches.shape[1]
    assert method.fewest(n) <= keep
    assignment = method.assign(view, keep)
    for image, rows in enumerate(view.patches.tolist()):
        keys = [mean_key(row) for row in rows]
        best = {i: max(targets, key=lambda j: cosine(keys[i], keys[j])) for i in sources}
        merged = sorted(sources, key=lambda i: cosine(keys[i], keys[best[i]]), reverse=True)[: n - keep]
        staying = [i for i in range(n) if i not in merged]
        assert assignment.src[image].tolist() == staying
        joined = dict(zip(assignment.joining.src[image].tolist(), assignment.joining.dst[image].tolist(), strict=True))
        assert joined == {i: staying.index(best[i]) for i in merged}


def test_every_first_token_cannot_be_a_target():
    with pytest.raises(ValueError, match="k must be at least 2"):
        ToMe(split="kth", k=1)
