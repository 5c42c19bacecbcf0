"""The operations that need two forms: the fast one, and one that every runtime of exported graphs takes.

ONNX has no stable sort, OpenVINO has no ``index_add``, and neither takes bit operations or writes to a diagonal in
place. The forms choose the same tokens: of equal values the lower index goes first, whichever form runs. This is the
only file that knows which form that is.
"""

from __future__ import annotations

import torch
from torch import Tensor

MOST_RANKED = 1024
"""Tokens that exported graphs rank by a table of all pairs."""


def exporting() -> bool:
    """Whether the graph leaves PyTorch: ``torch.export`` and all that is built on it, or ``torch.jit.trace``."""
    return torch.compiler.is_exporting() or torch.jit.is_tracing()


def in_graph() -> bool:
    """Whether operations are recorded to run on batches of any size, so that Python must not look at the batch."""
    return torch.compiler.is_compiling() or exporting()


def largest(score: Tensor, k: int) -> Tensor:
    """The k tokens of largest ``score`` (B, N), in no particular order: (B, K)."""
    if exporting():
        return positions(is_among_largest(score, k), k)
    return score.sort(dim=1, descending=True, stable=True).indices[:, :k]


def smallest(cost: Tensor, k: int) -> Tensor:
    """The k tokens of smallest ``cost`` (B, N), in no particular order: (B, K)."""
    return largest(-cost, k) if exporting() else cost.sort(dim=1, stable=True).indices[:, :k]


def largest_by_position(score: Tensor, k: int) -> Tensor:
    """The k tokens of largest ``score`` (B, N), in their original order: (B, K)."""
    return largest(score, k) if exporting() else largest(score, k).sort(dim=1).values


