"""The two forms of an operation agree, exact ties included: in PyTorch, exported, and in the runtimes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from foveate.core import graphs
from foveate.core.assignment import joined_means, partition, pool, pool_at_mean_norm
from foveate.core.members import representatives
from served import RUNTIMES, in_openvino, program_of

N, K = 9, 4


class Operations(nn.Module):
    """All operations with two forms, on scores (B, 9) that may be equal."""

    def forward(self, score: Tensor) -> tuple[Tensor, ...]:
        chosen, rest = graphs.largest_and_rest(score, K)
        rows = torch.stack([score, score.square() + 1], dim=2)
        slot = chosen % (N - K)
        merged = joined_means(rest, chosen, slot, N, score.abs() + 1)
        owner = graphs.ranks(score) // 2
        return (
            graphs.largest(score, K).sort(dim=1).values,
            graphs.smallest(score, K).sort(dim=1).values,
            graphs.largest_by_position(score, K),
            chosen.sort(dim=1).values,
            rest,
            graphs.largest_first(score, K),
            graphs.lengths(rows),
            graphs.squared_lengths(rows / 8),
            graphs.positions(score > 1, N),
            graphs.places(graphs.is_among_largest(score, K), K),
            *graphs.compact(N, chosen),
            graphs.ranks(score),
            graphs.add_into_slots(rows, owner, 5),
            graphs.fill_diagonal(rows @ rows.transpose(1, 2), 7.0),
            graphs.fill_diagonal((rows @ rows.transpose(1, 2))[:, 3:], 7.0, 3),
            pool(rows, merged),
            pool_at_mean_norm(rows, merged),
            pool(rows, partition(owner, 5), reduce="max"),
            representatives(partition(owner, 5, score), score.shape[0]),
        )


def ranked(score: list[float]) -> list[int]:
    """The slow and obvious order: by score, then by index."""
    return sorted(range(len(score)), key=lambda i: (-score[i], i))


tied_scores = st.lists(st.lists(st.sampled_from([0.0, 1.0, 1.5, 2.0]), min_size=N, max_size=N), min_size=1, max_size=3)


@given(tied_scores)
def test_equal_scores_go_to_the_lower_index(rows):
    score = torch.tensor(rows)
    by_position = [sorted(ranked(row)[:K]) for row in rows]
    assert graphs.largest_by_position(score, K).tolist() == by_position
    assert [sorted(row) for row in graphs.largest(score, K).tolist()] == by_position
    assert [sorted(row) for row in graphs.smallest(-score, K).tolist()] == by_position
    assert graphs.largest_and_rest(score, K)[1].tolist() == [sorted(ranked(row)[K:]) for row in rows]
    assert graphs.ranks(score).tolist() == [[ranked(row).index(i) for i in range(N)] for row in rows]


@given(tied_scores)
def test_what_stays_is_in_order_and_knows_its_new_place(rows):
    score = torch.tensor(rows)
    leaving = graphs.largest(score, K)
    staying, slot = graphs.compact(N, leaving)
    left = [sorted(ranked(row)[K:]) for row in rows]
    assert staying.tolist() == left
    assert slot.gather(1, staying).tolist() == [list(range(N - K)) for _ in rows]
    marked = torch.ones(score.shape, dtype=torch.bool).scatter(1, leaving, False)
    assert graphs.places(marked, N - K).tolist() == left


def tied(batch: int) -> Tensor:
    draws = torch.randint(0, 4, (batch, N), generator=torch.Generator().manual_seed(batch))
    return torch.cat([draws.float() / 2, torch.ones(1, N), torch.arange(N).float().unsqueeze(0)])


@pytest.mark.parametrize("runtime", ["torch.export", *RUNTIMES])
def test_exported_operations_choose_the_same_tokens(runtime, exported_operations):
    run = exported_operations.module() if runtime == "torch.export" else RUNTIMES[runtime](exported_operations)
    for score in (tied(30), torch.ones(1, N)):
        for number, (found, expected) in enumerate(zip(run(score), Operations()(score), strict=True)):
            assert (found.float() - expected.float()).abs().max() < 1e-5, number


@pytest.fixture(scope="module", params=[graphs.MOST_RANKED, 0], ids=["ranked", "too many to rank"])
def exported_operations(request) -> Iterator[torch.export.ExportedProgram]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(graphs, "MOST_RANKED", request.param)
        yield program_of(Operations(), tied(2))


@pytest.mark.parametrize("runtime", ["onnxruntime", "openvino", "openvino for one image"])
def test_of_equal_products_the_first_is_best(runtime):
    class Best(nn.Module):
        def forward(self, rows: Tensor) -> tuple[Tensor, Tensor]:
            return graphs.best_products(rows[:, ::2], rows[:, 1::2])

    program = program_of(Best(), torch.zeros(2, 81, 1))
    run = in_openvino(program, batch=1) if runtime == "openvino for one image" else RUNTIMES[runtime](program)
    for seed in range(5):  # whole numbers of which many are equal
        rows = torch.randint(0, 3, (1, 81, 1), generator=torch.Generator().manual_seed(seed)).float()
        for found, expected in zip(run(rows), Best()(rows), strict=True):
            assert torch.equal(found.to(expected), expected)


@pytest.mark.parametrize("k", [0, N])
def test_none_and_all(k):
    class Choose(nn.Module):
        def forward(self, score: Tensor) -> Tensor:
            return graphs.largest_by_position(score, k) + score.shape[0] * 0

    assert torch.equal(program_of(Choose(), tied(2)).module()(tied(3)), Choose()(tied(3)))
