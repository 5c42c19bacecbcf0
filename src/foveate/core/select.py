"""Choose tokens to keep: by score, at random, or at random in proportion to a score."""

from __future__ import annotations

import torch
from torch import Tensor

from foveate.core.assignment import Assignment, partition, selection, weighted_means
from foveate.core.graphs import largest, largest_by_position
from foveate.core.noise import counter_uniform


def keep_topk(score: Tensor, k: int) -> Assignment:
    """Keep the k best tokens of ``score`` (B, N), in their original order."""
    _check_k("keep_topk", k, score.shape[1])
    return selection(largest_by_position(score, k), score.shape[1])


def keep_topk_fuse_rest(score: Tensor, k: int, normalize: bool = False) -> Assignment:
    """Keep the k best tokens of ``score`` (B, N) and fuse the others into slot k, weighted by their score."""
    _check_k("keep_topk_fuse_rest", k, score.shape[1])
    return fuse_rest(largest(score, k), score, normalize)


def fuse_rest(kept: Tensor, weight: Tensor, normalize: bool = False) -> Assignment:
    """Keep the tokens ``kept`` (B, K), in their original order, and fuse all others into slot K: K + 1 slots.

    x_fused = sum over fused i of weight_i x_i, with weights (B, N) scaled to sum to 1 if ``normalize``. Works with
    any selection: ``fuse_rest(keep_random(...).src, weight)``.
    """
    k = kept.shape[1]
    # 1, not True: a traced graph has no scatter of a bool
    is_kept = torch.zeros(weight.shape, dtype=torch.bool, device=weight.device).scatter(1, kept, 1)
    owner = torch.where(is_kept, is_kept.cumsum(1) - 1, k)
    edge = torch.where(is_kept, 1.0, weight.float())
    if not normalize:
        return partition(owner, k + 1, edge)
    # if all weights are zero, dividing by their sum fails: the slot becomes a plain mean
    return weighted_means(owner, k + 1, edge.clamp(min=torch.finfo(torch.float32).tiny))


def keep_random(batch: int, n: int, k: int, seed: int, stream: int, device: torch.device | None = None) -> Assignment:
    """Keep k tokens drawn without replacement; one draw for the whole batch, fixed by ``seed`` and ``stream``."""
    return keep_topk(counter_uniform(n, seed, stream, device).expand(batch, n), k)


def keep_proportional(score: Tensor, k: int, seed: int, stream: int) -> Assignment:
    """Keep k tokens drawn without replacement with chances in proportion to ``score`` (B, N) >= 0.

    Perturbed top-k: log score_i + g_i with g_i = -log(-log u_i) (Gumbel); its k largest are such a sample. The
    noise u is shared by all images, so an image's draw depends only on its own scores.
    """
    u = counter_uniform(score.shape[1], seed, stream, score.device)
    return keep_topk(score.log() - (-u.log()).log(), k)


def _check_k(name: str, k: int, n: int) -> None:
    if not 0 <= k <= n:
        raise ValueError(f"{name} needs 0 <= k <= {n} (tokens available), got k={k}.")