def largest_and_rest(score: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k tokens of largest ``score`` (B, N), in no particular order, and the others in their original order."""
    if exporting():
        order = largest_first(score, k)
        return order[:, :k], order[:, k:]
    order = score.sort(dim=1, descending=True, stable=True).indices
    return order[:, :k], order[:, k:].sort(dim=1).values


def is_among_largest(score: Tensor, k: int) -> Tensor:
    """(B, N) true for the k largest."""
    n = score.shape[1]
    if k in (0, n):
        return torch.full(score.shape, k > 0, dtype=torch.bool, device=score.device)
    if n <= MOST_RANKED:  # one table, which is cheaper than a chain of small operations
        place = torch.arange(n, device=score.device)
        lower = (place.unsqueeze(1) < place).float()
        row, column = score.unsqueeze(2), score.unsqueeze(1)
        return torch.where(row == column, lower, (row > column).float()).sum(dim=1) < k
    least = score.topk(k, dim=1).values[:, -1:]  # equal values may be in any order, but the k-th value is certain
    above, equal = score > least, score == least
    places = k - above.sum(dim=1, keepdim=True)
    return above | (equal & (equal.cumsum(1) <= places))


def largest_first(score: Tensor, k: int) -> Tensor:
    """The k tokens of largest ``score`` (B, N), then the others, both in their original order: (B, N)."""
    return positions(is_among_largest(score, k), score.shape[1])


def positions(marked: Tensor, k: int) -> Tensor:
    """The first k places where ``marked`` (B, N) is true, in order, then those where it is not: (B, K)."""
    if not exporting():
        return marked.argsort(dim=1, descending=True, stable=True)[:, :k]
    n = marked.shape[1]
    place = torch.arange(n, device=marked.device, dtype=torch.float32)  # exact up to 2**24
    return torch.where(marked, place, place + n).topk(k, dim=1, largest=False).indices


def places(marked: Tensor, k: int) -> Tensor:
    """The places where ``marked`` (B, N) is true, in order: (B, K). Every image must have k of them."""
    if in_graph() or marked.device.type != "cpu":  # a GPU would have to wait for the number of places
        return positions(marked, k)
    b, n = marked.shape
    flat = marked.view(-1).nonzero().view(b, k)
    return flat if b == 1 else flat % n


def compact(n: int, leaving: Tensor) -> tuple[Tensor, Tensor]:
    """Positions that stay, (B, n - R), and the new position of each of n once ``leaving`` (B, R) are removed."""
    b, gone = leaving.shape
    if not in_graph() and leaving.device.type == "cpu":  # half as many operations, which one image waits for
        marked = torch.ones(b, n, dtype=torch.bool).scatter_(1, leaving, False)
        return places(marked, n - gone), marked.cumsum(1).sub_(1)
    stays = torch.ones(b, n, dtype=torch.long, device=leaving.device).scatter(1, leaving, 0)
    slot = stays.cumsum(1) - 1
    place = torch.arange(n, device=leaving.device).expand(b, n)
    # positions that leave are written to an extra column, which is cut off
    staying = place.new_zeros(b, n - gone + 1).scatter(1, torch.where(stays > 0, slot, n - gone), place)
    return staying[:, :-1], slot


def ranks(score: Tensor) -> Tensor:
    """How many tokens come before each one if they are sorted by ``score`` (B, N), the largest first: (B, N)."""
    if exporting():
        return comes_before(score).sum(dim=1)
    order = score.sort(dim=1, descending=True, stable=True).indices
    place = torch.arange(score.shape[1], device=score.device).expand(score.shape)
    return torch.zeros_like(order).scatter(1, order, place)


def comes_before(score: Tensor) -> Tensor:
    """(B, N, N) whether token j, in rows, comes before token i, in columns, if sorted by ``score``, largest first."""
    n = score.shape[1]
    place = torch.arange(n, device=score.device)
    row, column = score.unsqueeze(2), score.unsqueeze(1)
    return (row > column) | ((row == column) & (place.unsqueeze(1) < place))


def best_products(left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """The largest product of each row of ``left`` (B, N, D) with a row of ``right``, and which: both (B, N)."""
    if not exporting():
        values, index = torch.bmm(left, right.transpose(1, 2)).max(dim=2)
        return values, index
    # of equal values OpenVINO finds the first one in a column, but not always in a row
    values, index = torch.bmm(right, left.transpose(1, 2)).topk(1, dim=1)
    return values.squeeze(1), index.squeeze(1)


def lengths(x: Tensor, keepdim: bool = True) -> Tensor:
    """|x_i| of tokens x (..., N, C), in float32 at least, because squares of half precision overflow: (..., N, 1)."""
    half = x.dtype in (torch.float16, torch.bfloat16)
    if exporting():  # faster in ONNX Runtime than its own norm
        return squared_lengths(x.float() if half else x, keepdim).sqrt()
    return torch.linalg.vector_norm(x, dim=-1, keepdim=keepdim, dtype=torch.float32 if half else None)


def squared_lengths(x: Tensor, keepdim: bool = True) -> Tensor:
    """|x_i|^2 of tokens x (..., N, C)."""
    if exporting():
        return (x * x).sum(dim=-1, keepdim=keepdim)
    return torch.linalg.vector_norm(x, dim=-1, keepdim=keepdim).square_()  # one pass, without storing the squares


def add_into_slots(rows: Tensor, dst: Tensor, num_out: int) -> Tensor:
    """Sum of the ``rows`` (B, E, C) that go to each slot ``dst`` (B, E): (B, num_out, C)."""
    if exporting():
        return membership(dst, num_out).to(rows.dtype) @ rows
    b, e, c = rows.shape
    out = rows.new_zeros(b * num_out, c)
    return out.index_add(0, flat_index(dst, num_out).reshape(-1), rows.reshape(b * e, c)).view(b, num_out, c)


def max_into_slots(values: Tensor, dst: Tensor, num_out: int, start: float) -> Tensor:
    """The largest of ``start`` and the ``values`` (B, E) that go to each slot ``dst`` (B, E): (B, num_out)."""
    if exporting():
        return torch.where(membership(dst, num_out), values.unsqueeze(1), start).amax(dim=2)
    return values.new_full((values.shape[0], num_out), start).scatter_reduce(1, dst, values, "amax")


def min_into_slots(values: Tensor, dst: Tensor, num_out: int, start: float) -> Tensor:
    """The smallest of ``start`` and the ``values`` (B, E) that go to each slot ``dst`` (B, E): (B, num_out)."""
    if exporting():
        return torch.where(membership(dst, num_out), values.unsqueeze(1), start).amin(dim=2)
    return values.new_full((values.shape[0], num_out), start).scatter_reduce(1, dst, values, "amin")


def max_rows_into_slots(rows: Tensor, dst: Tensor, num_out: int) -> Tensor:
    """Channel by channel, the largest of the ``rows`` (B, E, C) that go to each slot ``dst`` (B, E), or -inf."""
    b, _, c = rows.shape
    if exporting():
        return torch.where(membership(dst, num_out).unsqueeze(3), rows.unsqueeze(1), -torch.inf).amax(dim=2)
    index = flat_index(dst, num_out).reshape(-1, 1).expand(-1, c)
    out = rows.new_full((b * num_out, c), -torch.inf)
    return out.scatter_reduce(0, index, rows.reshape(-1, c), "amax").view(b, num_out, c)


def membership(dst: Tensor, num_out: int) -> Tensor:
    """(B, num_out, E) whether edge e goes to slot j, from ``dst`` (B, E)."""
    return dst.unsqueeze(1) == torch.arange(num_out, device=dst.device).unsqueeze(1)


def flat_index(index: Tensor, n: int, shift: int = 0) -> Tensor:
    """Turn ``index`` (B, K) into (B, N, C), plus ``shift``, into an index into (B * N, C): (B, K)."""
    if not exporting() and index.shape[0] == 1:
        return index + shift if shift else index
    return index + (torch.arange(index.shape[0], device=index.device) * n + shift).unsqueeze(1)


def fill_diagonal(table: Tensor, value: float, offset: int = 0) -> Tensor:
    """``table`` (B, R, N) with ``value`` where the column is the row plus ``offset``; overwritten where possible."""
    if not exporting():
        table.diagonal(offset=offset, dim1=1, dim2=2).fill_(value)
        return table
    row, column = (torch.arange(size, device=table.device) for size in table.shape[1:])
    return table.masked_fill(row.unsqueeze(1) + offset == column, value)
