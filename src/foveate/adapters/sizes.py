"""What a reduction does to the sizes of tokens: how many patches each stands for, and counts for in attention."""

from __future__ import annotations

import torch
from torch import Tensor

from foveate.core import Assignment, pool_size


def size_after(size: Tensor | None, assignment: Assignment, tokens: Tensor) -> Tensor | None:
    """Patches that each slot stands for; None if all are one."""
    if assignment.sizes is not None:
        return assignment.sizes
    if size is None and assignment.selects:
        return None  # a selection of single patches: every size is still 1
    if size is None:
        size = torch.ones(tokens.shape[0], assignment.num_in, device=tokens.device)
    return pool_size(size, assignment)


def counted_after(counted: Tensor | None, assignment: Assignment, tokens: Tensor, adds: bool) -> Tensor | None:
    """What a slot counts for in attention: its members' counts added, or their mean if the method does not add."""
    if counted is None and (assignment.selects or not adds):
        return None
    ones = torch.ones(tokens.shape[0], assignment.num_in, device=tokens.device)
    total = pool_size(ones if counted is None else counted, assignment)
    return total if adds else total / pool_size(ones, assignment).clamp_min(1e-9)
