"""Density peaks clustering: equal to plain loops, lawful, and never larger than a tile."""

import subprocess
import sys
import textwrap

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from foveate.core import density_peaks
from foveate.core.density_peaks import (
    cluster_peaks,
    counts_above,
    find_peaks,
    peaks_macs,
    threshold_for,
)
from foveate.core.windows import Windows, cluster_in_windows, find_peaks_in_windows

JOINS = ("denser", "nearest")


def by_loops(x, k, clusters, joins, tiles):
    """Owner of each token and the centers, of one image, straight from the equations."""
    n = len(x)
    squared = (x[:, None] - x[None]).square().sum(-1).tolist()
    log_rho = [-sum(sorted(squared[i][j] for j in range(n) if j != i)[:k]) / k for i in range(n)]
    denser_than = [[j for j in range(n) if (-log_rho[j], j) < (-log_rho[i], i)] for i in range(n)]
    first = [(-log_rho[j], j) if tiles else j for j in range(n)]  # of equally near ones
    lead = [min(d, key=lambda j, i=i: (squared[i][j], first[j])) if d else i for i, d in enumerate(denser_than)]
    delta = [squared[i][lead[i]] ** 0.5 if denser_than[i] else max(squared[i]) ** 0.5 for i in range(n)]
    log_gamma = [log_rho[i] + torch.tensor(delta[i]).log().item() for i in range(n)]
    centers = sorted(sorted(range(n), key=lambda i: (-log_gamma[i], i))[:clusters])
    owner = []
    for i in range(n):
        if joins == "nearest" and i not in centers:
            owner.append(min(range(clusters), key=lambda c, i=i: (squared[i][centers[c]], c)))
            continue
        while i not in centers:
            i = lead[i]
        owner.append(centers.index(i))
    return owner, centers


