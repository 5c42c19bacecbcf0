"""PiToMe, held against its description written as loops."""

import math

import pytest
from views import close, cosine, mean_key, merged, random_view, reduced

from foveate.methods import PiToMe


def owners_by_loops(rows, r, margin):
    keys = [mean_key(row) for row in rows]
    n = len(rows)

    def f(x):
        return x - margin if x >= margin else math.exp(x - margin) - 1

    energy = [sum(f(cosine(keys[i], keys[j])) for j in range(n)) / n for i in range(n)]
    order = sorted(range(n), key=lambda i: -energy[i])[: 2 * r]
    owner = list(range(n))
    for source in order[::2]:
        owner[source] = max(order[1::2], key=lambda j: cosine(keys[source], keys[j]))
    return owner


@pytest.mark.parametrize(("n", "r"), [(9, 1), (10, 3), (10, 5), (13, 6)])
@pytest.mark.parametrize("block", [0, 3])
def test_tokens_and_sizes_equal_plain_loops(n, r, block):
    view = random_view(n, seed=n, block=block)
    tokens, sizes = reduced(PiToMe(), view, n - r)
    margin = 0.9 * (1 - block / 4)
    for image in range(2):
        rows, size = view.patches[image].tolist(), view.size[image].tolist()
        means, totals = merged(rows, size, owners_by_loops(rows, r, margin))
        close(tokens[image], means)
        close(sizes[image], totals)


def test_a_token_unlike_all_others_is_protected():
    view = random_view(8, prefix=0)
    alike = view.tokens[:, :1] + 0.01 * view.tokens
    alike[:, 5] = -alike[:, 0]
    kept = PiToMe().combine(view := random_view(8, prefix=0, keys=_keys(alike)), PiToMe().assign(view, 5))
    assert any((row == view.tokens[0, 5]).all() for row in kept[0])


def _keys(tokens):
    return tokens.unflatten(2, (2, 3)).transpose(1, 2)
