"""Agglomerative token clustering, held against agglomeration written as loops."""

import pytest
from views import close, cosine, mean_key, merged, random_view, reduced

from foveate.methods import ATC

DISTANCE = {"average": lambda found: sum(found) / len(found), "complete": max, "single": min}


def owners_by_loops(rows, keep, linkage):
    keys = [mean_key(row) for row in rows]
    clusters = [[i] for i in range(len(rows))]
    while len(clusters) > keep:
        pairs = [(a, b) for a in range(len(clusters)) for b in range(a + 1, len(clusters))]

        def distance(pair):
            members = ((i, j) for i in clusters[pair[0]] for j in clusters[pair[1]])
            return DISTANCE[linkage]([1 - cosine(keys[i], keys[j]) for i, j in members])

        a, b = min(pairs, key=distance)
        clusters[a] = sorted(clusters[a] + clusters.pop(b))
    owner = list(range(len(rows)))
    for cluster in clusters:
        for member in cluster:
            owner[member] = cluster[0]
    return owner


@pytest.mark.parametrize("linkage", ["average", "complete", "single"])
@pytest.mark.parametrize("keep", [1, 4, 8])
def test_clusters_equal_plain_loops(linkage, keep):
    view = random_view(9, seed=keep)
    tokens, sizes = reduced(ATC(linkage=linkage), view, keep)
    for image in range(2):
        rows, size = view.patches[image].tolist(), view.size[image].tolist()
        means, totals = merged(rows, size, owners_by_loops(rows, keep, linkage))
        close(tokens[image], means)
        close(sizes[image], totals)
