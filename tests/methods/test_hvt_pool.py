"""HVT's pooling: windows of three tokens, two apart, and a new positional embedding after each."""

from itertools import product

import pytest
import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor

import foveate as fv
from foveate.core import pool
from foveate.methods import BlockView, HVTPool, StepShape
from foveate.methods.hvt_pool import resample
from zoo import images, make

PREFIX, DIM, BATCH = 2, 8, 3


def view_for(method: HVTPool, grid: tuple[int, int], block: int = 0) -> BlockView:
    n = grid[0] * grid[1]
    tokens = torch.randn(BATCH, PREFIX + n, DIM, generator=torch.Generator().manual_seed(1))
    counts = method.own_counts(method.stages, grid)
    step = StepShape(n, counts[0], PREFIX, DIM, 2, 4, True, grid)
    return BlockView(tokens, PREFIX, None, block, True, grid, method.build(step, block))


def combined(method: HVTPool, view: BlockView) -> Tensor:
    keep = method.own_counts(method.stages, view.grid)[0]
    return method.combine(view, method.assign(view, keep))


def windows_by_loops(grid: tuple[int, int], pool_dim: int) -> list[list[int]]:
    """The tokens every window holds."""
    rows, columns = grid
    if pool_dim == 1:
        return [[start, start + 1, start + 2] for start in range(0, rows * columns - 2, 2)]
    found = []
    for r in range(0, rows, 2):
        for c in range(0, columns, 2):
            around = [(r + i, c + j) for i in (-1, 0, 1) for j in (-1, 0, 1)]
            found.append([a * columns + b for a, b in around if 0 <= a < rows and 0 <= b < columns])
    return found


@pytest.mark.parametrize("grid", [(4, 4), (3, 5), (5, 4), (2, 7)])
@pytest.mark.parametrize("pool_dim", [1, 2])
@pytest.mark.parametrize("kind", ["max", "avg"])
def test_slots_are_maxima_or_means_of_their_windows_plus_positions(kind, pool_dim, grid):
    method = HVTPool(pool=kind, pool_dim=pool_dim)
    view = view_for(method, grid)
    out = combined(method, view)
    assert torch.equal(out[:, :PREFIX], view.tokens[:, :PREFIX])
    windows = windows_by_loops(grid, pool_dim)
    assert out.shape[1] == PREFIX + len(windows)
    for slot, window in enumerate(windows):
        tokens = view.patches[:, window]
        expected = tokens.amax(dim=1) if kind == "max" else tokens.mean(dim=1)
        torch.testing.assert_close(out[:, PREFIX + slot], expected + view.module.pos_embed[:, slot])


@pytest.mark.parametrize("grid", [(4, 4), (3, 5), (5, 4)])
@pytest.mark.parametrize("pool_dim", [1, 2])
def test_the_edges_are_the_windows(pool_dim, grid):
    method = HVTPool(pool="avg", pool_dim=pool_dim)
    view = view_for(method, grid)
    assignment = method.assign(view, method.own_counts(1, grid)[0])
    out = combined(method, view)[:, PREFIX:] - view.module.pos_embed
    torch.testing.assert_close(pool(view.patches, assignment), out)
    maxima = HVTPool(pool="max", pool_dim=pool_dim)
    view_of_maxima = view_for(maxima, grid)
    out = combined(maxima, view_of_maxima)[:, PREFIX:] - view_of_maxima.module.pos_embed
    torch.testing.assert_close(pool(view.patches, assignment, reduce="max"), out)


@pytest.mark.parametrize("pool_dim", [1, 2])
def test_the_convolution_reads_the_windows_with_a_kernel_of_its_own(pool_dim):
    method, grid = HVTPool(pool="conv", pool_dim=pool_dim), (5, 4)
    view = view_for(method, grid)
    kernel, bias = view.module.conv.weight, view.module.conv.bias
    slot, window = 1, windows_by_loops(grid, pool_dim)[1]
    # the second window: along the sequence tokens 2 to 4; on the grid around row 0, column 2, the row above missing
    taps = range(3) if pool_dim == 1 else range(3, 9)
    pairs = zip(window, taps, strict=True)
    expected = sum(view.patches[:, token] @ kernel.flatten(2)[:, :, tap].T for token, tap in pairs) + bias
    torch.testing.assert_close(combined(method, view)[:, PREFIX + slot], expected + view.module.pos_embed[:, slot])


@pytest.mark.parametrize(
    ("stages", "counts"),
    [
        (1, [97] * 12),
        (2, [97] * 6 + [48] * 6),
        (3, [97] * 4 + [48] * 4 + [23] * 4),
        (4, [97] * 3 + [48] * 3 + [23] * 3 + [11] * 3),
    ],
)
def test_each_stage_begins_with_a_pooling_behind_its_first_block(stages, counts):
    assert list(HVTPool(stages).own_counts(12, (14, 14))) == counts


def test_pooling_over_rows_and_columns_halves_both():
    assert HVTPool(2, pool_dim=2).own_counts(12, (28, 28)) == (196,) * 6 + (49,) * 6


@pytest.mark.parametrize(("stages", "gmacs", "params"), [(1, 2.4022, 22.0871), (4, 1.3939, 22.1186)])
def test_size_and_cost_are_those_known_of_the_paper(stages, gmacs, params):
    """``gmacs`` by the paper's count, which differs from products alone by less than a thousandth."""
    model = VisionTransformer(class_token=False, global_pool="avg", fc_norm=False, embed_dim=384, num_heads=6)
    cost = fv.cost(fv.reduce_(model, HVTPool(stages)))
    assert cost.params / 1e6 == pytest.approx(params, abs=5e-5)
    assert cost.macs / 1e9 == pytest.approx(gmacs, rel=1e-3)


