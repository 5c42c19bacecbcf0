"""Token clustering by density peaks with k nearest neighbors (Du et al., 2016; Zeng et al., TCFormer, CVPR 2022)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from foveate.core import Assignment, cluster_means, selection
from foveate.core.density_peaks import cluster_peaks, find_peaks, peaks_macs
from foveate.methods.base import BlockView, Kind, Method, Site, StepShape
from foveate.methods.registry import register


@register
@dataclass(frozen=True)
class DPCKNN(Method):
    """Make the tokens that are dense and far from denser ones cluster centers; every token joins the nearest.

        rho_i = exp(-1/k sum over the k nearest j of d_ij^2),   d_ij = |x_i - x_j| / sqrt(C)
        delta_i = min over j with rho_j > rho_i of d_ij;   the K tokens of largest rho_i delta_i are the centers

    TCFormer and TokenReduction learn the weights of a cluster's mean (or take equal ones) and reduce before a block;
    here means are weighted by size, between attention and MLP, which needs no training. They count a token among its
    own neighbors and add noise to break ties; here it does not count, and ties go to the lower index.
    ``ClusterAttention`` applies the same clustering to keys and values.
    """

    k: int = 5
    """Nearest neighbors that define the density; all others if there are fewer."""
    proportional_attention: bool = True
    """Add log(size) to attention logits, so that a cluster weighs as much as its members."""

    site: ClassVar[Site] = Site.POST_ATTN
    kind: ClassVar[Kind] = "cluster"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.k < 1:
            raise ValueError(f"DPCKNN.k must be at least 1, got {self.k}.")

    @property
    def uses_size(self) -> bool:
        return True

    def assign(self, view: BlockView, keep: int) -> Assignment:
        tokens = view.patches.detach() * view.patches.shape[-1] ** -0.5
        batch, n, _ = tokens.shape
        if n == 1:
            return selection(view.patches.new_zeros(batch, 1).long(), 1)
        peaks = find_peaks(tokens, min(self.k, n - 1))
        return cluster_means(cluster_peaks(tokens, peaks, keep, "nearest"), view.size)

    def macs(self, step: StepShape) -> int:
        return peaks_macs(step.n, step.dim) + step.n * step.keep * step.dim

    def fewest(self, n: int) -> int:
        return min(n, 1)
