"""ToFu: ToMe's pairs, dropped in early blocks and merged at the largest norm in later ones."""

import pytest
import torch
from views import random_view

from foveate.methods import ToFu, ToMe


def test_early_blocks_keep_the_targets_unchanged():
    view = random_view(9, block=1)
    assignment = ToFu().assign(view, 6)
    out = ToFu().combine(view, assignment)[:, view.prefix :]
    matched = ToMe().assign(view, 6)
    assert torch.equal(out, view.patches.gather(1, matched.src.unsqueeze(2).expand(-1, -1, 6)))
    assert torch.equal(assignment.sizes, matched.sizes)


def test_later_blocks_merge_at_the_largest_norm_of_the_members():
    view = random_view(9, block=2)
    out = ToFu().combine(view, ToFu().assign(view, 6))[:, view.prefix :]
    matched = ToMe().assign(view, 6)
    means = ToMe().combine(view, matched)[:, view.prefix :]
    edges = matched.edges(2)
    for image in range(2):
        for slot in range(6):
            members = [
                view.patches[image, i] for i, j in zip(edges.src[image], edges.dst[image], strict=True) if j == slot
            ]
            mean = means[image, slot]
            expected = mean / mean.norm() * max(member.norm() for member in members)
            torch.testing.assert_close(out[image, slot], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("share", [-0.1, 1.5])
def test_a_share_outside_0_to_1_is_refused(share):
    with pytest.raises(ValueError, match=r"prune_until must be a share of the blocks in \[0, 1\]"):
        ToFu(prune_until=share)
