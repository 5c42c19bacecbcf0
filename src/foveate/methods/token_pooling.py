"""Token Pooling in vision transformers (Marin et al., 2021)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

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
from foveate.methods.base import NOTHING, BlockView, Method, Need, Site, StepShape, middle_blocks, register


@register("token-pooling", "Token Pooling", "cluster")
@dataclass(frozen=True)
class TokenPooling(Method):
    """Cluster the tokens, and keep one token for each cluster.

    Minimises sum_i w_i min_j |f_i - c_j|^2 (eq. 13) over K centres, by K-Medoids or K-Means (eq. 14-18), starting from
    the K tokens of largest significance: the attention a token receives, summed over heads and queries. The class
    token is not clustered. K-Medoids compares all pairs once, and its iterations read that table; a single
    iteration compares only the other tokens with the first centres.

    The paper prints no number of iterations; one is the default, as more did not help. Defaults suit a pretrained model
    that is not trained again: tokens are cluster means (``output="mean"``) where the paper takes medoids, at their
    members' mean norm (``rescale``), and carry their count, as the paper does for such models (appendix E). The paper's
    main results are of ``TokenPooling(output="medoid", rescale=False, carry=False)``. Means are weighted as the
    clustering is (eq. 15), by size where it is not. A cluster cannot run empty (the paper does not say). ``Budget``
    takes an equal share of the tokens at four evenly spaced blocks, none in the first quarter.
    """

    clustering: Literal["kmedoids", "kmeans"] = "kmedoids"
    """Which clustering: centres are tokens of the image, or free."""
    weights: Literal["significance", "size", "none"] = "significance"
    """What a token weighs in the objective: attention received, patches it stands for, or one."""
    start: Literal["significance", "random"] = "significance"
    """First centres: the most attended tokens, or seeded random ones."""
    iterations: int = 1
    """Turns of assigning tokens and moving centres; where means are wanted, medoids do not move after the last."""
    early_stop: bool = False
    """End the turns once no image of the batch changes; results stay the same, time then depends on the images."""
    features: Literal["tokens", "normed", "keys"] = "tokens"
    """What is clustered: the tokens, the tokens normalised as by a LayerNorm, or attention keys."""
    output: Literal["mean", "medoid"] = "mean"
    """What stands for a cluster: the mean of its tokens, or (K-Medoids) its medoid."""
    rescale: bool = True
    """Give a mean its members' mean norm; the mean itself is shorter."""
    carry: bool = True
    """Add log(count) to attention logits: a cluster weighs as much as its members."""
    seed: int = 0
    """Number that fixes random first centres."""

    site: ClassVar[Site] = Site.POST_ATTN

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.iterations < 1:
            raise ValueError(f"TokenPooling.iterations is 1 or more; got {self.iterations}.")
        if self.clustering == "kmeans" and self.output == "medoid":
            raise ValueError("K-Means has no medoids: output='medoid' goes with clustering='kmedoids'.")

    @property
    def uses_size(self) -> bool:
        # means of unweighted clusters are weighted by size
        return self.carry or self.weights == "size" or (self.weights == "none" and self.output == "mean")

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

    def combine(self, view: BlockView, assignment: Assignment) -> Tensor:
        if self.output == "medoid" and assignment.src is not None:
            assignment = selection(assignment.src, assignment.num_in)
        put_together = pool_at_mean_norm if self.rescale and self.output == "mean" else pool
        return put_together(view.tokens, assignment, prefix=view.prefix)

    def macs(self, step: StepShape) -> int:
        width = step.heads * step.head_dim if self.features == "keys" else step.dim
        if step.keep == 0:
            return 0
        if self.clustering == "kmeans":
            return self.iterations * step.n * step.keep * width
        return (step.n**2 if self.iterations > 1 else (step.n - step.keep) * step.keep) * width

    def spread(self, strength: float, depth: int, n: int) -> tuple[int, ...]:
        return self.equal_ratio(middle_blocks(depth, 4), strength, depth, n)

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
