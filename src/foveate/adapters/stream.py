"""What passes between the blocks of a reduced model, and how features go back to the patches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from foveate.adapters.positions import Positions
from foveate.core import Assignment, unpool


class Stream(NamedTuple):
    """The tokens between two blocks."""

    tokens: Tensor  # (B, P + N, C)
    size: Tensor | None = None  # (B, N) patches each token stands for; None while every token is one patch
    bias: Tensor | None = None  # (B, 1, 1, P + N) log size for attention; None unless attention is proportional
    counted: Tensor | None = None  # (B, N) patches each token counts for in attention; None while all count for one
    keep: Tensor | None = None  # (B, N) tokens that still count, if training masks them; None if all do
    positions: Positions | None = None  # where patch tokens are, if blocks read that


class Step(NamedTuple):
    """One reduction: what went where, and the patch tokens before and after."""

    assignment: Assignment
    before: Tensor  # (B, N, C)
    after: Tensor  # (B, N', C)


class BlockOutput(NamedTuple):
    stream: Stream
    step: Step | None = None  # what was done to the tokens
    key_step: Step | None = None  # what was done to keys and values only
    unmerged: bool = False  # every patch has its own token again


@dataclass(frozen=True)
class Encoded:
    """Tokens after the last block, before the final norm, and what each block did."""

    embedded: Tensor  # (B, P + N, C) tokens that entered the first block
    stream: Stream
    blocks: tuple[BlockOutput, ...]  # empty unless recorded
    own_residual: bool = False  # whether features spread to patches keep what each patch had of its own


def spread(patches: Tensor, steps: Sequence[Step], own_residual: bool = False) -> Tensor:
    """Spread the features of reduced tokens back over ``steps``, to every patch before the first step.

    A token that was dropped keeps the features it had then. With ``own_residual`` a merged token gets what its slot has
    gained since the merge on top of its own features: ``before + (now - after)`` instead of ``now``.
    """
    for step in reversed(steps):
        if own_residual:
            patches = step.before + unpool(patches - step.after, step.assignment)
        else:
            patches = unpool(patches, step.assignment, fill=step.before)
    return patches


def spread_to_patches(encoded: Encoded, block: int, prefix: int) -> tuple[Tensor, Tensor]:
    """Features after ``block`` for every patch, (B, N, C), and the prefix tokens.

    A patch whose token was dropped keeps the features that the token had at that point.
    """
    tokens = encoded.blocks[block].stream.tokens
    steps = merged_steps(encoded.blocks[: block + 1])
    left = steps[-1].assignment.num_out if steps else encoded.embedded.shape[1] - prefix
    if left != tokens.shape[1] - prefix:
        raise ValueError(
            f"Block {block} returns prefix tokens only (exact_last_block=True), so it has no dense features. "
            "Choose an earlier block, or reduce without exact_last_block."
        )
    return spread(tokens[:, prefix:], steps, encoded.own_residual), tokens[:, :prefix]


def merged_steps(outputs: Sequence[BlockOutput]) -> list[Step]:
    """The reductions that still hold after the last of ``outputs``."""
    steps: list[Step] = []
    for output in outputs:
        steps += [] if output.step is None else [output.step]
        steps = [] if output.unmerged else steps
    return steps
