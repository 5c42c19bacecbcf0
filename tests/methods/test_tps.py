"""TPS: pruned tokens squeezed into their most similar kept token, held against loops."""

import math

import pytest
from views import close, cosine, random_view, reduced, weighted_mean

from foveate.methods import TPS


@pytest.mark.parametrize("prefix", [0, 1])
@pytest.mark.parametrize("keep", [1, 4, 8])
def test_tokens_and_sizes_equal_plain_loops(prefix, keep):
    view = random_view(9, prefix)
    tokens, sizes = reduced(TPS(), view, keep)
    for image in range(2):
        rows, size = view.patches[image].tolist(), view.size[image].tolist()
        score = (view.cls_attn if prefix else view.attn_received)[image].tolist()
        order = sorted(range(9), key=lambda i: -score[i])
        kept = sorted(order[:keep])
        host = {i: max(kept, key=lambda j: cosine(rows[i], rows[j])) for i in order[keep:]}
        for slot, token in enumerate(kept):
            joined = [i for i in host if host[i] == token]
            weights = [math.e, *(math.exp(cosine(rows[i], rows[token])) for i in joined)]
            close(tokens[image][slot], weighted_mean([rows[i] for i in [token, *joined]], weights))
            close(sizes[image][slot], size[token] + sum(size[i] for i in joined))
