"""Clustering inside spatial windows: linear in the image size, where clustering the whole image is quadratic."""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise

import torch
from torch import Tensor

from foveate.core.cluster import Clusters
from foveate.core.density_peaks import Joins, Peaks, cluster_peaks, find_peaks


class Windows:
    """A grid of tokens cut into windows of at most ``side`` x ``side``, of sizes as equal as possible."""

    def __init__(self, grid: tuple[int, int], side: int) -> None:
        rows, columns = (_bands(length, side) for length in grid)
        members = [
            [row * grid[1] + column for row in range(*row_band) for column in range(*column_band)]
            for row_band in rows
            for column_band in columns
        ]
        self.tokens = members
        """The tokens of each window."""
        self.shapes = [(bottom - top, right - left) for top, bottom in rows for left, right in columns]
        self.by_shape = {
            shape: torch.tensor([tokens for tokens, other in zip(members, self.shapes, strict=True) if other == shape])
            for shape in dict.fromkeys(self.shapes)
        }
        """The tokens (W, n) of all windows of each shape."""
        self.sizes = [len(tokens) for tokens in members]
        longest = max(self.sizes)
        index = torch.tensor([tokens + tokens[:1] * (longest - len(tokens)) for tokens in members])
        self.index = index  # (W, n) tokens of each window; short windows are padded with their first token
        self.valid = None
        if min(self.sizes) < longest:
            self.valid = torch.arange(longest) < torch.tensor(self.sizes).unsqueeze(1)

    def counts(self, ratio: float) -> list[int]:
        """Number of clusters of each window: its tokens divided by ``ratio``, rounded, at least 1."""
        return [max(1, round(size / ratio)) for size in self.sizes]

    def cut(self, x: Tensor) -> Tensor:
        """Tokens (B, N, C) window by window, (B * W, n, C)."""
        index = self.index.to(x.device)
        return x[:, index.flatten()].reshape(-1, index.shape[1], x.shape[2])

    def validity(self, batch: int, device: torch.device) -> Tensor | None:
        """Mask (B * W, n) that is false for padding; None if all windows have the same size."""
        return None if self.valid is None else self.valid.to(device).repeat(batch, 1)


@lru_cache(maxsize=64)
def windows_of(grid: tuple[int, int], side: int) -> Windows:
    """The windows of a grid, cached."""
    return Windows(grid, side)


def find_peaks_in_windows(x: Tensor, k: int, windows: Windows) -> Peaks:
    """``find_peaks`` in each window of tokens x (B, N, C); the results are (B * W, n)."""
    return find_peaks(windows.cut(x), k, windows.validity(x.shape[0], x.device))


def cluster_in_windows(x: Tensor, peaks: Peaks, ratio: float, windows: Windows, joins: Joins = "denser") -> Clusters:
    """Combine the peaks of all windows (``find_peaks_in_windows``) into clusters of the whole image."""
    batch, n = x.shape[0], x.shape[1]
    counts = torch.tensor(windows.counts(ratio), device=x.device)
    equal = len(set(windows.counts(ratio))) == 1
    wanted: int | Tensor = int(counts[0]) if equal else counts.repeat(batch)
    tokens = windows.cut(x) if joins == "nearest" else x
    inside = cluster_peaks(tokens, peaks, wanted, joins)
    first = counts.cumsum(0) - counts  # number of clusters in earlier windows
    index = windows.index.to(x.device)
    owner = inside.owner.view(batch, *index.shape) + first[:, None]
    member = index.gather(1, inside.member.view(batch, len(index), -1).transpose(0, 1).reshape(len(index), -1))
    member = member.view(len(index), batch, -1).transpose(0, 1)
    real = torch.arange(member.shape[2], device=x.device) < counts[:, None]
    keep = torch.ones_like(index, dtype=torch.bool) if windows.valid is None else windows.valid.to(x.device)
    whole = owner.new_empty(batch, n)
    whole[:, index[keep]] = owner[:, keep]
    return Clusters(whole, member[:, real])


def _bands(length: int, side: int) -> list[tuple[int, int]]:
    """Split ``length`` into the fewest pieces of at most ``side``, of sizes as equal as possible."""
    pieces = -(-length // side)
    edges = [length * i // pieces for i in range(pieces + 1)]
    return list(pairwise(edges))
