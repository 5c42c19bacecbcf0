"""ClusTR's attention on a plain vision transformer: attention over clustered keys and values."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeVar

import torch
from torch import Tensor, nn

from foveate.core import Assignment, weighted_means
from foveate.core.density_peaks import Peaks, cluster_peaks, counts_above, find_peaks, peaks_macs, threshold_for
from foveate.methods.base import BlockView, Kind, Site, StepShape
from foveate.methods.learned import LearnedMethod
from foveate.methods.registry import register
from foveate.methods.validation import check_sizes

Model = TypeVar("Model", bound=nn.Module)


@register
@dataclass(frozen=True)
class ClusterAttention(LearnedMethod):
    """Every token attends to clusters of tokens; the tokens themselves all stay.

    Density peaks clustering (ClusTR, eq. 1-2) of the patch tokens in the block's normed input; keys and values are
    computed from cluster means. Two deviations make it work without training: means have equal weights, where ClusTR
    learns them (eq. 3), and attention adds log(size) of a cluster, so that it weighs as much as its members. Density is
    exp(-``sharpness`` d^2 / C) of a mean squared distance d^2 in C channels. Eq. 1 as printed has no such factor; a
    large factor puts all centers into the densest region.

    ``ratio`` sets the number of clusters, as in ``fv.reduce_(model, ClusterAttention(ratio=4))``. Without it a schedule
    does, and its counts are the keys in each block. With ``average`` below 1 it also depends on the image: these counts
    are the maximum per image, and ``models.fit_cluster_counts_`` finds the thresholds at which images have the share
    ``average`` of the maximum on average. Until it is called, every image has the maximum.
    """

    ratio: float = 0.0
    """Tokens per cluster; 0: a schedule sets the number of keys."""
    blocks: tuple[int, ...] = ()
    """With ``ratio``: the blocks that cluster; empty: all."""
    k: int = 5
    """Nearest neighbors that define the density."""
    joins: Literal["denser", "nearest"] = "denser"
    """Which cluster a token joins: that of its nearest denser token (as in the paper), or of the nearest center."""
    sharpness: float = 0.01
    """Influence of density, relative to distance, on the choice of centers; 1: as in the registered ClusTR models."""
    average: float = 1.0
    """Average share of the maximum number of clusters, if image content decides; 1: every image has the maximum."""
    proportional_attention: bool = True
    """Add log(size) to attention logits, so that a cluster weighs as much as its members."""

    site: ClassVar[Site] = Site.KV
    kind: ClassVar[Kind] = "cluster"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.ratio and not self.ratio > 1:
            raise ValueError(f"ClusterAttention.ratio must be above 1, or 0 to use a schedule; got {self.ratio}.")
        if self.blocks and not self.ratio:
            raise ValueError("ClusterAttention.blocks needs ratio. With a schedule, name the blocks in the schedule.")
        if self.k < 1:
            raise ValueError(f"ClusterAttention.k must be at least 1, got {self.k}.")
        if self.sharpness <= 0:
            raise ValueError(f"ClusterAttention.sharpness must be above 0, got {self.sharpness}.")
        if not 0 < self.average <= 1:
            raise ValueError(f"ClusterAttention.average must be a share in (0, 1], got {self.average}.")

    def build(self, step: StepShape, block: int) -> nn.Module | None:
        return None if self.average == 1 else ClusterCount(self.average)

    def assign(self, view: BlockView, keep: int) -> Assignment:
        tokens = view.patches.detach() * (self.sharpness / view.patches.shape[-1]) ** 0.5
        if not self.k < tokens.shape[1]:
            raise ValueError(
                f"ClusterAttention.k must be less than the number of tokens, {tokens.shape[1]}; got {self.k}."
            )
        peaks = find_peaks(tokens, self.k)
        clusters = keep if view.module is None else view.module(peaks, keep)
        owner, member = cluster_peaks(tokens, peaks, clusters, self.joins, most=keep)
        return weighted_means(owner, member.shape[1])

    def own_counts(self, depth: int, grid: tuple[int, int]) -> tuple[int, ...] | None:
        if not self.ratio:
            return None
        tokens = math.prod(grid)
        if self.ratio > tokens:
            raise ValueError(
                f"ClusterAttention.ratio={self.ratio:g} is more than the {tokens} tokens to cluster; lower it."
            )
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
    """Number of clusters of an image: how many of its tokens have a decision value above a threshold."""

    threshold: Tensor

    def __init__(self, average: float) -> None:
        super().__init__()
        self.average = average
        self.register_buffer("threshold", torch.tensor(-torch.inf))  # until fitted, every value is above it
        self.seen: list[tuple[Tensor, int]] | None = None  # decision values and maximum, while fitting

    def forward(self, peaks: Peaks, most: int) -> Tensor:
        """Number of clusters of each image, (B,)."""
        if self.seen is not None:
            self.seen.append((peaks.decision, most))
        return counts_above(peaks.decision, self.threshold, most)

    def fit(self) -> None:
        """Set the threshold at which the images seen so far reach the average."""
        seen, self.seen = self.seen or [], None
        if len({(decision.shape[1], most) for decision, most in seen}) != 1:
            raise ValueError("fit_cluster_counts_ needs at least one image, and all images of one size.")
        most = seen[0][1]
        found = threshold_for(torch.cat([decision for decision, _ in seen]), max(1.0, self.average * most), most)
        self.threshold.copy_(found)


@torch.no_grad()
def fit_cluster_counts_(model: Model, batches: Iterable[Tensor], passes: int = 2) -> Model:
    """Let the content of images decide how many clusters they have, in place.

    Finds the thresholds at which images have the share ``average`` of the clusters on average. Works for models reduced
    by ``ClusterAttention(average=...)`` and for ClusTR models built with such a clustering.

    Args:
        model: the model to fit.
        batches: images to fit on, all of one size.
        passes: passes over the images. Fewer clusters in one block change what the next blocks see, so one is not
            enough.

    Returns:
        The model.

    Raises:
        ValueError: if the model has no clusters that depend on content, or images differ in size.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}.")
    if not isinstance(batches, Iterable) or isinstance(batches, str | Tensor):
        raise TypeError(
            f"batches must be tensors of images (B, C, H, W), such as [images]; got {type(batches).__name__}."
        )
    check_sizes(passes=passes)
    counts = [module for module in model.modules() if isinstance(module, ClusterCount)]
    if not counts:
        raise ValueError(
            "No clusters of this model depend on content. Reduce it with ClusterAttention(average=0.5) first."
        )
    held, training = list(batches), model.training
    model.eval()
    try:
        for _ in range(passes):
            for count in counts:
                count.seen = []
            for images in held:
                model(images)
            for count in counts:
                count.fit()
    finally:
        for count in counts:
            count.seen = None
        model.train(training)
    return model
