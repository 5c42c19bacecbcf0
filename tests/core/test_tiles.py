"""Strips of a large table give what the whole table gives, and nothing holds a table of all pairs of many tokens."""

import pytest
import torch

from foveate.core import first_by_score, kmeans, kmedoids, merge_most_similar, tiles, ward_greedy, ward_rounds
from largest_tensor import LargestTensor

WORK = {
    "ToMe": lambda x: merge_most_similar(x, x.shape[1] * 3 // 5),
    "Ward": lambda x: ward_rounds(x, 60),
    "K-Medoids": lambda x: kmedoids(x, first_by_score(x[..., 0], 60)),
    "K-Means": lambda x: kmeans(x, first_by_score(x[..., 0], 60)),
}


def flat(result):
    found = [getattr(result, name) for name in ("src", "dst", "owner", "member") if hasattr(result, name)]
    joining = getattr(result, "joining", None)
    return [t for t in (*found, *(joining or ())) if t is not None]


@pytest.mark.parametrize("name", WORK)
def test_strips_choose_what_one_table_chooses(name, monkeypatch):
    x = torch.randn(2, 101, 8, generator=torch.Generator().manual_seed(4))
    whole = flat(WORK[name](x))
    monkeypatch.setattr(tiles, "MOST_PAIRS", 7 * 50)
    strips = flat(WORK[name](x))
    assert len(whole) > 1
    assert all(torch.equal(a, b) for a, b in zip(whole, strips, strict=True))


@pytest.mark.parametrize("name", WORK)
def test_no_table_of_all_pairs_is_held(name, monkeypatch):
    monkeypatch.setattr(tiles, "MOST_PAIRS", 32 * 32)
    x = torch.randn(1, 256, 4, generator=torch.Generator().manual_seed(4))
    with LargestTensor() as seen:
        WORK[name](x)
    assert seen.elements <= max(32 * 32, 4 * 256 * 4)  # a strip, or the tokens themselves


def test_greedy_agglomeration_refuses_what_it_cannot_hold():
    with pytest.raises(ValueError, match=r"4096 are the most\. Use rounds"):
        ward_greedy(torch.randn(1, 4097, 2), 4000)
