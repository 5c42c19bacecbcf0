"""Importance sampling of tokens, a baseline of Token Pooling (Marin et al.)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from foveate.core import Assignment, keep_proportional
from foveate.methods.base import BlockView, Kind, Method, Need, Site
from foveate.methods.registry import register


@register
@dataclass(frozen=True)
class ImportanceSelect(Method):
    """Keep tokens drawn without replacement, in proportion to the attention they receive.

    Significance s_j is the attention to j, summed over heads and queries. The draw takes the k largest of
    log s_j + g_j with Gumbel noise g, which samples without replacement with chances in proportion to s. The noise is
    fixed by the seed and shared by all images, so an image's draw depends only on its own scores.
    """

    seed: int = 0
    """Seed of the noise."""

    site: ClassVar[Site] = Site.POST_ATTN
    kind: ClassVar[Kind] = "select"

    def needs(self, has_cls: bool) -> frozenset[Need]:
        return frozenset({"attn_received"})

    def assign(self, view: BlockView, keep: int) -> Assignment:
        return keep_proportional(view.attn_received, keep, self.seed, view.block)
