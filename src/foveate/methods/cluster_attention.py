"""ClusTR's attention on a plain vision transformer: attention over clustered keys and values."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from foveate.core import Assignment, weighted_means
from foveate.core.density_peaks import Peaks, cluster_peaks, counts_above, find_peaks, peaks_macs, threshold_for
from foveate.methods.base import BlockView, Method, Site, StepShape, register


@register("cluster-attention", "ClusTR attention", "cluster")
@dataclass(frozen=True)
class ClusterAttention(Method):
    """Every token attends to clusters of tokens; the tokens themselves all stay.

    Density peaks clustering (ClusTR, eq. 1-2) of the block's normed input, of which the patch tokens are read; keys and
    values are made of cluster means. Deviations, which let it work without training: a mean has equal weights, where
    ClusTR learns them (eq. 3), and attention adds log(size) of a cluster, so that it weighs as much as its members.
    Density is exp(-``sharpness`` d^2 / C) of a mean squared distance d^2 in C channels. Eq. 1 as printed has no such
    factor, and where it is large the densest region takes all centres.

    It works at a ``ratio`` of its own, ``fv.reduce_(model, ClusterAttention(ratio=4))``, or by a schedule, whose counts
    are keys in each block. With ``average`` below 1 the number of clusters follows the image's content: the counts
    are the most an image may have, and ``fit_cluster_counts_`` finds the thresholds at which images have ``average`` of
    them in the mean; until it was called, all have the most.
    """

    ratio: float = 0.0
    """Tokens for each cluster; 0: a schedule says how many keys there are."""
    blocks: tuple[int, ...] = ()
    """With ``ratio``: the blocks that cluster; empty: all."""
    k: int = 5
    """Nearest neighbours that make up the density."""
    joins: Literal["denser", "nearest"] = "denser"
    """Whose cluster a token joins: that of its nearest denser token (the paper's chain), or of the nearest centre."""
    sharpness: float = 0.01
    """How much density counts beside distance in the choice of centres; 1: as in the registered ClusTR models."""
    average: float = 1.0
    """Share of the clusters that images have on average, where content decides; 1: every image has all."""
    carry: bool = True
    """Add log(count) to attention logits: a cluster weighs as much as its members."""

    site: ClassVar[Site] = Site.KV

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.ratio and not self.ratio > 1:
            raise ValueError(f"ClusterAttention.ratio is above 1, or 0 for a schedule; got {self.ratio}.")
        if self.blocks and not self.ratio:
            raise ValueError("ClusterAttention.blocks goes with a ratio; a schedule names blocks itself.")
        if self.k < 1:
            raise ValueError(f"ClusterAttention.k is 1 or more; got {self.k}.")
        if not 0 < self.sharpness < math.inf:
            raise ValueError(f"ClusterAttention.sharpness is above 0; got {self.sharpness}.")
        if not 0 < self.average <= 1:
            raise ValueError(f"ClusterAttention.average is a share, above 0 and at most 1; got {self.average}.")

    def build(self, step: StepShape, block: int) -> nn.Module | None:
        return None if self.average == 1 else ClusterCount(self.average)

    def assign(self, view: BlockView, keep: int) -> Assignment:
        tokens = view.patches.detach() * (self.sharpness / view.patches.shape[-1]) ** 0.5
        if not self.k < tokens.shape[1]:
            raise ValueError(f"ClusterAttention.k must be below the {tokens.shape[1]} tokens; got {self.k}.")
        peaks = find_peaks(tokens, self.k)
        clusters = keep if view.module is None else view.module(peaks, keep)
        owner, member = cluster_peaks(tokens, peaks, clusters, self.joins)
        return weighted_means(owner, member.shape[1])

    def own_counts(self, depth: int, grid: tuple[int, int]) -> tuple[int, ...] | None:
        if not self.ratio:
            return None
        tokens = math.prod(grid)
        if self.ratio > tokens:
            raise ValueError(f"ClusterAttention.ratio is {self.ratio:g}, and there are {tokens} tokens to cluster.")
        wrong = [block for block in self.blocks if not 0 <= block < depth]
        if wrong:
            raise ValueError(f"ClusterAttention.blocks names block {wrong[0]}; the model has {depth} (0..{depth - 1}).")
        clusters = max(1, round(tokens / self.ratio))
        return tuple(clusters if block in (self.blocks or range(depth)) else tokens for block in range(depth))

    def fewest(self, n: int) -> int:
        return 1

    def macs(self, step: StepShape) -> int:
        nearest = step.n * step.keep * step.dim if self.joins == "nearest" else 0
        return peaks_macs(step.n, step.dim) + nearest

    def spread(self, strength: float, depth: int, n: int) -> tuple[int, ...]:
        clusters = max(1, round(n * (1 - strength)))
        spared = math.ceil(depth / 4)
        return tuple(n if block < spared else clusters for block in range(depth))


class ClusterCount(nn.Module):
    """How many clusters an image has, from the decision values of its tokens: those above a threshold."""

    threshold: Tensor

    def __init__(self, average: float) -> None:
        super().__init__()
        self.average = average
        self.register_buffer("threshold", torch.tensor(-torch.inf))  # not fitted: everything is above it
        self.seen: list[tuple[Tensor, int]] | None = None  # decision values and the most clusters, while it is fitted

    def forward(self, peaks: Peaks, most: int) -> Tensor:
        """(B,) numbers of clusters."""
        if self.seen is not None:
            self.seen.append((peaks.decision, most))
        return counts_above(peaks.decision, self.threshold, most)

    def fit(self) -> None:
        """Set the threshold at which the images seen have the average."""
        seen, self.seen = self.seen or [], None
        if len({(decision.shape[1], most) for decision, most in seen}) != 1:
            raise ValueError("The numbers of clusters are fitted on images of one size, and on one at least.")
        most = seen[0][1]
        found = threshold_for(torch.cat([decision for decision, _ in seen]), max(1.0, self.average * most), most)
        self.threshold.copy_(found)
