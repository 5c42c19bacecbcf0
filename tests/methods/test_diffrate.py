"""DiffRate: pruned, merged and kept tokens, held against loops."""

import pytest
from views import close, cosine, random_view, reduced, weighted_mean

from foveate.methods import DiffRate


@pytest.mark.parametrize("prefix", [0, 1])
@pytest.mark.parametrize(("pruned", "drops"), [(0.0, 0), (0.4, 2), (1.0, 5)])
def test_tokens_and_sizes_equal_plain_loops(prefix, pruned, drops):
    view = random_view(11, prefix)
    tokens, sizes = reduced(DiffRate(pruned=pruned), view, 6)
    for image in range(2):
        rows, size = view.patches[image].tolist(), view.size[image].tolist()
        score = (view.cls_attn if prefix else view.attn_received)[image].tolist()
        order = sorted(range(11), key=lambda i: -score[i])
        kept, merging = sorted(order[:6]), order[6 : 11 - drops]
        host = {i: max(kept, key=lambda j: cosine(rows[i], rows[j])) for i in merging}
        for slot, token in enumerate(kept):
            joined = [i for i in merging if host[i] == token]
            close(tokens[image][slot], weighted_mean([rows[i] for i in [token, *joined]], [1.0] * (1 + len(joined))))
            similar = [max(0.0, cosine(rows[i], rows[token])) * size[i] for i in joined]
            close(sizes[image][slot], size[token] + sum(similar))


def test_a_share_above_1_is_refused():
    with pytest.raises(ValueError, match=r"pruned must be a share in \[0, 1\]"):
        DiffRate(pruned=2)
