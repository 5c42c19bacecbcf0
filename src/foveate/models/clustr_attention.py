"""ClusTR's attention: every token attends to clusters of tokens, at several scales (equations 3-8)."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from foveate.core import attend, key_mask_bias, pool, weighted_means
from foveate.core.cluster import Clusters
from foveate.core.density_peaks import cluster_peaks, find_peaks, peaks_macs
from foveate.core.windows import Windows, cluster_in_windows, find_peaks_in_windows, windows_of
from foveate.methods.cluster_attention import ClusterCount
from foveate.methods.validation import check_sizes, check_type, checked_option, option_types, shown

LEAST_LOG_WEIGHT = -30.0
"""Smallest log weight, relative to an image's heaviest token, so that light tokens count in a cluster of light ones."""


@dataclass(frozen=True)
class Clustering:
    """How tokens are clustered. Defaults follow the paper, but distances are divided by the root of the width.

    Every other value deviates from the paper, for speed.
    """

    k: int = 5
    """Nearest neighbors that define the density; the paper does not print the number."""
    joins: Literal["denser", "nearest"] = "denser"
    """Which cluster a token joins: that of its nearest denser token, or of the nearest center."""
    window: int = 0
    """Cluster inside windows of at most this side in tokens, which is linear in the image size; 0: whole images."""
    share: bool = False
    """Cluster once for all blocks of a stage, by the input of the first."""
    project: int = 0
    """Compare tokens in this many dimensions after a fixed random projection; 0: no projection."""
    attend_within: int = 0
    """Let tokens attend only to clusters of their own window, of at most this side in pixels; 0: to all clusters."""
    average: float = 1.0
    """Below 1, image content decides: on average this share of the clusters, after ``fit_cluster_counts_``."""

    def __post_init__(self) -> None:
        for name, kind in option_types(Clustering).items():
            object.__setattr__(self, name, checked_option(f"Clustering.{name}", kind, getattr(self, name)))
        if self.k < 1 or min(self.window, self.project, self.attend_within) < 0:
            raise ValueError(f"k must be at least 1, and window, project and attend_within at least 0; got {self}.")
        if self.joins not in ("denser", "nearest"):
            raise ValueError(f"Clustering.joins must be 'denser' or 'nearest', got {self.joins!r}.")
        if not 0 < self.average <= 1:
            raise ValueError(f"Clustering.average must be a share in (0, 1], got {self.average}.")
        if self.share and self.attend_within:
            raise ValueError("share clusters whole images and attend_within clusters each window. Choose one of them.")
        if self.average < 1 and (self.window or self.share or self.attend_within):
            raise ValueError("average below 1 works on whole images only. Leave out window, share and attend_within.")


class Scale(NamedTuple):
    """The clusters of one scale."""

    clusters: Clusters
    used: Tensor | None  # (B, M) slots that hold a cluster; None if all do


class TokenClusters(nn.Module):
    """Clusters of an image's tokens at several ratios, from one search for density peaks."""

    projection: Tensor | None

    def __init__(self, dim: int, ratios: Sequence[float], clustering: Clustering) -> None:
        super().__init__()
        self.ratios, self.clustering = tuple(ratios), clustering
        self.counts = nn.ModuleList([ClusterCount(clustering.average) for _ in ratios if clustering.average < 1])
        projection = _projection(dim, clustering.project) if clustering.project else None
        self.register_buffer("projection", projection, persistent=False)

    def forward(self, x: Tensor, grid: tuple[int, int]) -> list[Scale]:
        """Cluster tokens x (B, N, C): one entry per ratio."""
        if not self.ratios:
            return []
        self.check(grid)
        x = x.detach() * x.shape[-1] ** -0.5  # so that distances do not grow with the width; see ClusterAttention
        if self.projection is not None:
            x = x @ self.projection.to(x.dtype)
        windows = self._windows(grid)
        if windows is not None:
            return self._in_windows(x, windows)
        peaks = find_peaks(x, self.clustering.k)
        scales = []
        for index, ratio in enumerate(self.ratios):
            most = clusters_at(ratio, x.shape[1])
            count = self.counts[index](peaks, most) if self.counts else most
            clusters = cluster_peaks(x, peaks, count, self.clustering.joins, most)
            scales.append(Scale(clusters, None if isinstance(count, int) else _first_slots(count, clusters)))
        return scales

    def _windows(self, grid: tuple[int, int]) -> Windows | None:
        """The windows of this grid; None if it is clustered as a whole."""
        side = self.clustering.window
        return windows_of(grid, side) if side and max(grid) > side else None

    def _in_windows(self, x: Tensor, windows: Windows) -> list[Scale]:
        peaks = find_peaks_in_windows(x, self.clustering.k, windows)
        joins = self.clustering.joins
        return [Scale(cluster_in_windows(x, peaks, ratio, windows, joins), None) for ratio in self.ratios]

    def check(self, grid: tuple[int, int]) -> None:
        """Raise ``ValueError`` for images with too few tokens."""
        tokens = grid[0] * grid[1]
        if max(self.ratios) > tokens:
            raise ValueError(
                f"A ratio of {max(self.ratios):g} gives less than one cluster of {tokens} tokens ({grid[0]} x "
                f"{grid[1]}). Use larger images, or smaller ratios in scales=."
            )
        if self.clustering.k >= tokens:
            raise ValueError(
                f"The density needs {self.clustering.k} nearest neighbors, but there are {tokens} tokens ({grid[0]} "
                f"x {grid[1]}). Use larger images, or clustering={{'k': {max(1, tokens - 1)}}}."
            )

    def macs(self, grid: tuple[int, int], dim: int) -> int:
        """Multiply-accumulates for one image."""
        if not self.ratios:
            return 0
        tokens, width = grid[0] * grid[1], self.clustering.project or dim
        projecting = tokens * dim * width if self.clustering.project else 0
        windows = self._windows(grid)
        if windows is not None:
            longest = max(windows.sizes)
            search = len(windows.sizes) * peaks_macs(longest, width)
            joining = [len(windows.sizes) * longest * max(windows.counts(ratio)) for ratio in self.ratios]
        else:
            search = peaks_macs(tokens, width)
            joining = [tokens * clusters_at(ratio, tokens) for ratio in self.ratios]
        return projecting + search + (sum(joining) * width if self.clustering.joins == "nearest" else 0)

    def sizes(self, grid: tuple[int, int]) -> list[int]:
        """The maximum number of clusters of each scale."""
        windows = self._windows(grid)
        if windows is not None:
            return [sum(windows.counts(ratio)) for ratio in self.ratios]
        return [clusters_at(ratio, grid[0] * grid[1]) for ratio in self.ratios]


