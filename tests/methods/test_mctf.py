"""MCTF, held against its two passes written as loops."""

import pytest
from views import close, cosine, merged, random_view, reduced

from foveate.methods import MCTF


def owners_by_loops(rows, info, size, r, phase):
    evens, odds = list(range(phase, len(rows), 2)), list(range(1 - phase, len(rows), 2))

    def score(i, j):
        alike = (cosine(rows[i], rows[j]) + 1) / 2
        return alike * (info[i] * info[j]) ** (-1 / 20) * (size[i] * size[j]) ** (-1 / 40)

    owner = list(range(len(rows)))
    best = {i: max(odds, key=lambda j: score(i, j)) for i in evens}
    first = sorted(evens, key=lambda i: -score(i, best[i]))[: r // 2]
    for i in first:
        owner[i] = best[i]
    left = [i for i in evens if i not in first]
    back = {j: max(left, key=lambda i: score(i, j)) for j in odds}
    for j in sorted(odds, key=lambda j: -score(back[j], j))[: r - r // 2]:
        owner[j] = back[j]
    return [owner[o] for o in owner]


@pytest.mark.parametrize("prefix", [0, 1])
@pytest.mark.parametrize(("n", "r"), [(9, 1), (10, 4), (10, 5), (13, 6)])
def test_tokens_and_sizes_equal_plain_loops(n, r, prefix):
    view = random_view(n, prefix, seed=n)
    tokens, sizes = reduced(MCTF(), view, n - r)
    for image in range(2):
        rows, size = view.patches[image].tolist(), view.size[image].tolist()
        info = view.attn_received[image].tolist()
        weights = [a * s for a, s in zip(info, size, strict=True)]
        means, totals = merged(rows, size, owners_by_loops(rows, info, size, r, prefix % 2), weights)
        close(tokens[image], means)
        close(sizes[image], totals)


def test_a_temperature_of_zero_is_refused():
    with pytest.raises(ValueError, match="tau_size must be above 0"):
        MCTF(tau_size=0)
