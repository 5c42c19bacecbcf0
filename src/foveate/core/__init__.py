"""Tensors in, tensors out. Nothing here knows a model, a method or a schedule; it imports torch alone."""

from foveate.core.assignment import (
    Assignment,
    compose,
    joined_means,
    partition,
    pool,
    pool_size,
    selection,
    slot_weights,
    take,
    unpool,
    weighted_means,
)
from foveate.core.attention import attend, attend_and_score, attention_weights, key_mask_bias, log_size_bias
from foveate.core.match import merge_most_similar
from foveate.core.noise import counter_uniform
from foveate.core.scores import class_row
from foveate.core.select import fuse_rest, keep_proportional, keep_random, keep_topk, keep_topk_fuse_rest

__all__ = [
    "Assignment",
    "attend",
    "attend_and_score",
    "attention_weights",
    "class_row",
    "compose",
    "counter_uniform",
    "fuse_rest",
    "joined_means",
    "keep_proportional",
    "keep_random",
    "keep_topk",
    "keep_topk_fuse_rest",
    "key_mask_bias",
    "log_size_bias",
    "merge_most_similar",
    "partition",
    "pool",
    "pool_size",
    "selection",
    "slot_weights",
    "take",
    "unpool",
    "weighted_means",
]
