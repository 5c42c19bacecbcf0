"""The best mixture of two methods, from the tables that were measured for each alone.

In the models of divergence and cost, blocks add up. A mixture therefore needs no measurements of its own: its table has
the first method's rows before the switch and the second one's from there on, and so have its costs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import permutations
from typing import Any, NamedTuple

from foveate.methods.base import Method
from foveate.methods.mixture import Mixture, can_be_mixed
from foveate.methods.options import method_text

WORTH_MEASURING = 0.8
"""A mixture is measured if its predicted divergence is below this share of the best method's alone: the tables know
nothing of what one method does to the tokens of another, and one more setting to measure and refine takes its time."""


class Mixed(NamedTuple):
    """The best mixture for a budget and the best method alone, as the tables predict them."""

    method: Mixture
    divergence: float
    alone: float  # infinite if no method alone can meet the budget

    @property
    def is_promising(self) -> bool:
        """Whether it is predicted to be better than either method, by a margin."""
        return self.divergence < WORTH_MEASURING * self.alone

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        alone = None if math.isinf(self.alone) else self.alone
        return {
            "method": method_text(self.method),
            "predicted_divergence": self.divergence,
            "predicted_divergence_alone": alone,
            "measured": self.is_promising,
        }


def best_mixture(methods: Sequence[Method], depth: int, predicted: Callable[[Method], float | None]) -> Mixed | None:
    """The best of all ordered pairs of methods and all switches; None if none can meet the budget.

    Args:
        methods: those that have tables.
        depth: number of blocks.
        predicted: divergence of a method's best counts for the budget; None if it cannot meet it.
    """
    alone = [value for method in methods if (value := predicted(method)) is not None]
    pairs = permutations(filter(can_be_mixed, methods), 2)
    mixtures = [Mixture(first, then, switch) for first, then in pairs for switch in range(1, depth)]
    values = [predicted(mixture) for mixture in mixtures]
    reached = [(value, number) for number, value in enumerate(values) if value is not None]
    if not reached:
        return None
    value, number = min(reached)
    return Mixed(mixtures[number], value, min(alone, default=math.inf))
