"""DPC-kNN on the token stream, held against its equations written as loops."""

import math

import pytest
from views import close, merged, random_view, reduced

from foveate.methods import DPCKNN


def owners_by_loops(rows, keep, k):
    n, channels = len(rows), len(rows[0])
    d = [[math.dist(a, b) / math.sqrt(channels) for b in rows] for a in rows]
    rho = [math.exp(-sum(sorted(d[i][j] ** 2 for j in range(n) if j != i)[:k]) / k) for i in range(n)]
    delta = [min((d[i][j] for j in range(n) if rho[j] > rho[i]), default=math.inf) for i in range(n)]
    centers = sorted(range(n), key=lambda i: -rho[i] * delta[i])[:keep]
    return [i if i in centers else min(centers, key=lambda j: d[i][j]) for i in range(n)]


@pytest.mark.parametrize(("n", "keep", "k"), [(12, 5, 3), (12, 1, 3), (4, 2, 5)])
def test_clusters_equal_plain_loops(n, keep, k):
    view = random_view(n)
    tokens, sizes = reduced(DPCKNN(k=k), view, keep)
    for image in range(2):
        rows, size = view.patches[image].tolist(), view.size[image].tolist()
        means, totals = merged(rows, size, owners_by_loops(rows, keep, min(k, n - 1)))
        close(tokens[image], means)
        close(sizes[image], totals)


def test_no_neighbor_is_refused():
    with pytest.raises(ValueError, match="k must be at least 1"):
        DPCKNN(k=0)