def test_the_head_averages_tokens_plainly():
    model = fv.reduce_(make("timm-mean"), HVTPool(2))
    with torch.no_grad():
        tokens = model.forward_features(images())
        expected = model.head(model.fc_norm(tokens.mean(dim=1)))
        torch.testing.assert_close(model(images()), expected)


@pytest.mark.parametrize("pool_dim", [1, 2])
def test_positions_are_resampled_for_images_of_another_size(pool_dim):
    model = fv.reduce_(make("timm-dynamic"), HVTPool(2, pool_dim=pool_dim))
    stage = model.foveate.learned["0"]
    with torch.no_grad():
        stage.pos_embed.fill_(0.5)
        assert model(torch.randn(1, 3, 32, 40)).isfinite().all()
        resampled = stage(torch.zeros(1, 80, 32), (8, 10))
    torch.testing.assert_close(resampled, torch.full_like(resampled, 0.5))


def places(grid: tuple[int, int], pool_dim: int, poolings: int = 1) -> Tensor:
    """Mean row and column, from 0 to 1, of the patches that each pooled token holds; (1, N, 2)."""
    found = [(row / (grid[0] - 1), column / (grid[1] - 1)) for row, column in product(*map(range, grid))]
    for _ in range(poolings):
        windows = windows_by_loops(grid if pool_dim == 2 else (1, len(found)), pool_dim)
        found = [tuple(sum(found[i][axis] for i in w) / len(w) for axis in (0, 1)) for w in windows]
        grid = ((grid[0] + 1) // 2, (grid[1] + 1) // 2)
    return torch.tensor([found])


@pytest.mark.parametrize("new", [(20, 20), (10, 24), (10, 10), (14, 20)])
@pytest.mark.parametrize(("pool_dim", "poolings"), [(1, 1), (2, 1), (2, 2)])
def test_a_pooled_position_keeps_its_row_and_column_at_another_size(pool_dim, poolings, new):
    """Along the sequence too, where the next token may be at the other end of the image: 224 -> 320 is 14 -> 20."""
    old = (14, 14)
    resampled = resample(places(old, pool_dim, poolings), old, new, poolings, pool_dim)
    expected = places(new, pool_dim, poolings)
    assert resampled.shape == expected.shape
    for axis in (0, 1):
        pair = torch.stack([resampled[0, :, axis], expected[0, :, axis]])
        assert torch.corrcoef(pair)[0, 1] > 0.98


@pytest.mark.parametrize("poolings", [2, 3, 4])
def test_rows_outlive_poolings_that_reach_over_whole_rows(poolings):
    resampled = resample(places((14, 14), 1, poolings), (14, 14), (20, 20), poolings, 1)
    pair = torch.stack([resampled[0, :, 0], places((20, 20), 1, poolings)[0, :, 0]])
    assert torch.corrcoef(pair)[0, 1] > 0.99


@pytest.mark.parametrize("pool_dim", [1, 2])
def test_the_same_size_is_the_same_tensor_and_another_one_learns(pool_dim):
    n = places((6, 6), pool_dim).shape[1]
    positions = torch.randn(1, n, DIM, requires_grad=True)
    assert resample(positions, (6, 6), (6, 6), 1, pool_dim) is positions
    other = resample(positions, (6, 6), (4, 9), 1, pool_dim)  # as many patches, in other rows
    if pool_dim == 1:
        assert other.shape == positions.shape
        assert not torch.allclose(other, positions, atol=0.1)
    other.square().sum().backward()
    assert (positions.grad.abs().amax(dim=2) > 0).all()
    half = resample(positions.detach().bfloat16(), (6, 6), (4, 9), 1, pool_dim)
    assert half.dtype == torch.bfloat16
    torch.testing.assert_close(half.float(), other.detach(), atol=0.1, rtol=0.1)


def test_positions_learn_through_images_of_another_size():
    model = fv.reduce_(make("timm-dynamic"), HVTPool(2))
    model(torch.randn(1, 3, 32, 40)).square().sum().backward()
    for stage in model.foveate.learned.values():
        assert (stage.pos_embed.grad.abs().amax(dim=2) > 0).all()


@pytest.mark.parametrize(
    ("make_method", "match"),
    [
        (lambda: HVTPool(0), "stages must be at least 1, got 0"),
        (lambda: HVTPool("2"), "HVTPool.stages .*'2'"),
        (lambda: HVTPool(pool="median"), "pool must be one of max, avg, conv; got 'median'"),
        (lambda: HVTPool(pool_dim=3), "pool_dim must be one of 1, 2; got 3"),
        (
            lambda: HVTPool(5).own_counts(12, (14, 14)),
            r"does not divide 12 blocks.*Use 5, 10, 15, 20, .*blocks.*or 1, 2, 3, 4, 6, 12 stages",
        ),
        (lambda: HVTPool(13).own_counts(12, (14, 14)), "more than the model's 12 blocks"),
        (lambda: HVTPool(12).own_counts(12, (14, 14)), "2 tokens left at block 6, too few"),
        (lambda: HVTPool(6, pool_dim=2).own_counts(12, (4, 4)), "1 token left at block 4, too few"),
    ],
)
def test_bad_requests_are_refused_with_words(make_method, match):
    with pytest.raises(ValueError, match=match):
        make_method()
