"""The cosine transform cut short, held against its definition."""

import math

import pytest
import torch
from views import random_view

from foveate.methods import DCT
from foveate.methods.dct import low_pass


def transform(x):
    """Orthonormal DCT-II of a list."""
    n = len(x)
    scale = [math.sqrt((1 if f == 0 else 2) / n) for f in range(n)]
    return [scale[f] * sum(v * math.cos(math.pi * f * (i + 0.5) / n) for i, v in enumerate(x)) for f in range(n)]


def inverse(c):
    n = len(c)
    scale = [math.sqrt((1 if f == 0 else 2) / n) for f in range(n)]
    return [sum(scale[f] * c[f] * math.cos(math.pi * f * (i + 0.5) / n) for f in range(n)) for i in range(n)]


@pytest.mark.parametrize(("n", "keep"), [(9, 3), (12, 6), (10, 9), (7, 1), (6, 6)])
def test_tokens_equal_a_transform_cut_short_and_transformed_back(n, keep):
    view = random_view(n)
    out = DCT().combine(view, DCT().assign(view, keep))[:, view.prefix :]
    for image in range(2):
        for channel in range(6):
            x = view.patches[image, :, channel].tolist()
            expected = [v * math.sqrt(keep / n) for v in inverse(transform(x)[:keep])]
            torch.testing.assert_close(out[image, :, channel].tolist(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("n", "keep"), [(196, 100), (49, 7)])
def test_a_constant_sequence_stays_as_it_is(n, keep):
    torch.testing.assert_close(low_pass(n, keep).sum(dim=1), torch.ones(keep))
