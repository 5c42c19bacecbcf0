"""Random selection, the baseline that every score has to beat."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from foveate.core import Assignment, keep_random
from foveate.methods.base import BlockView, Kind, Method, Site
from foveate.methods.registry import register


@register
@dataclass(frozen=True)
class RandomSelect(Method):
    """Keep tokens drawn at random without replacement.

    One draw per block, shared by all images and fixed by the seed. An image's result does not depend on its batch, on
    earlier calls, or on the device.
    """

    seed: int = 0
    """Seed of the draw."""

    site: ClassVar[Site] = Site.POST_ATTN
    kind: ClassVar[Kind] = "select"
    baseline: ClassVar[bool] = True

    def assign(self, view: BlockView, keep: int) -> Assignment:
        batch, n, _ = view.patches.shape
        return keep_random(batch, n, keep, self.seed, view.block, view.tokens.device)
