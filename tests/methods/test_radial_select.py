"""Radial patterns: the patches nearest to the center, also after an earlier block."""

import math

import pytest
import torch

from foveate.methods import BlockView, RadialSelect

DISTANCE = {"l1": lambda x, y: x + y, "l2": math.hypot, "linf": max}


def nearest_by_loops(grid, norm, keep):
    rows, columns = grid
    far = {
        r * columns + c: DISTANCE[norm](abs(2 * c / (columns - 1) - 1), abs(2 * r / (rows - 1) - 1))
        for r in range(rows)
        for c in range(columns)
    }
    return sorted(sorted(far, key=lambda i: round(far[i], 6))[:keep])


@pytest.mark.parametrize("norm", ["l1", "l2", "linf"])
@pytest.mark.parametrize("grid", [(5, 5), (4, 6)])
def test_two_steps_keep_the_nearest_patches(norm, grid):
    n, method = grid[0] * grid[1], RadialSelect(norm=norm)
    tokens = torch.arange(n).view(1, n, 1).float()
    for keep in (13, 6):
        view = BlockView(tokens, 0, None, 0, False, grid)
        tokens = method.combine(view, method.assign(view, keep))
        assert tokens.flatten().int().tolist() == nearest_by_loops(grid, norm, keep)
