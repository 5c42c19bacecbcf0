"""Tokens that share a large offset: float32 chooses as float64 does, which has digits to spare."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations

import pytest
import torch
from torch import Tensor

from foveate.core import Clusters, kmeans, kmedoids, ward_greedy, ward_rounds
from foveate.core.cluster import squared_distances
from foveate.core.density_peaks import cluster_peaks, find_peaks
from foveate.core.precision import centered
from foveate.core.windows import Windows, cluster_in_windows, find_peaks_in_windows

FIRST = torch.arange(0, 64, 4).expand(4, 16)
WEIGHT = torch.rand(4, 64, generator=torch.Generator().manual_seed(1)) + 0.1
WINDOWS = Windows((8, 8), 5)

CLUSTERINGS: dict[str, Callable[[Tensor, Tensor, Tensor], Clusters]] = {
    "greedy Ward": lambda x, w, first: ward_greedy(x, 20, w),
    "Ward in rounds": lambda x, w, first: ward_rounds(x, 20, w),
    "K-Means": lambda x, w, first: kmeans(x, first, w, 4),
    "K-Medoids, once": lambda x, w, first: kmedoids(x, first, w, 1),
    "K-Medoids, four times": lambda x, w, first: kmedoids(x, first, w, 4),
    "density peaks": lambda x, w, first: cluster_peaks(x, find_peaks(x, 5), 16),
    "density peaks in tiles": lambda x, w, first: cluster_peaks(x, find_peaks(x, 5, tile=64 * 8), 16),
    "density peaks, nearest center": lambda x, w, first: cluster_peaks(x, find_peaks(x, 5), 16, "nearest"),
    "windows": lambda x, w, first: cluster_in_windows(x, find_peaks_in_windows(x, 3, WINDOWS), 4, WINDOWS, "nearest"),
}
every_clustering = pytest.mark.parametrize("cluster", CLUSTERINGS.values(), ids=CLUSTERINGS)


def tokens(offset: float, n: int = 64) -> Tensor:
    """(4, N, 48) of spread 1 around a point at ``offset`` times their spread; another point in every image."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(4, n, 48, generator=generator) + offset * torch.randn(4, 1, 48, generator=generator)


@every_clustering
@pytest.mark.parametrize("offset", [30, 300, 1000])
def test_an_offset_does_not_change_the_choice(
    cluster: Callable[[Tensor, Tensor, Tensor], Clusters], offset: float
) -> None:
    x = tokens(offset)
    found, exact = cluster(x, WEIGHT, FIRST), cluster(x.double(), WEIGHT.double(), FIRST)
    assert torch.equal(found.owner, exact.owner)
    assert torch.equal(found.member, exact.member)


@every_clustering
def test_an_offset_leaves_images_independent(cluster: Callable[[Tensor, Tensor, Tensor], Clusters]) -> None:
    x = tokens(1000)
    together = cluster(x, WEIGHT, FIRST)
    for i in range(len(x)):
        alone = cluster(x[i : i + 1], WEIGHT[i : i + 1], FIRST[i : i + 1])
        assert torch.equal(together.owner[i], alone.owner[0])


@pytest.mark.parametrize("offset", [30, 1000])
def test_distances_keep_their_digits(offset: float) -> None:
    x = tokens(offset)
    wide = x.double()
    exact = (wide.unsqueeze(1) - wide.unsqueeze(2)).square().sum(dim=-1)
    torch.testing.assert_close(squared_distances(x).double(), exact, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("places", list(combinations(range(9), 3)), ids=str)
def test_three_outliers_do_not_become_the_center(places: tuple[int, ...]) -> None:
    x = tokens(0, n=9)
    x[:, places] += 1e6
    ordinary = next(place for place in range(9) if place not in places)
    assert centered(x)[:, ordinary].abs().max() < 10


def test_padding_is_not_looked_at() -> None:
    x, valid = tokens(1000, n=24), torch.arange(24).expand(4, 24) % 3 > 0
    padded = torch.where(valid.unsqueeze(2), x, 1e20)
    kept = centered(padded, valid)[valid].view(4, 16, 48)
    assert torch.equal(kept, centered(x[valid].view(4, 16, 48)))


def test_a_whole_image_of_padding_is_no_error() -> None:
    assert centered(tokens(1), torch.zeros(4, 64, dtype=torch.bool)).isfinite().all()
