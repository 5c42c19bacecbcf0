"""Agglomerative token clustering (Haurum et al., ECCV 2024)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from foveate.core import Assignment, cluster_means, linkage_clusters
from foveate.methods.base import BlockView, Kind, Method, Need, Site, StepShape
from foveate.methods.registry import register


@register
@dataclass(frozen=True)
class ATC(Method):
    """Merge the two closest clusters of tokens, again and again.

    The distance of two tokens is 1 - cos(k_i, k_j), with keys averaged over heads. That of two clusters is the mean
    (``average``), the largest (``complete``) or the smallest (``single``) distance between their members. Clusters
    become means weighted by size.

    Each merge depends on the one before, so n - K steps run in sequence. The paper's code hands each image to
    scikit-learn; here all images of a batch step together, with the same merges. Of equal distances the lower indices
    merge first. ``Ward`` is the same loop with another cost; see there.
    """

    linkage: Literal["average", "complete", "single"] = "average"
    """Distance of two clusters: mean, largest or smallest distance of their members."""
    proportional_attention: bool = True
    """Add log(size) to attention logits, so that a merged token weighs as much as its members."""

    site: ClassVar[Site] = Site.POST_ATTN
    kind: ClassVar[Kind] = "cluster"

    @property
    def uses_size(self) -> bool:
        return True

    def needs(self, has_cls: bool) -> frozenset[Need]:
        return frozenset({"keys"})

    def assign(self, view: BlockView, keep: int) -> Assignment:
        clusters = linkage_clusters(view.keys.sum(dim=1), keep, self.linkage)
        return cluster_means(clusters, view.size)

    def macs(self, step: StepShape) -> int:
        return step.n**2 * step.head_dim

    def fewest(self, n: int) -> int:
        return min(n, 1)
