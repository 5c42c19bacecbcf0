"""Clusters as sums over their members: how merging is written for graphs that leave PyTorch.

There an operation on a few hundred numbers costs as much as one on ten thousand. So clusters carry all that later steps
read as sums, a merge moves all of them by one gather and one small product, and the merged tokens are read off at the
end: owners are not followed, and tokens are not pooled once more.

Of equal values the lower index wins, as everywhere. OpenVINO keeps to that for the largest of a column, not for that of
a row, so every token that chooses has a column.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from foveate.core.assignment import Assignment, stretch, take
from foveate.core.cluster import relative_weights
from foveate.core.graphs import exporting, is_among_largest, largest_first, lengths, squared_lengths
from foveate.core.precision import in_full_precision, typical_token
from foveate.core.tiles import MOST_TOKENS


class Sums(NamedTuple):
    """Sums over the members of each of N clusters."""

    x: Tensor  # (B, N, C) weight times token, relative to a typical one
    plain: Tensor  # (B, N, 3) weight, patches, and weight times norm
    members: Tensor  # (B, N, tokens) one for each member; if nobody reads it, it is no part of the graph

    def take(self, index: Tensor) -> Sums:
        """The clusters ``index`` (B, K)."""
        return Sums(*(take(rows, index) for rows in self))

    def joined(self, joins: Tensor) -> Sums:
        """The first K clusters, joined by the others where ``joins`` (B, K, N - K) is one."""
        parts = (rows.split(joins.shape[1:], dim=1) for rows in self)
        return Sums(*(first + torch.bmm(joins, others) for first, others in parts))


class Points(NamedTuple):
    """Tokens, each a cluster of its own."""

    x: Tensor  # (B, N, C) relative to ``origin``
    origin: Tensor  # (B, 1, C) a typical token
    weight: Tensor  # (B, N) in the sequence's order
    sums: Sums


def merges_in_graph(n: int) -> bool:
    """Whether n tokens are merged by the functions of this file: in exported graphs, if a table of pairs fits."""
    return exporting() and n <= MOST_TOKENS


@in_full_precision
def merge_alternating(
    tokens: Tensor, prefix: int, plan: tuple[int, ...], weight: Tensor | None, size: Tensor | None, at_mean_norm: bool
) -> tuple[Assignment, Tensor]:
    """``ward_rounds`` of ``plan`` merges each, over the tokens (B, P + N, C) behind ``prefix``.

    Args:
        tokens: the whole sequence.
        prefix: P.
        plan: merges of each round.
        weight: (B, N) of each token; None for ``size``.
        size: (B, N) patches of each token; None if each is one.
        at_mean_norm: whether merged tokens are scaled to their members' mean norm.

    Returns:
        Where each token went, and the new sequence (B, P + K, C).
    """
    n = tokens.shape[1] - prefix
    order = torch.tensor(_halves_apart(n) if plan else range(n), device=tokens.device)
    points = _points(tokens, prefix, order, weight, size)
    sums = points.sums
    for number, merges in enumerate(plan, start=1):
        sums = _round(sums, merges, number == len(plan))
    return _read_off(sums, points, tokens, prefix, at_mean_norm)


@in_full_precision
def merge_into_largest(
    tokens: Tensor,
    prefix: int,
    score: Tensor,
    keep: int,
    weight: Tensor | None,
    size: Tensor | None,
    at_mean_norm: bool,
) -> tuple[Assignment, Tensor]:
    """Merge every token into the nearest of the ``keep`` tokens of largest ``score`` (B, N), as ``kmedoids`` does once.

    The other arguments, and what is returned: ``merge_alternating``.
    """
    points = _points(tokens, prefix, largest_first(score, keep), weight, size)
    medoids, others = points.x.split([keep, score.shape[1] - keep], dim=1)
    # minus half the squared distance, but for a summand that is the same for all medoids
    nearness = torch.bmm(medoids, others.transpose(1, 2)) - squared_lengths(medoids) / 2
    nearest = nearness.topk(1, dim=1).indices  # (B, 1, N - K)
    joins = (torch.arange(keep, device=score.device).unsqueeze(1) == nearest).to(points.x.dtype)
    return _read_off(points.sums.joined(joins), points, tokens, prefix, at_mean_norm)


def _points(tokens: Tensor, prefix: int, order: Tensor, weight: Tensor | None, size: Tensor | None) -> Points:
    """The tokens behind ``prefix`` in ``order``, (N,) or (B, N)."""
    b, n, wide = tokens.shape[0], tokens.shape[1] - prefix, torch.promote_types(tokens.dtype, torch.float32)
    size = torch.ones(b, n, dtype=wide, device=tokens.device) if size is None else size
    weight = size if weight is None else relative_weights(weight)
    own = _rows(tokens, order + prefix).to(wide)
    of_each = _rows(torch.stack([weight, size], dim=2), order)
    w = of_each[:, :, :1]
    plain = torch.cat([of_each, w * lengths(own)], dim=2)
    members = _rows(torch.eye(n, dtype=wide, device=own.device).expand(b, n, n), order)
    origin = typical_token(tokens, prefix).to(wide)
    return Points(own - origin, origin, weight, Sums((own - origin) * w, plain, members))


def _rows(x: Tensor, order: Tensor) -> Tensor:
    return x.index_select(1, order) if order.dim() == 1 else take(x, order)


def _round(sums: Sums, merges: int, last: bool) -> Sums:
    """Merge the cheapest proposals of clusters that are held ``_halves_apart``; the ``last`` round puts them in order.

    A merge of s and t costs w_s w_t / (w_s + w_t) |x_s / w_s - x_t / w_t|^2. The table holds minus half of that,
    (x_s x_t - w_t |x_s|^2 / (2 w_s) - w_s |x_t|^2 / (2 w_t)) / (w_s + w_t), where a row is a target t.
    """
    b, n, _ = sums.x.shape
    weight = sums.plain[:, :, :1]
    half_square = squared_lengths(sums.x) / (2 * weight)
    halves = [n - n // 2, n // 2]
    (source, target), (w_s, w_t), (h_s, h_t) = (part.split(halves, dim=1) for part in (sums.x, weight, half_square))
    source, w_s, h_s = (part.transpose(1, 2) for part in (source, w_s, h_s))
    table = (torch.bmm(target, source) - (h_s * w_t + h_t * w_s)).clamp_max(0) / (w_s + w_t)
    best, nearest = table.topk(1, dim=1)  # (B, 1, sources)
    merging = is_among_largest(best.squeeze(1), merges)
    place = torch.arange(n, dtype=weight.dtype, device=weight.device)
    even, odd = place[::2], place[1::2]
    place = torch.cat([torch.where(merging, even + n, even), odd.expand(b, n // 2)], dim=1)
    order = place.topk(n, dim=1, largest=False).indices  # those that merge come last
    left = n - merges
    if not last:
        order = order.index_select(1, torch.tensor([*_halves_apart(left), *range(left, n)], device=order.device))
    staying, leaving = order.split([left, merges], dim=1)
    joined = nearest.gather(2, leaving.unsqueeze(1)) + halves[0]
    return sums.take(order).joined((staying.unsqueeze(2) == joined).to(weight.dtype))


def _read_off(sums: Sums, points: Points, tokens: Tensor, prefix: int, at_mean_norm: bool) -> tuple[Assignment, Tensor]:
    """Where each of ``points`` went, and the sequence of means."""
    total, size, norm = sums.plain.split(1, dim=2)
    mean = sums.x / total + points.origin
    if at_mean_norm:
        mean = mean * stretch(mean, norm / total)
    k, n = sums.members.shape[1:]
    slots = torch.arange(k, dtype=total.dtype, device=total.device).unsqueeze(1)
    owner, share = (sums.members * slots).sum(dim=1).long(), points.weight / (sums.members * total).sum(dim=1)
    # sizes come with norms, whose gradient they do not have: a fused attention kernel takes no bias with a gradient
    assignment = Assignment(None, owner, share, n, k, sizes=size.squeeze(2).detach())
    return assignment, torch.cat([tokens[:, :prefix], mean.to(tokens.dtype)], dim=1)


def _halves_apart(n: int) -> list[int]:
    """The even numbers below n, then the odd ones: sources and targets, each as one block."""
    return [*range(0, n, 2), *range(1, n, 2)]
