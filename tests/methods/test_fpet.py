"""FPET: a checkerboard of sources and targets."""

import torch
from views import close, cosine, mean_key, merged, random_view, reduced

from foveate.methods import FPET


def test_tokens_and_sizes_equal_plain_loops_on_a_checkerboard():
    view = random_view(12, grid=(3, 4))
    tokens, sizes = reduced(FPET(), view, 8)
    odd = [i for i in range(12) if (i // 4 + i % 4) % 2]
    even = [i for i in range(12) if i not in odd]
    for image in range(2):
        rows, size = view.patches[image].tolist(), view.size[image].tolist()
        keys = [mean_key(row) for row in rows]
        best = {i: max(even, key=lambda j: cosine(keys[i], keys[j])) for i in odd}
        owner = list(range(12))
        for i in sorted(odd, key=lambda i: -cosine(keys[i], keys[best[i]]))[:4]:
            owner[i] = best[i]
        means, totals = merged(rows, size, owner)
        close(tokens[image], means)
        close(sizes[image], totals)


def test_after_an_earlier_reduction_the_halves_alternate():
    view = random_view(9, grid=(3, 4))
    gone = set(range(9)) - set(FPET().assign(view, 5).src[0].tolist())
    assert gone <= {1, 3, 5, 7}
    assert len(gone) == 4
    assert torch.equal(FPET().combine(view, FPET().assign(view, 5))[:, :1], view.tokens[:, :1])
