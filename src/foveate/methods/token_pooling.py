"""Token Pooling in vision transformers (Marin et al., 2021)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn.functional import layer_norm

from foveate.core import (
    Assignment,
    Clusters,
    cluster_means,
    cluster_medoids,
    first_at_random,
    first_by_score,
    keep_topk,
    kmeans,
    kmedoids,
    pool,
    pool_at_mean_norm,
    selection,
)
from foveate.core.cluster import squared_distances
from foveate.core.graphs import comes_before, fill_diagonal
from foveate.core.member_sums import merge_into_largest, merges_in_graph
from foveate.methods.base import NOTHING, BlockView, Kind, Method, Need, Site, StepShape
from foveate.methods.registry import register


@register
@dataclass(frozen=True)
class TokenPooling(Method):
    """Cluster the tokens and keep one token per cluster.

    Minimizes sum_i w_i min_j |f_i - c_j|^2 (eq. 13) over K centers by K-Medoids or K-Means (eq. 14-18), starting from
    the K tokens of largest significance: the attention a token receives, summed over heads and queries. The class token
    is not clustered. K-Medoids compares all pairs once, and its iterations read that table; a single iteration
    compares only the other tokens with the first centers.

    The paper does not print a number of iterations. The default is one, as more did not help. Defaults suit a
    pretrained model without further training: tokens are cluster means (``output="mean"``) where the paper takes
    medoids, scaled to their members' mean norm (``rescale``), with proportional attention, as the paper does for such
    models (appendix E); ``size_damping`` is ours and off. The paper's main results are those of
    ``TokenPooling(output="medoid", rescale=False, proportional_attention=False)``. Means are weighted like the
    clustering (eq. 15), or by size if it is not weighted. No cluster becomes empty (the paper does not cover this).
    """

    clustering: Literal["kmedoids", "kmeans"] = "kmedoids"
    """K-Medoids, whose centers are tokens of the image, or K-Means."""
    weights: Literal["significance", "size", "none"] = "significance"
    """Weight of a token in the objective: attention received, number of patches it stands for, or 1."""
    start: Literal["significance", "random"] = "significance"
    """First centers: the most attended tokens, or random tokens."""
    iterations: int = 1
    """Rounds of assigning tokens and moving centers. With output=mean, medoids do not move in the last round."""
    early_stop: bool = False
    """Stop once no image of the batch changes. Results are the same; the time depends on the images."""
    features: Literal["tokens", "normed", "keys"] = "tokens"
    """What is clustered: the tokens, the tokens after a LayerNorm without weights, or attention keys."""
    output: Literal["mean", "medoid"] = "mean"
    """What represents a cluster: the mean of its tokens, or its medoid (K-Medoids only)."""
    rescale: bool = True
    """Scale a cluster's mean, which is shorter than its members, to their mean norm."""
    proportional_attention: bool = True
    """Add log(size) to attention logits, so that a cluster weighs as much as its members."""
    size_damping: float = 0.0
    """How much less log(size) counts the fewer patches are left: times 1 - size_damping log(1 / s), with s the share of
    patches that enter a block, mean over blocks. It brings a classifier of photographs closer to
    the unreduced model, and takes a model that counts away from it; ``fv.search`` chooses it on your images."""
    seed: int = 0
    """Seed of the random first centers."""

    site: ClassVar[Site] = Site.POST_ATTN
    kind: ClassVar[Kind] = "cluster"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.iterations < 1:
            raise ValueError(f"TokenPooling.iterations must be at least 1, got {self.iterations}.")
        if self.clustering == "kmeans" and self.output == "medoid":
            raise ValueError("K-Means has no medoids. Use output='mean', or clustering='kmedoids'.")

    @property
    def uses_size(self) -> bool:
        means_by_size = self.weights == "none" and self.output == "mean"
        return self.proportional_attention or self.weights == "size" or means_by_size

    def needs(self, has_cls: bool) -> frozenset[Need]:
        scores: frozenset[Need] = (
            frozenset({"attn_received"}) if "significance" in (self.weights, self.start) else NOTHING
        )
        return scores | {"keys"} if self.features == "keys" else scores

    def assign(self, view: BlockView, keep: int) -> Assignment:
        if keep == 0:
            return keep_topk(view.patches[..., 0], 0)
        weight = self._weight(view)
        clusters = self._clusters(view, keep, weight)
        if self.output == "medoid":
            return cluster_medoids(clusters, view.size)
        return cluster_means(clusters, view.size, weight)

    def reduce(self, view: BlockView, keep: int) -> tuple[Assignment, Tensor]:
        options = (self.clustering, self.start, self.iterations, self.features, self.output)
        usual = options == ("kmedoids", "significance", 1, "tokens", "mean")
        if not usual or keep == 0 or not merges_in_graph(view.patches.shape[1]):
            return super().reduce(view, keep)
        score, weight = view.attn_received, self._weight(view)
        return merge_into_largest(view.tokens, view.prefix, score, keep, weight, view.size, self.rescale)

    def combine(self, view: BlockView, assignment: Assignment) -> Tensor:
        if self.output == "medoid" and assignment.src is not None:
            assignment = selection(assignment.src, assignment.num_in)
        pooling = pool_at_mean_norm if self.rescale and self.output == "mean" else pool
        return pooling(view.tokens, assignment, prefix=view.prefix)

    def removal_costs(self, view: BlockView) -> Tensor:
        """w_i times the squared distance to the nearest token that receives more attention, w the mean weight's."""
        weight = view.attn_received.detach() if self.weights == "significance" else None
        distance = squared_distances(view.patches)
        if weight is None:
            return fill_diagonal(distance, torch.inf).amin(dim=2).sort(dim=1).values
        nearest = distance.masked_fill(~comes_before(weight).transpose(1, 2), torch.inf).amin(dim=2)
        return (nearest * weight / weight.mean(dim=1, keepdim=True)).sort(dim=1).values

    def removal_macs(self, step: StepShape) -> int:
        return step.n**2 * step.dim

    def macs(self, step: StepShape) -> int:
        width = step.heads * step.head_dim if self.features == "keys" else step.dim
        if step.keep == 0:
            return 0
        if self.clustering == "kmeans":
            return self.iterations * step.n * step.keep * width
        return (step.n**2 if self.iterations > 1 else (step.n - step.keep) * step.keep) * width

    def _weight(self, view: BlockView) -> Tensor | None:
        if self.weights == "significance":
            return view.attn_received.detach()
        return view.size if self.weights == "size" else None

    def _clusters(self, view: BlockView, keep: int, weight: Tensor | None) -> Clusters:
        batch, n, dim = view.patches.shape
        features = view.patches
        if self.features == "normed":
            features = layer_norm(features, (dim,))
        elif self.features == "keys":
            features = view.keys.transpose(1, 2).flatten(2)
        if self.start == "random":
            first = first_at_random(batch, n, keep, self.seed, view.block, features.device)
        else:
            first = first_by_score(view.attn_received, keep)
        if self.clustering == "kmeans":
            return kmeans(features, first, weight, self.iterations, self.early_stop)
        wants_medoids = self.output == "medoid"
        return kmedoids(features, first, weight, self.iterations, self.early_stop, move_last=wants_medoids)