def tokens(seed, n=23, dim=4, batch=2, exact=False):
    """Random tokens; whole numbers, where distances are exact and many are equal."""
    if exact:
        return torch.randint(-2, 3, (batch, n, dim), generator=torch.Generator().manual_seed(seed)).double()
    return torch.randn(batch, n, dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("tile", [2**20, 100], ids=["whole images", "tiles"])
@pytest.mark.parametrize("joins", JOINS)
@given(seed=st.integers(0, 10**6), k=st.integers(2, 6), clusters=st.integers(1, 23), exact=st.booleans())
@settings(max_examples=20, deadline=None)
def test_it_equals_plain_loops(joins, tile, seed, k, clusters, exact):
    x = tokens(seed, exact=exact)
    old, density_peaks.ROWS = density_peaks.ROWS, 7
    try:
        found = cluster_peaks(x, find_peaks(x, k, tile=tile), clusters, joins)
    finally:
        density_peaks.ROWS = old
    for image in range(2):
        owner, centers = by_loops(x[image], k, clusters, joins, tile < 23**2)
        assert found.owner[image].tolist() == owner
        assert found.member[image].tolist() == centers


@pytest.mark.parametrize("joins", JOINS)
@given(seed=st.integers(0, 10**6), k=st.integers(1, 5), clusters=st.integers(1, 23), equal=st.booleans())
@settings(max_examples=20, deadline=None)
def test_clusters_are_as_many_as_asked_none_is_empty_and_centers_own_themselves(joins, seed, k, clusters, equal):
    x = tokens(seed, exact=equal)
    owner, member = cluster_peaks(x, find_peaks(x, k), clusters, joins)
    for image in range(2):
        assert sorted(set(owner[image].tolist())) == list(range(clusters))
        assert owner[image][member[image]].tolist() == list(range(clusters))


@given(seed=st.integers(0, 10**6))
@settings(max_examples=20, deadline=None)
def test_the_order_of_tokens_changes_labels_alone(seed):
    x = tokens(seed, batch=1)
    order = torch.randperm(23, generator=torch.Generator().manual_seed(seed))
    plain = cluster_peaks(x, find_peaks(x, 3), 6)
    moved = cluster_peaks(x[:, order], find_peaks(x[:, order], 3), 6)
    same = plain.owner[0, order][:, None] == plain.owner[0, order][None]
    assert torch.equal(same, moved.owner[0][:, None] == moved.owner[0][None])
    assert sorted(order[moved.member[0]].tolist()) == plain.member[0].tolist()


def test_a_token_counts_as_less_dense_than_an_equal_one_before_it():
    x = torch.zeros(1, 5, 3)
    peaks = find_peaks(x, 2)
    assert peaks.denser.tolist() == [[0, 0, 0, 0, 0]]
    assert cluster_peaks(x, peaks, 3).member.tolist() == [[0, 1, 2]]


def test_densities_of_wide_tokens_do_not_vanish():
    x = 10 * torch.randn(1, 40, 64, generator=torch.Generator().manual_seed(0))
    decision = find_peaks(x, 5).decision[0]
    others = decision[decision.isfinite()]  # all but the densest
    assert others.exp().max() == 0  # gamma itself is lost in rounding
    assert len(others.unique()) == 39


def test_padding_belongs_to_nobody():
    x = tokens(1)
    padded = torch.cat([x, torch.full((2, 5, 4), 1e3, dtype=x.dtype)], dim=1)
    valid = torch.arange(28).expand(2, 28) < 23
    plain, other = find_peaks(x, 4), find_peaks(padded, 4, valid)
    assert torch.equal(plain.denser, other.denser[:, :23])
    torch.testing.assert_close(plain.decision, other.decision[:, :23])
    assert (other.decision[:, 23:] == -torch.inf).all()


def test_images_with_different_numbers_of_clusters_are_as_they_are_alone():
    x = tokens(3)
    peaks = find_peaks(x, 4)
    together = cluster_peaks(x, peaks, torch.tensor([3, 8]))
    for image, count in enumerate((3, 8)):
        alone = cluster_peaks(x[image : image + 1], find_peaks(x[image : image + 1], 4), count)
        assert torch.equal(together.owner[image], alone.owner[0])
        assert torch.equal(together.member[image, :count], alone.member[0])


@pytest.mark.parametrize("grid", [(8, 8), (7, 10), (5, 13)])
@pytest.mark.parametrize("joins", JOINS)
def test_windows_are_clustered_as_images_of_their_own(grid, joins):
    windows = Windows(grid, 4)
    x = tokens(5, n=grid[0] * grid[1])
    peaks = find_peaks_in_windows(x, 3, windows)
    owner, member = cluster_in_windows(x, peaks, 3.0, windows, joins)
    assert sorted(t for own in windows.tokens for t in own) == list(range(grid[0] * grid[1]))
    assert member.shape[1] == sum(windows.counts(3.0))
    before = 0
    for own, count in zip(windows.tokens, windows.counts(3.0), strict=True):
        part = x[:, own]
        alone = cluster_peaks(part, find_peaks(part, 3), count, joins)
        assert torch.equal(owner[:, own] - before, alone.owner)
        assert torch.equal(member[:, before : before + count], torch.tensor(own)[alone.member])
        before += count


@given(seed=st.integers(0, 10**6), average=st.floats(1, 9))
@settings(max_examples=25, deadline=None)
def test_a_threshold_meets_the_average(seed, average):
    decision = torch.randn(40, 30, generator=torch.Generator().manual_seed(seed))
    decision[:, 0] = torch.inf
    threshold = threshold_for(decision, average, most=10)
    counts = counts_above(decision, threshold, most=10).float()
    assert counts.min() >= 1
    assert counts.max() <= 10
    assert abs(counts.mean() - average) <= 1 / 40 + 1e-6


def test_the_cost_is_that_of_the_products():
    assert peaks_macs(100, 8) == 100 * 100 * 8
    n, rows = 2000, 2**20 // 2000
    half = sum(min(n, s + rows) * (min(n, s + rows) - s) for s in range(0, n, rows))
    assert peaks_macs(n, 8) == (n * n + half) * 8


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda x: find_peaks(x, 23), "1 <= k < 23, got k=23"),
        (lambda x: find_peaks(x, 0), "got k=0"),
        (lambda x: cluster_peaks(x, find_peaks(x, 3), 24), "1 to 23 clusters, got 24"),
        (lambda x: cluster_peaks(x, find_peaks(x, 3), 0), "got 0"),
        (lambda x: threshold_for(x[:, :, 0], 30, 10), "average number of clusters must be between 1 and 10, got 30"),
    ],
)
def test_wrong_numbers_are_refused_in_words(call, words):
    with pytest.raises(ValueError, match=words.replace("(", r"\(")):
        call(tokens(0))


@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak of memory as Linux reports it")
def test_sixteen_thousand_tokens_need_less_than_300_mib():
    script = """
        import resource, torch
        from foveate.core.density_peaks import cluster_peaks, find_peaks
        torch.set_num_threads(1)
        x = torch.randn(1, 2048, 64)
        cluster_peaks(x, find_peaks(x, 5), 128)  # what torch needs once, whatever the size
        x = torch.randn(1, 16384, 64)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        cluster_peaks(x, find_peaks(x, 5), 1024)
        print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=True)
    assert 0 <= float(done.stdout) < 300


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("count", [3, 5, 8])
def test_owners_of_nan_and_infinite_tokens_are_slots(value, count):
    """Chains of such tokens may end at a token that is not a center; an index of -1 would be taken from the end."""
    for seed in range(6):
        draw = torch.Generator().manual_seed(seed)
        x = torch.randn(1, count, 5, generator=draw)
        x[0, torch.randperm(count, generator=draw)[: 1 + seed % 2]] = value
        owner = cluster_peaks(x, find_peaks(x, 1), 1).owner
        assert bool((owner == 0).all())
