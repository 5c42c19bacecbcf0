"""The upper limit of speed: tokens are cut off without looking at them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from foveate.core import Assignment, selection
from foveate.methods.base import BlockView, Kind, Method, Site
from foveate.methods.registry import register


@register
@dataclass(frozen=True)
class FreeSlice(Method):
    """Keep the first tokens and cut the rest off.

    Useless for accuracy. No method with the same counts can be faster in the same runtime.
    """

    site: Site = Site.POST_ATTN  # type: ignore[misc]
    """Where to cut: the site of the method it is compared with."""

    kind: ClassVar[Kind] = "select"
    training_free: ClassVar[bool] = False

    def assign(self, view: BlockView, keep: int) -> Assignment:
        batch, n, _ = view.patches.shape
        return selection(torch.arange(keep, device=view.tokens.device).expand(batch, keep), n)

    def combine(self, view: BlockView, assignment: Assignment) -> Tensor:
        return view.tokens[:, : view.prefix + assignment.num_out]


def speed_limit_of(method: Method) -> Method:
    """The method that cuts tokens off blindly to the same counts: the upper limit of ``method``'s speed."""
    return method.free_slice() or FreeSlice(site=method.site)
