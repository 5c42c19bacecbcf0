"""Tensors in, tensors out: independent of models, methods and schedules. Imports only torch."""

from foveate.core.agglomeration import linkage_clusters
from foveate.core.assignment import (
    Assignment,
    Edges,
    compose,
    joined_means,
    partition,
    pool,
    pool_at_mean_norm,
    pool_size,
    selection,
    slot_weights,
    take,
    unpool,
    weighted_means,
)
from foveate.core.attention import (
    attend,
    attend_and_score,
    attend_masked,
    attention_weights,
    key_mask_bias,
    log_size_bias,
    size_strength,
)
from foveate.core.cluster import (
    Clusters,
    cluster_means,
    cluster_medoids,
    first_at_random,
    first_by_score,
    kmeans,
    kmedoids,
)
from foveate.core.match import merge_into, merge_most_similar, merge_most_similar_of, unit_rows
from foveate.core.members import member_means, representatives
from foveate.core.noise import counter_uniform
from foveate.core.scores import class_row, class_value_row
from foveate.core.select import fuse_rest, keep_proportional, keep_random, keep_topk, keep_topk_fuse_rest
from foveate.core.soft import SoftAssignment, mix, soft_slots
from foveate.core.ward import ward_greedy, ward_rounds

__all__ = [
    "Assignment",
    "Clusters",
    "Edges",
    "SoftAssignment",
    "attend",
    "attend_and_score",
    "attend_masked",
    "attention_weights",
    "class_row",
    "class_value_row",
    "cluster_means",
    "cluster_medoids",
    "compose",
    "counter_uniform",
    "first_at_random",
    "first_by_score",
    "fuse_rest",
    "joined_means",
    "keep_proportional",
    "keep_random",
    "keep_topk",
    "keep_topk_fuse_rest",
    "key_mask_bias",
    "kmeans",
    "kmedoids",
    "linkage_clusters",
    "log_size_bias",
    "member_means",
    "merge_into",
    "merge_most_similar",
    "merge_most_similar_of",
    "mix",
    "partition",
    "pool",
    "pool_at_mean_norm",
    "pool_size",
    "representatives",
    "selection",
    "size_strength",
    "slot_weights",
    "soft_slots",
    "take",
    "unit_rows",
    "unpool",
    "ward_greedy",
    "ward_rounds",
    "weighted_means",
]
