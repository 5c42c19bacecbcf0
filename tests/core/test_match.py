"""Bipartite soft matching, held against its description written as loops."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from foveate.core import merge_most_similar, pool, pool_size


def owners(metric: Tensor, merges: int, phase: int = 0) -> Tensor:
    """(B, N) slot of each token, read from the edges."""
    a = merge_most_similar(metric, metric.shape[1] - merges, phase=phase)
    src, dst, *_ = a.edges(metric.shape[0])
    return torch.full_like(dst, -1).scatter(1, src, dst)


def cosine(a: list[float], b: list[float]) -> float:
    dot = sum(x * y for x, y in zip(a, b, strict=True))
    return dot / math.sqrt(sum(x * x for x in a)) / math.sqrt(sum(y * y for y in b))


def owner_by_loops(metric: list[list[float]], merges: int, phase: int) -> list[int]:
    """The docstring of ``merge_most_similar``, one sentence at a time, for one image."""
    n = len(metric)
    sources = list(range(phase, n, 2))
    destinations = [i for i in range(n) if i not in sources]
    proposal, value = {}, {}
    for i in sources:
        for j in destinations:
            similarity = cosine(metric[i], metric[j])
            if i not in value or similarity > value[i]:
                proposal[i], value[i] = j, similarity
    merging = sorted(sources, key=lambda i: value[i], reverse=True)[:merges] if merges else []
    slots = [i for i in sources if i not in merging] + destinations
    return [slots.index(proposal[i] if i in merging else i) for i in range(n)]


@st.composite
def matchings(draw: st.DrawFn, fewest: int = 2) -> tuple[Tensor, int, int]:
    """(metric, merges, phase)."""
    batch, n = draw(st.integers(1, 3)), draw(st.integers(fewest, 13))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 9999)))
    metric = torch.randn(batch, n, 5, generator=generator, dtype=torch.float64)
    return metric, draw(st.integers(0, n // 2)), draw(st.integers(0, 1))


@given(matchings())
def test_owners_equal_plain_loops(case):
    metric, merges, phase = case
    expected = [owner_by_loops(image, merges, phase) for image in metric.tolist()]
    assert owners(metric, merges, phase).tolist() == expected


@pytest.mark.parametrize("phase", [0, 1])
@pytest.mark.parametrize("n", [2, 3, 8, 9])
def test_half_of_the_tokens_can_merge_at_once(n, phase):
    metric = torch.randn(2, n, 5, generator=torch.Generator().manual_seed(n), dtype=torch.float64)
    owner = owners(metric, n // 2, phase)
    assert owner.tolist() == [owner_by_loops(image, n // 2, phase) for image in metric.tolist()]
    assert [sorted(set(row)) for row in owner.tolist()] == [list(range(n - n // 2))] * 2


@pytest.mark.parametrize("phase", [0, 1])
@pytest.mark.parametrize(("n", "merges"), [(8, 5), (9, 5), (8, -1), (2, 2)])
def test_merging_more_than_half_is_refused(n, merges, phase):
    with pytest.raises(ValueError, match=f"{n // 2} of {n}, got {merges}"):
        owners(torch.randn(1, n, 4), merges, phase)


@given(matchings())
def test_merging_nothing_is_a_permutation_that_loses_nothing(case):
    metric, _, phase = case
    n = metric.shape[1]
    a = merge_most_similar(metric, n, phase=phase)
    assert [sorted(row) for row in a.src.tolist()] == [list(range(n))] * metric.shape[0]
    pooled = pool(metric, a)
    sources_first = [*range(phase, n, 2), *range(1 - phase, n, 2)]
    assert torch.equal(pooled, metric[:, sources_first])


@pytest.mark.parametrize("phase", [0, 1])
def test_a_single_token_stays_as_it_is(phase):
    assert owners(torch.randn(2, 1, 4), 0, phase).tolist() == [[0], [0]]


@given(matchings(), st.booleans())
def test_a_merged_token_is_the_mean_of_its_members_weighted_by_size(case, sized):
    metric, merges, phase = case
    batch, n, _ = metric.shape
    keep = n - merges
    x = torch.randn(batch, n, 3, generator=torch.Generator().manual_seed(n), dtype=torch.float64)
    size = torch.randint(1, 6, (batch, n), generator=torch.Generator().manual_seed(n)).float()
    a = merge_most_similar(metric, keep, size if sized else None, phase)
    y = pool(x, a)
    for image in range(batch):
        owner = owner_by_loops(metric[image].tolist(), merges, phase)
        for slot in range(keep):
            members = [i for i in range(n) if owner[i] == slot]
            weights = [float(size[image, i]) if sized else 1.0 for i in members]
            mean = sum(w * x[image, i] for w, i in zip(weights, members, strict=True)) / sum(weights)
            assert torch.allclose(y[image, slot], mean, atol=1e-5)
    assert torch.equal(pool_size(size, a).sum(dim=1), size.sum(dim=1))


@given(matchings(), st.sampled_from([0.25, 8.0, 1024.0]))
def test_the_length_of_a_token_does_not_matter(case, factor):
    metric, merges, phase = case
    longer = metric.clone()
    longer[:, 0] *= factor
    assert torch.equal(owners(longer, merges, phase), owners(metric, merges, phase))


def test_the_length_of_half_precision_tokens_does_not_matter():
    metric = torch.randn(1, 16, 32, generator=torch.Generator().manual_seed(0)).half()
    assert torch.equal(owners(metric * 256, 5), owners(metric, 5))


@pytest.mark.parametrize("phase", [0, 1])
@pytest.mark.parametrize("n", [6, 7])
def test_what_is_not_a_number_stays_visible_and_breaks_no_index(n, phase):
    x = torch.full((2, n, 4), torch.nan)
    a = merge_most_similar(x, n - 3, phase=phase)
    src, dst, *_ = a.edges(2)
    assert ((src >= 0) & (src < n) & (dst >= 0) & (dst < n - 3)).all()
    assert pool(x, a).isnan().all()
    broken = torch.randn(2, n, 4, generator=torch.Generator().manual_seed(0))
    broken[1, 2] = torch.nan
    y = pool(broken, merge_most_similar(broken, n - 3, phase=phase))
    assert not y[0].isnan().any()
    assert y[1].isnan().any()


def test_a_token_of_zeros_is_similar_to_none():
    a, b = torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0])
    zero = torch.zeros(2)
    metric = torch.stack([a, a, zero, zero, b, b]).unsqueeze(0)  # sources a, zero, b; destinations a, zero, b
    owner = owners(metric, 2)
    assert owner.tolist() == [[1, 1, 0, 2, 3, 3]]  # the equal pairs merge; the source of zeros stays, in slot 0


def test_an_image_is_matched_alike_alone_and_in_a_batch():
    metric = torch.randn(4, 15, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    together = owners(metric, 6, phase=1)
    for image in range(4):
        assert torch.equal(owners(metric[image : image + 1], 6, phase=1)[0], together[image])
