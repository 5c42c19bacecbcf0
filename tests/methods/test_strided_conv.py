"""Strided convolution, held against torch's own Conv2d and avg_pool2d on the grid of tokens."""

from __future__ import annotations

import math

import pytest
import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d

import foveate as fv
from foveate import StridedConv
from foveate.core import pool
from foveate.methods import BlockView, StepShape
from foveate.methods.strided_conv import current_grid, halved, placements
from zoo import GRID, images, make

BATCH, PREFIX, CHANNELS = 2, 3, 5
GRIDS = [(2, 2), (4, 4), (5, 5), (4, 6), (7, 4), (3, 2), (2, 9)]


def build(n: int, keep: int, random: bool) -> nn.Module:
    module = StridedConv().build(StepShape(n, keep, PREFIX, CHANNELS, 1, CHANNELS, True), block=1).double()
    if random:
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(n)))
    return module


def view_of(grid: tuple[int, int], rows: int, columns: int, random: bool) -> BlockView:
    """Tokens of ``rows`` x ``columns``, which an image of ``grid`` has become."""
    generator = torch.Generator().manual_seed(rows * columns)
    tokens = torch.randn(BATCH, PREFIX + rows * columns, CHANNELS, generator=generator, dtype=torch.float64)
    module = build(rows * columns, (rows // 2) * (columns // 2), random)
    return BlockView(tokens, PREFIX, None, 1, True, grid, module)


def as_image(tokens: Tensor, rows: int, columns: int) -> Tensor:
    return tokens.transpose(1, 2).unflatten(2, (rows, columns))


def as_tokens(image: Tensor) -> Tensor:
    return image.flatten(2).transpose(1, 2)


def conv_of(linear: nn.Linear) -> nn.Conv2d:
    """The 2 x 2 convolution of stride 2 whose windows are read row by row."""
    dim = linear.out_features
    conv = nn.Conv2d(dim, dim, kernel_size=2, stride=2).to(linear.weight)
    with torch.no_grad():
        for dy in range(2):
            for dx in range(2):
                place = 2 * dy + dx
                conv.weight[:, :, dy, dx] = linear.weight[:, place * dim : (place + 1) * dim]
        conv.bias.copy_(linear.bias)
    return conv


def run(view: BlockView) -> Tensor:
    rows, columns = current_grid(view.grid, view.patches.shape[1])
    return StridedConv().combine(view, StridedConv().assign(view, (rows // 2) * (columns // 2)))


@pytest.mark.parametrize(("rows", "columns"), GRIDS)
def test_it_starts_as_the_average_of_each_window(rows, columns):
    view = view_of((rows, columns), rows, columns, random=False)
    out = run(view)
    expected = as_tokens(avg_pool2d(as_image(view.patches, rows, columns), 2))
    assert torch.allclose(out[:, PREFIX:], expected)
    assert torch.equal(out[:, :PREFIX], view.tokens[:, :PREFIX])
    assignment = StridedConv().assign(view, expected.shape[1])
    assert torch.allclose(pool(view.tokens, assignment, prefix=PREFIX), out), "its edges are those of the average"


@pytest.mark.parametrize(("rows", "columns"), GRIDS)
def test_it_is_a_convolution_of_stride_two(rows, columns):
    view = view_of((rows, columns), rows, columns, random=True)
    with torch.no_grad():
        expected = as_tokens(conv_of(view.module)(as_image(view.patches, rows, columns)))
        out = run(view)
    assert torch.allclose(out[:, PREFIX:], expected)
    assert torch.equal(out[:, :PREFIX], view.tokens[:, :PREFIX])


@pytest.mark.parametrize(("grid", "now"), [((14, 14), (7, 7)), ((14, 14), (3, 3)), ((9, 13), (4, 6)), ((6, 8), (3, 4))])
def test_a_grid_that_was_halved_before_is_known_by_its_count(grid, now):
    assert current_grid(grid, now[0] * now[1]) == now
    view = view_of(grid, *now, random=True)
    with torch.no_grad():
        expected = as_tokens(conv_of(view.module)(as_image(view.patches, *now)))
        assert torch.allclose(run(view)[:, PREFIX:], expected)


def test_counts_are_those_of_the_paper():
    counts = StridedConv((2, 5, 8)).own_counts(12, (14, 14))
    assert counts == (*[196] * 2, *[49] * 3, *[9] * 3, *[1] * 4)
    assert StridedConv().own_counts(12, (14, 14)) == (*[196] * 6, *[49] * 6), "none named: the middle block"
    assert halved((7, 14)) == (3, 7)


@pytest.mark.parametrize(("depth", "pairs", "triples"), [(12, 66, 30), (6, 15, 6), (2, 1, 0)])
def test_placements_are_one_two_or_three_evenly_spaced_layers(depth, pairs, triples):
    found = placements(depth)
    assert [sum(len(p) == layers for p in found) for layers in (1, 2, 3)] == [depth, pairs, triples]
    assert len(set(found)) == len(found)
    assert math.comb(depth, 2) == pairs
    for blocks in found:
        assert list(blocks) == sorted(set(blocks))
        assert 0 <= blocks[0] <= blocks[-1] < depth
        if len(blocks) == 3:
            assert blocks[2] - blocks[1] == blocks[1] - blocks[0]
        assert StridedConv(blocks).own_counts(depth, (14, 14))[-1] == {1: 49, 2: 9, 3: 1}[len(blocks)]


@pytest.mark.parametrize(("grid", "most"), [((14, 14), 3), ((6, 6), 2), ((3, 9), 1), ((1, 8), 0)])
def test_placements_have_no_more_layers_than_the_grid_allows(grid, most):
    found = placements(8, grid)
    assert max((len(blocks) for blocks in found), default=0) == most
    for blocks in found:
        StridedConv(blocks).own_counts(8, grid)


def test_too_many_layers_are_refused():
    with pytest.raises(ValueError, match="1 x 1 tokens at block 9 are too few"):
        StridedConv((0, 3, 6, 9)).own_counts(12, (14, 14))
    with pytest.raises(ValueError, match="1 x 4 tokens at block 2 are too few"):
        StridedConv((1, 2)).own_counts(4, (2, 9))
    model = make("timm-cls")
    names = list(model.state_dict())
    with pytest.raises(ValueError, match="too few"):
        fv.reduce_(model, StridedConv((0, 1, 2)))
    assert list(model.state_dict()) == names
    assert not hasattr(model, "foveate")


@pytest.mark.parametrize("blocks", [(12,), (-1,), (3, 3), (5, 2)])
def test_blocks_the_model_does_not_have_are_refused(blocks):
    with pytest.raises(ValueError, match=r"blocks must rise, within 0..11 on this model; got \("):
        StridedConv(blocks).own_counts(12, (14, 14))


def test_a_schedule_beside_its_own_counts_is_refused():
    with pytest.raises(fv.PlanError, match="fixes its own counts"):
        fv.reduce_(make("timm-cls"), StridedConv(), fv.Keep({1: 9}))


def test_what_it_learns_lives_under_one_name_and_leaves_with_it():
    model = make("timm-cls")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    fv.reduce_(model, StridedConv((1, 2)))
    added = [name for name in model.state_dict() if name not in before]
    assert added == [f"foveate.learned.{block}.{kind}" for block in (1, 2) for kind in ("weight", "bias")]
    model(images()).square().sum().backward()
    assert all(dict(model.named_parameters())[name].grad.any() for name in added)
    restored = fv.restore_(model).state_dict()
    assert list(restored) == list(before)
    assert all(torch.equal(restored[name], value) for name, value in before.items())


def by_hand(model: nn.Module, x: Tensor, grid: tuple[int, int], convs: dict[int, nn.Conv2d]) -> Tensor:
    """A timm model with convolutions between attention and MLP."""
    tokens = model._pos_embed(model.patch_embed(x))
    for index, block in enumerate(model.blocks):
        tokens = tokens + block.attn(block.norm1(tokens))
        if index in convs:
            patches = as_tokens(convs[index](as_image(tokens[:, 1:], *grid)))
            tokens, grid = torch.cat([tokens[:, :1], patches], dim=1), halved(grid)
        tokens = tokens + block.mlp(block.norm2(tokens))
    return model.forward_head(model.norm(tokens))


SIZE = {"patch_size": 4, "embed_dim": 16, "depth": 4, "num_heads": 2, "num_classes": 5}


@pytest.mark.parametrize(
    ("options", "height", "width"),
    [
        ({"img_size": (24, 32)}, 24, 32),
        ({"img_size": 24, "dynamic_img_size": True}, 24, 32),
        ({"img_size": 24, "dynamic_img_size": True}, 28, 20),
    ],
)
def test_a_model_on_an_image_that_is_not_square_equals_one_with_convolutions(options, height, width):
    torch.manual_seed(0)
    model, x = VisionTransformer(**SIZE, **options).eval(), torch.randn(2, 3, height, width)
    fv.reduce_(model, StridedConv((1, 2)))
    with torch.no_grad():
        for module in model.foveate.learned.values():
            module.weight.add_(0.1 * torch.randn_like(module.weight))
            module.bias.normal_()
        got, trace = model(x), fv.trace(model, x)
        convs = {block: conv_of(model.foveate.learned[str(block)]) for block in (1, 2)}
        expected = by_hand(fv.restore_(model), x, (height // 4, width // 4), convs)
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
    rows, columns = height // 4, width // 4
    assert trace.counts == (rows * columns, *[(rows // 2) * (columns // 2)], *[(rows // 4) * (columns // 4)] * 2)


def test_its_macs_are_those_of_the_convolution():
    step = StepShape(n=35, keep=6, prefix=1, dim=32, heads=4, head_dim=8, has_cls=True)
    assert StridedConv().macs(step) == 6 * 4 * 32 * 32
    model = fv.reduce_(make("timm-cls"), StridedConv((1,)))
    assert fv.cost(model).reduction_macs == (GRID[0] // 2) * (GRID[1] // 2) * 4 * 32 * 32


def test_it_is_meant_to_be_trained():
    assert not StridedConv().training_free
    assert not StridedConv().proportional_attention
