"""How much an output suffers if one block alone reduces its tokens: the table from which counts are chosen."""

from __future__ import annotations

from collections.abc import Sequence

from foveate.adapters import inspect
from foveate.evaluation.progress import Progress, silent
from foveate.methods.base import Method
from foveate.reductions import Reduction
from foveate.schedules import Keep
from foveate.tuning.judging import Judge

SHARES = (0.85, 0.7, 0.55, 0.42, 0.3, 0.2, 0.13, 0.08)
"""Shares of the patches that are levels of the table, beside all of them."""
MEASURED = (0.7, 0.42, 0.2)
"""Levels that are measured in every block; the others are interpolated."""


def levels_of(patches: int) -> tuple[int, ...]:
    """Numbers of tokens, falling from all patches."""
    return tuple(sorted({patches, *(max(1, round(share * patches)) for share in SHARES)}, reverse=True))


def sensitivities(
    judge: Judge, method: Method, exact_last_block: bool, images: int, progress: Progress = silent
) -> list[list[float]]:
    """Divergence by block and level if that block alone reduces; rises along every row.

    Args:
        judge: the unreduced model.
        method: the method.
        exact_last_block: as in ``Reduction``.
        images: how many images to measure on.
        progress: called after every measurement.
    """
    family = inspect(judge.model)
    patches, depth = family.shape().num_patches, len(family.blocks)
    levels = levels_of(patches)
    table, done = [], 0
    for block in range(depth):
        known, own = {0.0: 0.0}, method.in_block(block, depth)  # alone, a block of a mixture is one of its part
        for share in MEASURED:
            keep = _reachable(own, patches, round(share * patches))
            last = exact_last_block and block == depth - 1
            if not last:
                reduction = Reduction(own, Keep({block: keep}), exact_last_block=exact_last_block)
                known[1 - keep / patches] = judge.judge(reduction, images).divergence
            done += 1
            progress(f"sensitivity of {method.name}", done, depth * len(MEASURED))
        table.append(_interpolated(known, [1 - level / patches for level in levels]))
    return table


def _reachable(method: Method, patches: int, wanted: int) -> int:
    return max(1, method.fewest(patches), min(wanted, patches - 1))


def _interpolated(known: dict[float, float], removed: Sequence[float]) -> list[float]:
    """Divergence at every removed share: through the measured points, as a power law beyond the last; never falling."""
    points = sorted(known.items())
    values: list[float] = []
    for share in removed:
        below = max((p for p in points if p[0] <= share), default=points[0])
        above = min((p for p in points if p[0] >= share), default=None)
        if above is None:
            value = _beyond(points, share)
        elif above[0] == below[0]:
            value = above[1]
        else:
            weight = (share - below[0]) / (above[0] - below[0])
            value = below[1] + weight * (above[1] - below[1])
        values.append(max(value, values[-1] if values else 0.0))
    return values


def _beyond(points: Sequence[tuple[float, float]], share: float) -> float:
    """What is left falls, so divergence grows with the inverse of what is kept."""
    last, value = points[-1]
    return value * (1 - last) / max(1 - share, 1e-3)
