"""What each head reads: coarse maps reach the finest, and several strides give one prediction."""

import pytest
import torch

from foveate.models.dense.head import Levels, find_head
from foveate.models.dense.layers import FeaturePyramid

LEVELS = Levels((4, 6, 8, 10), (4, 8, 16, 32))


def maps(size=(64, 96), batch=2):
    generator = torch.Generator().manual_seed(0)
    shapes = [(-(-size[0] // stride), -(-size[1] // stride)) for stride in LEVELS.strides]
    return [torch.randn(batch, c, *s, generator=generator) for c, s in zip(LEVELS.channels, shapes, strict=True)]


def test_coarse_maps_reach_the_finest():
    pyramid = FeaturePyramid(LEVELS.channels, 5)
    inputs = maps()
    before = pyramid(inputs)
    changed = pyramid([*inputs[:3], inputs[3] + 1])
    assert all(not torch.allclose(a, b) for a, b in zip(before, changed, strict=True))
    fine = pyramid([inputs[0] + 1, *inputs[1:]])
    assert [torch.equal(a, b) for a, b in zip(before, fine, strict=True)] == [False, True, True, True]


@pytest.mark.parametrize("name", ["semantic-fpn", "upernet"])
@pytest.mark.parametrize("size", [(64, 96), (70, 90)])  # the second is no multiple of any stride
def test_every_map_is_read_at_any_size(name, size):
    torch.manual_seed(0)
    head = find_head(name)(LEVELS, 3, channels=8).eval()
    for parameter in head.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    inputs = maps(size)
    with torch.no_grad():
        before = head(inputs, size)
        assert before.shape == (2, 3, *size)
        assert head(inputs, size, upsample=False).shape[-2:] == inputs[0].shape[-2:]
        for level in range(4):
            changed = [one + 1 if number == level else one for number, one in enumerate(inputs)]
            assert not torch.allclose(head(changed, size), before), f"map {level} is not read"
