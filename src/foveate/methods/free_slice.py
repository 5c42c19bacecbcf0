"""The limit that speed is measured against: tokens cut off with no thought at all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from foveate.core import Assignment, selection
from foveate.methods.base import BlockView, Method, Site, register


@register("free-slice", "Free slice", "select")
@dataclass(frozen=True)
class FreeSlice(Method):
    """Keep the first tokens and cut the rest off.

    Useless for accuracy, and the fastest any method with the same counts can be in a given runtime.
    """

    site: Site = Site.POST_ATTN  # type: ignore[misc]
    """Where to cut: the site of the method it is compared with."""

    training_free: ClassVar[bool] = False

    def assign(self, view: BlockView, keep: int) -> Assignment:
        batch, n, _ = view.patches.shape
        return selection(torch.arange(keep, device=view.tokens.device).expand(batch, keep), n)

    def combine(self, view: BlockView, assignment: Assignment) -> Tensor:
        return view.tokens[:, : view.prefix + assignment.num_out]
