"""Density peaks clustering with k nearest neighbors (ClusTR, equations 1 and 2), one tile of distances at a time.

    rho_i   = exp(-1/k sum over the k nearest j of d(i, j)^2)                                              (eq. 1)
    delta_i = min over j with rho_j > rho_i of d(i, j), or max over j of d(i, j) for the densest token     (eq. 2)
    gamma_i = rho_i delta_i

The M tokens of largest gamma are the centers. Every other token joins the cluster of its nearest token of higher
density, or (``"nearest"``) that of its nearest center. Choices that the paper leaves open: a token is not a neighbor of
itself; of equally dense tokens the first counts as denser, and of equal gammas the first is chosen, which makes the
result deterministic. Everything is computed in logarithms, log gamma = log rho + log delta, because exp(-d^2) of wide
tokens underflows to 0.

Distances between all pairs are computed in tiles that fit the cache. If an image fits into one tile, its distances are
computed once, otherwise one and a half times: once for the density, and once more, with tokens sorted by density, to
the denser tokens.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from foveate.core.assignment import take
from foveate.core.cluster import Clusters
from foveate.core.graphs import comes_before, exporting, fill_diagonal, in_graph, ranks
from foveate.core.precision import centered, in_full_precision

Joins = Literal["denser", "nearest"]

TILE = 2**20
"""Distances in memory at once: 4 MiB in float32, which fits the cache."""
ROWS = 64
"""Smallest number of rows in a tile."""


class Peaks(NamedTuple):
    """Per-token scores from which centers are chosen."""

    decision: Tensor  # (B, N) log gamma; inf for the densest token, -inf for padding
    denser: Tensor
    """(B, N) nearest token of higher density; of equally near ones the first or, in tiles, the densest. The densest
    token of an image points to itself."""


@in_full_precision
@torch.no_grad()
def find_peaks(x: Tensor, k: int, valid: Tensor | None = None, tile: int = TILE) -> Peaks:
    """Compute equations 1 and 2.

    Args:
        x: tokens (B, N, C).
        k: number of nearest neighbors that define the density.
        valid: (B, N), false for padding; None if there is no padding.
        tile: number of distances in memory at once. It changes results only by rounding.

    Raises:
        ValueError: if k is not between 1 and the number of other tokens.
    """
    b, n, _ = x.shape
    _check_neighbors(k, n, valid)
    x = centered(x, valid)
    square = torch.linalg.vecdot(x, x)
    if valid is not None:
        square = square.masked_fill(~valid, torch.inf)  # infinitely far from every token
    tiled = tile if n**2 > tile and not exporting() else None  # tiles are written in place
    if in_graph():  # a compiled graph must work for any batch size
        peaks = _peaks_of_few(x, square, k, tiled)
    else:
        images = max(1, tile // n**2)
        parts = [_peaks_of_few(x[i : i + images], square[i : i + images], k, tiled) for i in range(0, b, images)]
        peaks = parts[0] if len(parts) == 1 else Peaks(*map(torch.cat, zip(*parts, strict=True)))
    return peaks if valid is None else peaks._replace(decision=peaks.decision.masked_fill(~valid, -torch.inf))


def _peaks_of_few(x: Tensor, square: Tensor, k: int, tile: int | None) -> Peaks:
    """``find_peaks`` with all distances at once (``tile`` is None) or in tiles of rows."""
    n = x.shape[1]
    if tile is None:
        table = _distances(x, square, x, square)
        table = fill_diagonal(table, torch.inf)  # a token is not its own neighbor
        log_density = _log_density(table, k)
        distance, denser = _nearest_denser_in(table, log_density)
    else:
        rows = max(ROWS, tile // n)
        memory = x.new_empty(x.shape[0] * rows * n)  # shared by all tiles, to avoid fragmentation
        log_density = torch.empty_like(square)
        for part in (slice(start, min(n, start + rows)) for start in range(0, n, rows)):
            found = _distances(x[:, part], square[:, part], x, square, memory)
            log_density[:, part] = _log_density(fill_diagonal(found, torch.inf, part.start), k)
        order = _by_density(log_density)
        distance, denser = _nearest_denser(x, square, order, rows, memory)
    return Peaks(log_density + distance.clamp_min(0).log() / 2, denser)


def _distances(x: Tensor, x_square: Tensor, y: Tensor, y_square: Tensor, memory: Tensor | None = None) -> Tensor:
    """|x_i - y_j|^2, (B, N_x, N_y). Squares are added first, so that d(i, j) and d(j, i) agree in most digits."""
    if memory is None:
        return torch.baddbmm(x_square.unsqueeze(2) + y_square.unsqueeze(1), x, y.transpose(1, 2), alpha=-2)
    out = memory[: x_square.shape[1] * y_square.numel()].view(*x_square.shape, y_square.shape[1])
    torch.add(x_square.unsqueeze(2), y_square.unsqueeze(1), out=out)
    return torch.baddbmm(out, x, y.transpose(1, 2), alpha=-2, out=out)


def _log_density(distance: Tensor, k: int) -> Tensor:
    """log rho (eq. 1) of some tokens, (B, rows), from their squared distances (B, rows, N) to all others."""
    return -_smallest(distance, k).clamp_min(0).mean(dim=2)


def _smallest(values: Tensor, k: int) -> Tensor:
    """The k smallest in each row of (B, R, N), in any order.

    They lie in the k groups with the smallest minima. Finding these groups first takes half the time on long rows.
    """
    n = values.shape[2]
    size = _group_size(n, k)
    if size == 1 or n // size < k:
        return values.topk(k, dim=2, largest=False, sorted=False).values
    grouped = values.unflatten(2, (size, n // size))
    best = grouped.amin(dim=2).topk(k, dim=2, largest=False, sorted=False).indices
    members = grouped.gather(3, best.unsqueeze(2).expand(-1, -1, size, -1)).flatten(2)
    return members.topk(k, dim=2, largest=False, sorted=False).values


def _group_size(n: int, k: int) -> int:
    """The divisor of n that leaves the fewest values to search: n / size minima, then k groups."""
    return min((size for size in range(1, 65) if n % size == 0), key=lambda size: n // size + k * size)


def _by_density(log_density: Tensor) -> Tensor:
    """Token indices sorted from densest to least dense; ties keep their order."""
    return log_density.sort(dim=1, descending=True, stable=True).indices


def _nearest_denser_in(table: Tensor, log_density: Tensor) -> tuple[Tensor, Tensor]:
    """Squared distance to the nearest denser token, and its index (eq. 2).

    The densest token points to itself, at an infinite distance, so that it has the largest gamma.
    """
    if exporting():
        denser = comes_before(log_density)  # [j, i]: j is denser than i; distances are symmetric
        distance, nearest = table.masked_fill(~denser, torch.inf).min(dim=1)
        place = torch.arange(table.shape[1], device=table.device)
        return distance, torch.where(denser.any(dim=1), nearest, place)
    order = _by_density(log_density)
    b, n = order.shape
    rank = torch.empty_like(order).scatter_(1, order, torch.arange(n, device=order.device).expand(b, n))
    rank = rank.to(torch.int32)
    distance, nearest = table.masked_fill_(rank.unsqueeze(2) >= rank.unsqueeze(1), torch.inf).min(dim=1)
    return distance.scatter(1, order[:, :1], torch.inf), nearest.scatter(1, order[:, :1], order[:, :1])


def _nearest_denser(x: Tensor, square: Tensor, order: Tensor, rows: int, memory: Tensor) -> tuple[Tensor, Tensor]:
    """``_nearest_denser_in`` in tiles, over tokens sorted by density, so that earlier ones are denser."""
    n = x.shape[1]
    x, square = take(x, order), square.gather(1, order)
    distance, place = torch.empty_like(square), torch.empty_like(order)
    for start in range(0, n, rows):
        end = min(n, start + rows)
        tile = _distances(x[:, :end], square[:, :end], x[:, start:end], square[:, start:end], memory)
        own = tile[:, start:]
        own.masked_fill_(torch.ones(end - start, end - start, device=x.device).tril().bool(), torch.inf)
        distance[:, start:end], place[:, start:end] = tile.min(dim=1)
    place[:, 0], distance[:, 0] = 0, torch.inf  # the densest
    back = torch.empty_like(order).scatter_(1, order, torch.arange(n, device=x.device).expand(order.shape))
    return distance.gather(1, back), order.gather(1, place).gather(1, back)


def cluster_peaks(
    x: Tensor, peaks: Peaks, clusters: int | Tensor, joins: Joins = "denser", most: int | None = None
) -> Clusters:
    """Cluster tokens around the ``clusters`` tokens of largest gamma.

    Args:
        x: tokens (B, N, C); read only if ``joins`` is ``"nearest"``.
        peaks: result of ``find_peaks`` for these tokens.
        clusters: number of clusters, one for all images or (B,), one per image. If images differ, slots past an
            image's own number are empty and their ``member`` is meaningless.
        joins: whether a token joins the cluster of its nearest denser token or of its nearest center.
        most: the largest number that ``clusters`` may hold, which a graph needs to know; by default its maximum.

    Raises:
        ValueError: if a number of clusters is not between 1 and N.
    """
    b, n = peaks.decision.shape
    _check_clusters(clusters, n)
    if most is None or not in_graph():
        most = clusters if isinstance(clusters, int) else int(clusters.max())
    wanted = torch.as_tensor(clusters, device=peaks.decision.device).reshape(-1, 1)
    is_center = ranks(peaks.decision) < wanted
    slot = is_center.cumsum(dim=1) - 1
    places = torch.arange(n, device=slot.device).expand(b, n)
    # tokens that are not centers write to an extra slot, which is cut off
    member = slot.new_zeros(b, most + 1).scatter(1, torch.where(is_center, slot, most), places)[:, :most]
    if joins == "nearest":
        tokens = centered(x, valid=peaks.decision > -torch.inf)
        owner = torch.where(is_center, slot, _nearest_center(tokens, member, wanted))
    else:
        owner = slot.gather(1, _ends_of_chains(torch.where(is_center, places, peaks.denser)))
        owner = owner.clamp_min(0)  # chains of infinite tokens may end at any token
    return Clusters(owner, member)


def _ends_of_chains(leads_to: Tensor) -> Tensor:
    """Where each token ends when it follows ``leads_to`` (B, N) until a token that leads to itself."""
    taken = 1
    while taken < leads_to.shape[1]:  # each iteration doubles the steps taken
        leads_to, taken = leads_to.gather(1, leads_to), 2 * taken
    return leads_to


@in_full_precision
@torch.no_grad()
def _nearest_center(x: Tensor, member: Tensor, wanted: Tensor) -> Tensor:
    """The nearest center of each ``centered`` token, (B, N), a tile of tokens at a time; ties go to the first."""
    centers = take(x, member)
    empty = torch.arange(member.shape[1], device=x.device).unsqueeze(0) >= wanted
    square = torch.linalg.vecdot(centers, centers).masked_fill(empty, torch.inf).unsqueeze(2)
    images = 1 if in_graph() else member.shape[0]  # a compiled graph must work for any batch size
    rows = max(ROWS, TILE // max(1, images * member.shape[1]))
    parts = [
        torch.baddbmm(square, centers, x[:, i : i + rows].transpose(1, 2), alpha=-2).min(dim=1).indices
        for i in range(0, x.shape[1], rows)
    ]
    return torch.cat(parts, dim=1)


def peaks_macs(n: int, dim: int, tile: int = TILE) -> int:
    """Multiply-accumulates of ``find_peaks`` for one image of n tokens."""
    if n**2 <= tile:
        return n**2 * dim
    rows = max(ROWS, tile // n)
    ends = [min(n, start + rows) for start in range(0, n, rows)]
    before = sum(end * (end - start) for start, end in zip(range(0, n, rows), ends, strict=True))
    return (n**2 + before) * dim


def _check_neighbors(k: int, n: int, valid: Tensor | None) -> None:
    fewest = n if valid is None or in_graph() else int(valid.sum(dim=1).min())
    if not 1 <= k < fewest:
        raise ValueError(f"Density by the k nearest neighbors of {fewest} tokens needs 1 <= k < {fewest}, got k={k}.")


def _check_clusters(clusters: int | Tensor, n: int) -> None:
    if in_graph() and not isinstance(clusters, int):
        return
    low, high = (clusters, clusters) if isinstance(clusters, int) else (int(clusters.min()), int(clusters.max()))
    if not 1 <= low <= high <= n:
        raise ValueError(f"{n} tokens can form 1 to {n} clusters, got {low if low < 1 else high}.")


def counts_above(decision: Tensor, threshold: Tensor, most: int) -> Tensor:
    """How many tokens of each image have a log gamma above ``threshold``, at least 1 and at most ``most``: (B,).

    The number of clusters of an image depends only on its content.
    """
    return (decision > threshold).sum(dim=1).clamp(1, most)


def threshold_for(decision: Tensor, average: float, most: int) -> Tensor:
    """The threshold at which ``counts_above`` gives ``average`` clusters over the images of ``decision`` (I, N)."""
    if not 1 <= average <= most:
        raise ValueError(f"The average number of clusters must be between 1 and {most}, got {average:g}.")
    values = decision[decision.isfinite()].unique()  # sorted; counts change only at these
    low, high = -1, len(values) - 1  # -1: the threshold is below all values
    while low < high:
        middle = (low + high + 1) // 2
        threshold = values[middle]
        if counts_above(decision, threshold, most).float().mean() >= average:
            low = middle
        else:
            high = middle - 1
    if low < 0:
        return values[:1].sum() - 1  # below all values
    # halfway between two values: at a value itself, rounding would decide about its token
    return values[low : low + 2].mean() if low + 1 < len(values) else values[low] + 1
