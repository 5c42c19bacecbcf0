"""How a search goes on: which settings are measured, which are refined, and which one is taken in the end."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any

import torch
from torch import nn

from foveate.adapters import copy_reducible, inspect
from foveate.costs import count, unreduced
from foveate.evaluation.memory import peak_memory
from foveate.evaluation.progress import Progress
from foveate.evaluation.speed import measure_speed
from foveate.methods.base import Method
from foveate.methods.options import method_text
from foveate.reductions import Reduction
from foveate.schedules import Keep
from foveate.tuning.allocation import Allocation, BlockCost, cheapest_within
from foveate.tuning.constraints import Constraints, Goal, UnmetConstraint
from foveate.tuning.damping import best_damped
from foveate.tuning.expenses import Expense, Macs, Seconds
from foveate.tuning.found import Finalist, Found
from foveate.tuning.judging import Judge, Judged
from foveate.tuning.mixing import Mixed, best_mixture
from foveate.tuning.refining import refined
from foveate.tuning.sensitivity import levels_of, sensitivities

TABLE_IMAGES = 64
"""Images for a table of sensitivities: differences between blocks are tenfold, so few are enough."""
BISECTIONS = 7
LEAST_SHARE, MOST_SHARE = 0.05, 0.98
"""Between these shares of the cost, a bisection looks for a budget."""
MARGIN = 0.5
"""Standard errors that a quality must exceed its bound by where settings are chosen, as the best of many is lucky."""
SLOWER, HEAVIER = 0.95, 1.005
"""Times are noisy, and MACs come in steps: so much of a bound is enough."""


@dataclass
class Strategy:
    """The state of a search."""

    model: nn.Module
    constraints: Constraints
    goal: Goal
    methods: Sequence[Method]
    judge: Judge
    trials: int
    batch_size: int
    seed: int
    progress: Progress
    mixtures: bool = True
    tables: dict[str, list[list[float]]] = field(default_factory=dict)
    trials_done: list[tuple[Reduction, Judged]] = field(default_factory=list)
    finalists: list[Finalist] = field(default_factory=list)
    complete: bool = False

    def __post_init__(self) -> None:
        self.shape = inspect(self.model).shape()
        self.exact = not self.shape.head_reads_patches and self.shape.num_prefix > 0
        self.levels = levels_of(self.shape.num_patches)
        self.expense: Expense = Macs(self.shape, self.exact)
        self.times = self.constraints.needs_times or self.goal == "latency"
        self.memory = self.constraints.memory_mib is not None or self.goal == "memory"
        self._peaks: dict[Reduction, float] = {}
        self._costs: dict[Method, BlockCost] = {}
        self._mixed: Mixed | None = None
        self._dampings: dict[Method, Method] = {}

    # -- choosing

    def run(self) -> None:
        """Search until done or interrupted."""
        try:
            if self.times:
                self.progress("times of blocks", 0, None)
                self.expense = Seconds(self.model, self.methods, self.batch_size, self.exact)
                self.progress("times of blocks", 1, 1)
            for method in self.methods:
                table = sensitivities(self.judge, method, self.exact, TABLE_IMAGES, self.progress)
                self.tables[method_text(method)] = table
            if self.constraints.memory_mib is not None:
                self._for_memory(self.constraints.memory_mib)
            elif self.constraints.expense is not None:
                budget = self._budget()
                self._for_budgets([(method, budget) for method in self._with_mixture(budget)])
            else:
                self._for_quality()
            self.complete = True
        except KeyboardInterrupt:
            if not self.trials_done:
                raise

    def _budget(self) -> float:
        """The largest cost that the constraint allows, in units of ``expense``."""
        bounds, whole = self.constraints, self.expense.whole()
        if bounds.macs is not None:
            return bounds.macs * whole
        return bounds.latency_ms / 1000 if bounds.latency_ms is not None else whole / (bounds.speedup or 1.0)

    def _allocated(self, method: Method, budget: float) -> tuple[int, ...] | None:
        found = self._allocation(method, budget)
        return None if found is None else found.counts

    def _allocation(self, method: Method, budget: float) -> Allocation | None:
        """The counts of least predicted divergence; those of a mixture come from the tables of its parts."""
        parts = [method.in_block(block, self.shape.depth) for block in range(self.shape.depth)]
        measured = method_text(method) in self.tables
        tables = [self.tables[method_text(method if measured else part)] for part in parts]
        costs = [self._cost_in_block(part) for part in parts]
        return cheapest_within(
            self.levels,
            [table[block] for block, table in enumerate(tables)],
            lambda block, before, after: costs[block](block, before, after),
            budget - self.expense.fixed(),
            lambda block, before, after: after >= parts[block].fewest(before),
        )

    def _cost_in_block(self, part: Method) -> BlockCost:
        if part not in self._costs:
            self._costs[part] = cache(partial(self.expense.of_block, part))
        return self._costs[part]

    def _with_mixture(self, budget: float) -> Sequence[Method]:
        """The methods, and a mixture of two of them if it is predicted to be better than each alone."""
        if not self.mixtures:
            return self.methods

        def predicted(method: Method) -> float | None:
            found = self._allocation(method, budget)
            return None if found is None else found.divergence

        self.progress("mixtures", 0, None)
        self._mixed = best_mixture(self.methods, self.shape.depth, predicted)
        self.progress("mixtures", 1, 1)
        if self._mixed is None or not self._mixed.is_promising or self._mixed.method in self.methods:
            return self.methods
        return [*self.methods, self._mixed.method]

    def _by_default(self, method: Method, budget: float) -> tuple[int, ...] | None:
        """The method's own default counts (docs/schedules.md) for a budget; None if they cannot meet it."""
        weak, strong, found = 0.0, 1.0, None
        for _ in range(30):
            strength = (weak + strong) / 2
            counts = method.spread(strength, self.shape.depth, self.shape.num_patches)
            if self.expense.total(method, counts, self.shape.num_patches) > budget:
                weak = strength
            else:
                strong, found = strength, counts
        return found

    def _for_budgets(self, budgets: Sequence[tuple[Method, float]]) -> None:
        """Counts of every method for its budget, from its table and by default; the best two are refined."""
        begun = []
        for number, (method, budget) in enumerate(budgets):
            starts = dict.fromkeys((self._allocated(method, budget), self._by_default(method, budget)))
            measured = [(self._measured(method, one).distance, number, one) for one in starts if one is not None]
            begun += sorted(measured)[:1]
        if not begun:
            raise self._out_of_reach()
        for _, number, counts in sorted(begun)[:2]:
            method, budget = budgets[number]
            self._refine(method, counts, budget)

    def _for_memory(self, most: float) -> None:
        """The largest budget of each method whose counts stay below a peak: fewer tokens need less, mostly."""
        shares = [self._largest_share(method, most) for method in self.methods]
        reached = [(method, share) for method, share in zip(self.methods, shares, strict=True) if share is not None]
        self._for_budgets([(method, share * self.expense.whole()) for method, share in reached])

    def _largest_share(self, method: Method, most: float) -> float | None:
        low, high, found = LEAST_SHARE, MOST_SHARE, None
        for done in range(BISECTIONS):
            middle = (low + high) / 2
            counts = self._allocated(method, middle * self.expense.whole())
            if counts is not None and self._peak(self._reduction(method, counts)) <= most:
                low = found = middle
            elif counts is None:
                low = middle  # the method does not reach this far down
            else:
                high = middle
            self.progress(f"memory of {method.name}", done + 1, BISECTIONS)
        return found

    def _for_quality(self) -> None:
        """The smallest budget of each method whose counts keep the quality, then finer counts there."""
        whole = self.expense.whole()
        shares = [self._smallest_share(method) for method in self.methods]
        least = min((share for share in shares if share is not None), default=None)
        methods = self.methods if least is None else self._with_mixture(least * whole)
        shares += [self._smallest_share(method) for method in methods[len(self.methods) :]]
        ends = [(share, number) for number, share in enumerate(shares) if share is not None]
        for share, number in sorted(ends)[:2]:
            method = methods[number]
            for step in (1.0, 0.97, 0.94, 0.91):  # refined counts may keep the quality at a smaller budget
                counts = self._allocated(method, share * step * whole)
                if counts is None or not self._keeps(self._refine(method, counts, share * step * whole)):
                    break

    def _smallest_share(self, method: Method) -> float | None:
        """By bisection; None if even a small reduction changes too much."""
        low, high, found = LEAST_SHARE, MOST_SHARE, None
        for done in range(BISECTIONS):
            middle = (low + high) / 2
            counts = self._allocated(method, middle * self.expense.whole())
            if counts is not None and self._keeps(self._measured(method, counts)):
                high = found = middle
            else:
                low = middle
            self.progress(f"budget of {method.name}", done + 1, BISECTIONS)
        return found

    def _keeps(self, judged: Judged) -> bool:
        bound = self.constraints.least_quality
        assert bound is not None
        return judged.quality >= min(1.0, bound + MARGIN * judged.standard_error)

    def _measured(self, method: Method, counts: tuple[int, ...]) -> Judged:
        reduction = self._reduction(method, counts)
        judged = self.judge.judge(reduction)
        self.trials_done.append((reduction, judged))
        return judged

    def _refine(self, method: Method, counts: tuple[int, ...], budget: float) -> Judged:
        patches = self.shape.num_patches
        method = self._damped(method, counts)
        best, _ = refined(
            counts,
            patches,
            method,
            lambda tried: self.expense.total(method, tried, patches),
            budget,
            lambda tried: self.judge.judge(self._reduction(method, tried)).distance,
            self.trials,
            self.seed,
            lambda done, lowest: self.progress(f"refining {method.name}", done, self.trials, f"distance {lowest:.4f}"),
            lambda tried: self.judge.judge(self._reduction(method, tried), TABLE_IMAGES).distance,
        )
        return self._measured(method, best)

    def _damped(self, method: Method, counts: tuple[int, ...]) -> Method:
        """The method with the ``size_damping`` that is best at these counts; it stays for later ones of this search."""
        if method not in self._dampings:
            self._dampings[method] = best_damped(method, lambda one: self._measured(one, counts).distance)
        return self._dampings[method]

    def _reduction(self, method: Method, counts: tuple[int, ...]) -> Reduction:
        return Reduction(method, Keep(list(counts)), exact_last_block=self.exact)

    # -- what a setting costs

    def _cost(self, reduction: Reduction) -> float:
        assert reduction.method is not None
        return self.expense.total(reduction.method, reduction.plan(self.shape).counts, self.shape.num_patches)

    def _macs(self, reduction: Reduction) -> float:
        """Share of the MACs; of a dense model, of its encoder's, as in a budget."""
        whole = count(self.shape, unreduced(self.shape), None, 0).macs
        return count(self.shape, reduction.plan(self.shape), reduction.method, 0).macs / whole

    def _peak(self, reduction: Reduction) -> float:
        if reduction not in self._peaks:
            reference, size = next(self.model.parameters()), inspect(self.model).image_size
            images = torch.zeros(self.batch_size, *size, device=reference.device, dtype=reference.dtype)
            peak = peak_memory(reduction.apply_(copy_reducible(self.model)), images)
            if peak is None:
                raise ValueError(f"Memory is measured on CPUs and CUDA devices, not on {reference.device.type}.")
            self._peaks[reduction] = peak
        return self._peaks[reduction]

    def _out_of_reach(self) -> UnmetConstraint:
        """The error if there is no setting to judge; for a bound on memory with the nearest."""
        said = f"No method reaches {self.constraints} on this model."
        if self._peaks:
            least, peak = min(self._peaks.items(), key=lambda one: one[1])
            said += f" The nearest: {peak:.1f} MiB with {least}; unreduced {self._peak(Reduction()):.1f} MiB."
        return UnmetConstraint(said)

    # -- finalists

    def finish(self, judge: Judge, seconds: float) -> None:
        """Judge the most promising settings by other images, and time them or weigh them if that is what counts."""
        promising = self._promising()
        for done, (reduction, calibrated) in enumerate(promising):
            self.progress("finalists", done, len(promising))
            speed = predicted = None
            if self.times:
                predicted, speed = self.expense.whole() / self._cost(reduction), self._speed(reduction, seconds)
            peak = self._peak(reduction) if self.memory else None
            judged = judge.judge(reduction)
            self.finalists.append(
                Finalist(reduction, self._macs(reduction), calibrated, judged, predicted, speed, peak)
            )
        if self.constraints.expense is None and self.goal != "macs":
            self.finalists.sort(key=lambda one: (one.memory_mib or 0.0) if self.memory else -(one.speedup or 0.0))
        self.progress("finalists", len(promising), len(promising))

    def _speed(self, reduction: Reduction, seconds: float) -> float:
        return measure_speed(self.model, reduction, batch_size=self.batch_size, seconds=seconds).speed_up

    def _promising(self) -> list[tuple[Reduction, Judged]]:
        """The best, and gentler ones to fall back on where a bound may turn out not to be met."""
        done = list(dict(self.trials_done).items())  # each setting once
        if self.constraints.expense is not None:
            number = 4 if self.memory else 2  # refined counts may need more memory than those they began with
            return sorted(done, key=lambda one: one[1].distance)[:number]
        keeping = [one for one in done if self._keeps(one[1])]
        by_cost = sorted(keeping, key=lambda one: self._cost(one[0]))
        return by_cost[:4] or sorted(done, key=lambda one: -one[1].quality)[:1]

    def found(self, started: float, seconds: float) -> Found:
        """The first finalist that meets the constraint, timed for ``seconds``; the search ``started`` then.

        Raises:
            UnmetConstraint: if none does and the search was complete.
        """
        if not self.finalists:
            raise self._out_of_reach()
        meeting = [one for one in self.finalists if self._meets(one)]
        first = (meeting or self.finalists)[0]
        self.progress("speed", 0, None)
        speed = first.speedup if self.times else self._speed(first.reduction, seconds)
        best = replace(first, speedup=speed)
        order = (best, *(one for one in self.finalists if one is not first))
        details = self._details(time.monotonic() - started)
        result = Found(best.reduction, self.constraints, best, order, bool(meeting), self.complete, details)
        if not meeting and self.complete:
            raise UnmetConstraint(f"Nothing that was searched meets {self.constraints}. The nearest: {result}.")
        return result

    def _details(self, seconds: float) -> dict[str, Any]:
        found: dict[str, Any] = {
            "optimized": self.goal if self.constraints.expense is None else "quality",
            "seed": self.seed,
            "seconds": round(seconds, 1),
            "calibration_images": len(self.judge.images),
            "levels": list(self.levels),
            "sensitivities": self.tables,
            "mixture": None if self._mixed is None else self._mixed.as_dict(),
            "measured": [
                {"reduction": r.text, "quality": j.quality, "divergence": j.divergence, "distance": j.distance}
                for r, j in self.trials_done
            ],
        }
        return found | ({"unreduced_memory_mib": self._peak(Reduction())} if self.memory else {})

    def _meets(self, one: Finalist) -> bool:
        bounds = self.constraints
        least = bounds.least_quality
        if least is not None and one.judged.quality < least - one.judged.standard_error:
            return False
        if bounds.macs is not None:
            return one.macs <= bounds.macs * HEAVIER
        if bounds.memory_mib is not None:
            return one.memory_mib is not None and one.memory_mib <= bounds.memory_mib
        return one.speedup is None or self._fast_enough(one.speedup)

    def _fast_enough(self, speedup: float) -> bool:
        if self.constraints.speedup is not None:
            return speedup >= SLOWER * self.constraints.speedup
        longest = self.constraints.latency_ms
        return longest is None or self.expense.whole() / speedup <= longest / 1000 / SLOWER
