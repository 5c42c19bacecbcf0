"""What the tokens of a slot have in common: one that represents them, a mean over them."""

from __future__ import annotations

import torch
from torch import Tensor

from foveate.core.assignment import Assignment, edge_shares, take
from foveate.core.graphs import add_into_slots, max_into_slots, min_into_slots


def representatives(a: Assignment, batch: int, device: torch.device | None = None) -> Tensor:
    """(B, num_out) the token with the most weight in each slot; of equal ones, the first."""
    if a.selects and a.src is not None:
        return a.src
    src, dst, weight, present = a.edges(batch, device)
    weight = weight.masked_fill(~present, -torch.inf)
    most = max_into_slots(weight, dst, a.num_out, -torch.inf)
    heaviest = torch.where(present & (weight == most.gather(1, dst)), src, a.num_in)
    first = min_into_slots(heaviest, dst, a.num_out, a.num_in)
    return first.clamp(max=a.num_in - 1)  # a slot without edges, as of windows beyond the last token


def member_means(values: Tensor, a: Assignment, size: Tensor | None) -> Tensor:
    """(B, num_out, D) mean of ``values`` (B, N, D) over the patches of each slot, whatever the edges' weights.

    Args:
        values: one row per token.
        a: the assignment.
        size: (B, N) patches that each token stands for; None if all stand for one.
    """
    if a.selects and a.src is not None:
        return take(values, a.src)
    batch, n, _ = values.shape
    size = torch.ones(batch, n, device=values.device, dtype=values.dtype) if size is None else size
    edges = a.edges(batch, values.device)
    part = (size.gather(1, edges.src) * edge_shares(edges, a.num_in)).unsqueeze(-1)
    total = add_into_slots(part, edges.dst, a.num_out)
    return add_into_slots(take(values, edges.src) * part, edges.dst, a.num_out) / total.clamp_min(1e-9)
