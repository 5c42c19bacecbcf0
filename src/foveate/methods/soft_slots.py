"""What the methods share whose slots mix all tokens with learned weights: PatchMerger, SiT, Sinkhorn."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from foveate.core import Assignment, mix, soft_slots
from foveate.methods.base import BlockView, Kind, Site, StepShape
from foveate.methods.learned import LearnedMethod


@dataclass(frozen=True)
class SoftSlots(LearnedMethod):
    """Before a block, K slots are formed as mixtures of all n tokens; a learned module computes the weights (B, K, n).

    What it learns belongs to K slots, so a model is reduced and trained for one number of slots per block. Traces and
    dense features show a token in the slot it contributes most to. Heads that average give all slots equal weight.
    """

    seed: int = 0
    """Seed of the module's initial weights."""

    site: ClassVar[Site] = Site.PRE_BLOCK
    kind: ClassVar[Kind] = "learned"
    training_free: ClassVar[bool] = False
    heads_weigh_by_size: ClassVar[bool] = False

    @abstractmethod
    def mixer(self, dim: int, slots: int) -> nn.Module:
        """A module with ``slots`` slots that turns tokens (B, n, dim) into weights (B, slots, n)."""

    def build(self, step: StepShape, block: int) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(1000 * self.seed + block)
            return self.mixer(step.dim, step.keep)

    def assign(self, view: BlockView, keep: int) -> Assignment:
        if view.module is None:
            raise ValueError(f"{self.name} has learned nothing for block {view.block}. Reduce the model again.")
        weights: Tensor = view.module(view.patches)
        if weights.shape[1] != keep:
            raise ValueError(
                f"{self.name} has learned {weights.shape[1]} slots for block {view.block}, but this schedule asks for "
                f"{keep} at this image size. Reduce and train the model for it, or give counts: Keep({{block: count}})."
            )
        return soft_slots(weights)

    def combine(self, view: BlockView, assignment: Assignment) -> Tensor:
        return mix(view.tokens, assignment, prefix=view.prefix)

    def fewest(self, n: int) -> int:
        return min(n, 1)

    def keep_count(self, rate: float, current: int, first: int, stage: int) -> int:
        return min(current, max(1, int(first * rate**stage + 1e-9)))
