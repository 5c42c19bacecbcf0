"""Ward's agglomeration weighted by attention: a method of this library for pretrained models, without training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from foveate.core import Assignment, cluster_means, keep_topk, pool, pool_at_mean_norm, ward_greedy, ward_rounds
from foveate.core.member_sums import merge_alternating, merges_in_graph
from foveate.core.ward import merges_by_round, ward_costs
from foveate.methods.base import BlockView, Kind, Method, Need, Site, StepShape
from foveate.methods.registry import register


@register
@dataclass(frozen=True)
class Ward(Method):
    """Merge the tokens whose merge loses the least of what the model attends to.

    Merging i and j costs w_i w_j / (w_i + w_j) |x_i - x_j|^2 (Ward's criterion) on the residual stream between
    attention and MLP. The weight w is the attention a token receives from all queries, summed over heads. On a model
    with a class token it is the geometric mean of that and the class token's attention. A merged token is the mean of
    its members weighted by w, scaled to their mean norm, and later attention adds log(size).

    Relatives: agglomerative token clustering (``ATC``, Haurum et al., ECCV 2024) merges tokens of a ViT by average,
    complete or single linkage of cosine distances, and sentence-transformers pools the final tokens of retrieval models
    by Ward's criterion. What is this library's own: the attention weights, the log-size in later attention, merging in
    rounds instead of one pair at a time, and where in the model it happens.
    """

    search: Literal["rounds", "greedy"] = "rounds"
    """How to find merges: in a few rounds between alternating halves, or one by one, which is exact and slow."""
    rounds: int = 3
    """Number of rounds over which merges are spread; more are used if a round would merge more than half."""
    proportional_attention: bool = True
    """Add log(size) to attention logits, so that a merged token weighs as much as its members."""
    size_damping: float = 0.0
    """How much less log(size) counts the fewer patches are left: times 1 - size_damping log(1 / s), with s the share of
    patches that enter a block, mean over blocks. It brings a classifier of photographs closer to
    the unreduced model, and takes a model that counts away from it; ``fv.search`` chooses it on your images."""
    rescale: bool = True
    """Scale a merged token, which is shorter than its members, to their mean norm."""

    site: ClassVar[Site] = Site.POST_ATTN
    kind: ClassVar[Kind] = "merge"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rounds < 1:
            raise ValueError(f"Ward.rounds must be at least 1, got {self.rounds}.")

    def needs(self, has_cls: bool) -> frozenset[Need]:
        return frozenset({"attn_received", "cls_attn"}) if has_cls else frozenset({"attn_received"})

    def reduce(self, view: BlockView, keep: int) -> tuple[Assignment, Tensor]:
        n = view.patches.shape[1]
        if self.search == "greedy" or keep == 0 or not merges_in_graph(n):
            return super().reduce(view, keep)
        plan = merges_by_round(n, keep, self.rounds)
        return merge_alternating(view.tokens, view.prefix, plan, _weight(view), view.size, self.rescale)

    def assign(self, view: BlockView, keep: int) -> Assignment:
        if keep == 0:
            return keep_topk(view.attn_received, 0)
        weight = _weight(view)
        if self.search == "greedy":
            clusters = ward_greedy(view.patches, keep, weight)
        else:
            clusters = ward_rounds(view.patches, keep, weight, self.rounds)
        return cluster_means(clusters, view.size, weight)

    def combine(self, view: BlockView, assignment: Assignment) -> Tensor:
        pooling = pool_at_mean_norm if self.rescale else pool
        return pooling(view.tokens, assignment, prefix=view.prefix)

    def removal_costs(self, view: BlockView) -> Tensor:
        """The cost of each proposal of a first round, relative to the mean weight."""
        weight = _weight(view)
        return ward_costs(view.patches, weight / weight.mean(dim=1, keepdim=True))

    def removal_macs(self, step: StepShape) -> int:
        return (step.n - step.n // 2) * (step.n // 2) * step.dim

    def macs(self, step: StepShape) -> int:
        if step.keep == 0:
            return 0
        if self.search == "greedy":
            return step.n**2 * step.dim
        total, n = 0, step.n
        for merges in merges_by_round(step.n, step.keep, self.rounds):
            total += (n - n // 2) * (n // 2) * step.dim
            n -= merges
        return total


def _weight(view: BlockView) -> Tensor:
    """How much the model attends to each token, (B, N)."""
    weight = view.attn_received.detach()
    return (weight * view.cls_attn.detach()).sqrt() if view.has_cls else weight