def clusters_at(ratio: float, tokens: int) -> int:
    """M = N / lambda, rounded, at least 1."""
    return max(1, round(tokens / ratio))


def _first_slots(count: Tensor, clusters: Clusters) -> Tensor:
    return torch.arange(clusters.member.shape[1], device=count.device) < count.unsqueeze(1)


def _projection(dim: int, width: int) -> Tensor:
    """Fixed orthonormal directions (C, width), scaled to preserve squared distances on average."""
    if width > dim:
        raise ValueError(f"Clustering.project must be at most the tokens' width, {dim}; got {width}.")
    with torch.device("cpu"):
        noise = torch.randn(dim, width, generator=torch.Generator().manual_seed(0))
        return torch.linalg.qr(noise).Q * (dim / width) ** 0.5


class MultiScaleClusterAttention(nn.Module):
    """Attention over clusters at several ratios: Phi(sum_j ClusAtt(X W^Q, X W_j^K, X W_j^V; lambda_j)) (eq. 8).

    A cluster is h = sum_i w_i x_i with positive weights that sum to 1 (eq. 3): w_i = exp(u x_i + b) divided by its sum
    over the cluster. In the paper w is learnable; that it is positive, normalized and computed from the token is our
    choice. Each scale has its own keys and values, projected from the clusters, which matches the number of parameters
    that the paper prints. A ratio of 1 clusters nothing.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        ratios: Sequence[float],
        clustering: Clustering,
        attn_drop: float = 0.0,
        proj_drop: float = 0.0,
    ) -> None:
        super().__init__()
        check_sizes(dim=dim, num_heads=num_heads)
        check_type(Clustering, "a Clustering", clustering=clustering)
        if not isinstance(ratios, list | tuple) or not all(isinstance(r, int | float) and r >= 1 for r in ratios):
            raise ValueError(f"ratios must be numbers of at least 1, got {shown(ratios)}.")
        self.num_heads, self.ratios, self.attn_drop = num_heads, tuple(ratios), attn_drop
        self.q = nn.Linear(dim, dim)
        self.kv = nn.ModuleList([nn.Linear(dim, 2 * dim) for _ in ratios])
        self.clusters = TokenClusters(dim, [ratio for ratio in ratios if ratio > 1], clustering)
        self.weigh = nn.Linear(dim, 1) if self.clusters.ratios else None
        self.proj = nn.Linear(dim, dim)
        self.proj_drop = nn.Dropout(proj_drop)

    def forward(self, x: Tensor, grid: tuple[int, int], scales: list[Scale] | None = None) -> Tensor:
        """Tokens x (B, N, C) after attention; ``scales`` are shared clusters, None to compute them here."""
        found = iter(self.clusters(x, grid) if scales is None else scales)
        log_weight = None if self.weigh is None else self.weigh(x).squeeze(-1)
        q, dropout = self._heads(self.q(x)), self.attn_drop if self.training else 0.0
        attended = torch.zeros_like(q)
        for ratio, project in zip(self.ratios, self.kv, strict=True):
            scale = next(found) if ratio > 1 else None
            sources = x if scale is None or log_weight is None else aggregate(x, scale.clusters, log_weight)
            bias = None if scale is None or scale.used is None else key_mask_bias(scale.used, q.dtype)
            k, v = (self._heads(part) for part in project(sources).chunk(2, dim=-1))
            attended = attended + attend(q, k, v, bias=bias, dropout=dropout)
        return self.proj_drop(self.proj(attended.transpose(1, 2).flatten(2)))

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(2, (self.num_heads, -1)).transpose(1, 2)

    def macs(self, grid: tuple[int, int]) -> int:
        """Multiply-accumulates for one image, without the clustering."""
        tokens, dim = grid[0] * grid[1], self.q.in_features
        sizes = iter(self.clusters.sizes(grid))
        keys = [next(sizes) if ratio > 1 else tokens for ratio in self.ratios]
        weighing = 0 if self.weigh is None else tokens * dim
        return 2 * tokens * dim**2 + weighing + sum(2 * count * dim**2 + 2 * tokens * count * dim for count in keys)


def aggregate(x: Tensor, clusters: Clusters, log_weight: Tensor) -> Tensor:
    """Equation 3: one token per cluster, the mean of its tokens (B, N, C) weighted by exp(``log_weight``)."""
    relative = (log_weight - log_weight.amax(dim=1, keepdim=True)).clamp_min(LEAST_LOG_WEIGHT)
    return pool(x, weighted_means(clusters.owner, clusters.member.shape[1], relative.float().exp()))


class GridAttention(nn.Module):
    """The ablation of table 6: keys and values from a strided convolution over the grid (SRA, as in PVT).

    With ``top_keys``, each query attends only to this many of its best keys (kNN attention); 0: to all.
    """

    def __init__(
        self, dim: int, num_heads: int, stride: int, top_keys: int = 0, attn_drop: float = 0.0, proj_drop: float = 0.0
    ) -> None:
        super().__init__()
        self.num_heads, self.stride, self.top_keys, self.attn_drop = num_heads, stride, top_keys, attn_drop
        self.q, self.kv = nn.Linear(dim, dim), nn.Linear(dim, 2 * dim)
        self.reduce = nn.Conv2d(dim, dim, stride, stride) if stride > 1 else None
        self.norm = nn.LayerNorm(dim) if stride > 1 else None
        self.proj = nn.Linear(dim, dim)
        self.proj_drop = nn.Dropout(proj_drop)

    def forward(self, x: Tensor, grid: tuple[int, int], scales: None = None) -> Tensor:
        sources = x
        if self.reduce is not None and self.norm is not None:
            if min(grid) < self.stride:
                raise ValueError(f"A grid of {grid[0]} x {grid[1]} tokens is smaller than the stride {self.stride}.")
            maps = self.reduce(x.transpose(1, 2).unflatten(2, grid))
            sources = self.norm(maps.flatten(2).transpose(1, 2))
        q, k, v = (
            part.unflatten(2, (self.num_heads, -1)).transpose(1, 2)
            for part in (self.q(x), *self.kv(sources).chunk(2, dim=-1))
        )
        bias = None if not 0 < self.top_keys < k.shape[2] else _best_keys(q, k, self.top_keys)
        attended = attend(q, k, v, bias=bias, dropout=self.attn_drop if self.training else 0.0)
        return self.proj_drop(self.proj(attended.transpose(1, 2).flatten(2)))

    def macs(self, grid: tuple[int, int]) -> int:
        """Multiply-accumulates for one image; choosing the best keys computes the logits a second time."""
        tokens, dim = grid[0] * grid[1], self.q.in_features
        keys = (grid[0] // self.stride) * (grid[1] // self.stride)
        reducing = keys * dim**2 * self.stride**2 if self.reduce is not None else 0
        choosing = tokens * keys * dim if 0 < self.top_keys < keys else 0
        return reducing + 2 * tokens * dim**2 + 2 * keys * dim**2 + 2 * tokens * keys * dim + choosing


def _best_keys(q: Tensor, k: Tensor, number: int) -> Tensor:
    """A bias (B, H, N_q, N_k): 0 for the ``number`` best keys of each query, -inf for the others."""
    with torch.no_grad():
        logits = q @ k.transpose(2, 3)
        best = logits.topk(number, dim=-1).indices
        return torch.full_like(logits, -torch.inf).scatter_(-1, best, 0.0)


def clustering_of(options: Clustering | dict[str, object] | None) -> Clustering:
    """A ``Clustering`` from an instance, a dictionary of its values, or None."""
    if options is None or isinstance(options, Clustering):
        return options or Clustering()
    known = [field.name for field in dataclasses.fields(Clustering)]
    wrong = [name for name in options if name not in known]
    if wrong:
        raise ValueError(f"Clustering has no option {wrong[0]!r}. Known: {', '.join(known)}.")
    return Clustering(**options)  # type: ignore[arg-type]
