"""What a block costs with some number of tokens: in multiply-accumulates, or in seconds on this machine."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from statistics import median

import torch
from torch import Tensor, nn

from foveate.adapters import copy_reducible, inspect
from foveate.costs import ModelShape, Plan, block_macs, count, unreduced
from foveate.evaluation.timing import interleave, timer
from foveate.methods import FreeSlice
from foveate.methods.base import Method
from foveate.reductions import Reduction
from foveate.schedules import Keep
from foveate.tuning.damping import at_default

WHOLE, EXACT, FEW = "unreduced", "exact last block", "exact last block, few tokens"
"""Models that are timed beside those of each method."""


class Expense(ABC):
    """A cost that is a sum over blocks."""

    @abstractmethod
    def of_block(self, method: Method, block: int, before: int, after: int) -> float:
        """Cost of ``block`` if it reduces ``before`` patch tokens to ``after``."""

    @abstractmethod
    def fixed(self) -> float:
        """Cost of everything but the blocks."""

    @abstractmethod
    def whole(self) -> float:
        """Cost of the unreduced model."""

    def total(self, method: Method, counts: Sequence[int], patches: int) -> float:
        """Cost of the model with ``counts`` patch tokens after each block."""
        before = (patches, *counts[:-1])
        steps = zip(before, counts, strict=True)
        return self.fixed() + sum(self.of_block(method, block, *step) for block, step in enumerate(steps))


class Macs(Expense):
    """Multiply-accumulates of one image."""

    def __init__(self, shape: ModelShape, exact_last_block: bool) -> None:
        self.shape, self.exact = shape, exact_last_block

    def of_block(self, method: Method, block: int, before: int, after: int) -> float:
        depth, n = self.shape.depth, self.shape.num_patches
        plan = Plan(method.sites(depth), n, (before,) * block + (after,) * (depth - block), self.exact)
        if block == 0 and before != n:
            plan = replace(plan, num_patches=before)
        return float(sum(block_macs(self.shape, self.shape.blocks[block], plan, method, block)))

    def fixed(self) -> float:
        return float(self.shape.num_patches * self.shape.stem_macs_per_patch + self.shape.head_macs)

    def whole(self) -> float:
        return float(count(self.shape, unreduced(self.shape), None, 0).macs)


class Seconds(Expense):
    """Seconds of one batch on this machine, fitted to a few whole models that take turns with the unreduced one.

    A model that drops tokens in block 0 without choosing shows what blocks cost with fewer tokens; with n tokens before
    and m after a reduction, block b takes

        t_b = u (a n + (1 - a) m) + v n^2,    a the share of attention in the linear layers,

    beside a constant for everything else. What a method takes beyond that, at several schedules, is its own time: a sum
    over its sites of w . (1, n, n^2, n - m). Single blocks are not timed by themselves: their weights would stay in the
    cache, and batches of one would look cheaper than they are.
    """

    SHARES = (0.75, 0.5, 0.3, 0.15)
    """Shares of the patches at which blocks are timed."""
    ATTENTION = 1 / 3
    """Share of a block's linear layers in attention: 4 of 12 squares of the width."""

    def __init__(
        self, model: nn.Module, methods: Sequence[Method], batch_size: int, exact_last_block: bool, rounds: int = 9
    ) -> None:
        family = inspect(model)
        self.model, self.patches, self.depth = model, family.shape().num_patches, len(family.blocks)
        self.images = self._some_images(batch_size)
        inside = [method.in_block(block, self.depth) for method in methods for block in range(self.depth)]
        parts = dict.fromkeys(map(at_default, inside))
        schedules = {method: _schedules(method, self.depth, self.patches) for method in parts}
        dropped = [{0: max(1, round(share * self.patches))} for share in self.SHARES]
        runs: dict[Hashable, nn.Module] = {WHOLE: model}
        for method, kept in [(FreeSlice(), dropped), *schedules.items()]:
            runs |= {(method, number): self._reduced(method, counts) for number, counts in enumerate(kept)}
        if exact_last_block:
            runs |= {EXACT: self._reduced(None, {}), FEW: self._reduced(None, dropped[-1])}
        seconds = self._timed(runs, rounds)
        self._whole = seconds[WHOLE]
        times = [self._whole, *(seconds[FreeSlice(), number] for number in range(len(dropped)))]
        self._blocks = self._fitted(times, [{}, *dropped])
        self._rest = self._whole - self._of_blocks((self.patches,) * self.depth)
        self._own = {
            method: self._fitted_method(kept, [seconds[method, number] for number in range(len(kept))])
            for method, kept in schedules.items()
        }
        self._last = self._fitted_last(seconds, dropped[-1]) if exact_last_block else None

    def of_block(self, method: Method, block: int, before: int, after: int) -> float:
        if self._last is not None and block == self.depth - 1:
            base, slope = self._last  # keys and values of all tokens, queries of the prefix only
            return max(0.0, base + slope * before)
        blocks, own = float(self._blocks @ self._features_of_block(before, after)), method.in_block(block, self.depth)
        return blocks + (self._own_time(own, before, after) if after < before else 0.0)

    def fixed(self) -> float:
        return self._rest

    def whole(self) -> float:
        return self._whole

    def _own_time(self, method: Method, before: int, after: int) -> float:
        return max(0.0, float(_site_features(before, after) @ self._own[at_default(method)]))

    def _some_images(self, batch_size: int) -> Tensor:
        reference = next(self.model.parameters())
        shape = (batch_size, *inspect(self.model).image_size)
        return torch.zeros(shape, device=reference.device, dtype=reference.dtype)

    def _reduced(self, method: Method | None, counts: dict[int, int]) -> nn.Module:
        """The model with these counts; without a method, tokens are dropped and the last block is exact."""
        if method is None and not counts:
            return Reduction(exact_last_block=True).apply_(copy_reducible(self.model))
        reduction = Reduction(method or FreeSlice(), Keep(counts), exact_last_block=method is None)
        return reduction.apply_(copy_reducible(self.model))

    def _timed(self, models: Mapping[Hashable, nn.Module], rounds: int) -> dict[Hashable, float]:
        """Seconds of each model, from its ratio to the unreduced model in the same round."""
        names = {str(number): key for number, key in enumerate(models)}
        timers = {number: timer(models[key], self.images) for number, key in names.items()}
        with torch.inference_mode():
            interleave(timers, 1)
            found = interleave(timers, rounds)
        whole = next(number for number, key in names.items() if key == WHOLE)
        base = median(one[whole] for one in found)
        return {key: base * median(one[number] / one[whole] for one in found) for number, key in names.items()}

    def _features_of_block(self, before: int, after: int) -> Tensor:
        linear = self.ATTENTION * before + (1 - self.ATTENTION) * after
        return torch.tensor([linear, before * before], dtype=torch.float64)

    def _after(self, counts: dict[int, int]) -> tuple[int, ...]:
        """Patch tokens after each block."""
        found, current = [], self.patches
        for block in range(self.depth):
            current = counts.get(block, current)
            found.append(current)
        return tuple(found)

    def _of_blocks(self, counts: Sequence[int]) -> float:
        return float(self._blocks @ self._block_features(counts))

    def _block_features(self, counts: Sequence[int]) -> Tensor:
        steps = zip((self.patches, *counts[:-1]), counts, strict=True)
        return torch.stack([self._features_of_block(*step) for step in steps]).sum(dim=0)

    def _fitted(self, seconds: Sequence[float], dropped: Sequence[dict[int, int]]) -> Tensor:
        """u and v, neither below zero, beside a constant; relative errors weigh alike."""
        rows = [self._block_features(self._after(counts)) for counts in dropped]
        times = torch.tensor(seconds, dtype=torch.float64)
        features = torch.stack([torch.cat([torch.ones(1, dtype=torch.float64), row]) for row in rows])
        for columns in ((0, 1, 2), (0, 1), (0, 2)):
            chosen = features[:, columns] / times.unsqueeze(1)
            scale = chosen.abs().amax(dim=0)
            found = torch.linalg.lstsq(chosen / scale, torch.ones(len(rows), 1, dtype=torch.float64)).solution
            solved = torch.zeros(3, dtype=torch.float64)
            solved[list(columns)] = found.squeeze(1) / scale
            if bool((solved[1:] >= 0).all()):
                return solved[1:]
        return torch.zeros(2, dtype=torch.float64)

    def _fitted_last(self, seconds: Mapping[Hashable, float], few: dict[int, int]) -> tuple[float, float]:
        """Seconds of the exact last block: a constant, and a factor of its tokens."""
        counts = {EXACT: (self.patches,) * self.depth, FEW: self._after(few)}
        full, less = (seconds[key] - self._rest - self._of_blocks(counts[key][:-1]) for key in (EXACT, FEW))
        slope = (full - less) / max(1, self.patches - counts[FEW][-1])
        return full - slope * self.patches, slope

    def _fitted_method(self, schedules: Sequence[dict[int, int]], seconds: Sequence[float]) -> Tensor:
        """Weights of a site's features, from what the models with this method take beyond their blocks."""
        rows, own = [], []
        for kept, taken in zip(schedules, seconds, strict=True):
            counts = self._after(kept)
            sites = [(n, m) for n, m in zip((self.patches, *counts[:-1]), counts, strict=True) if m < n]
            rows.append(torch.stack([_site_features(*site) for site in sites]).sum(dim=0))
            own.append(taken - self._rest - self._of_blocks(counts))
        features = torch.stack(rows)
        scale = features.abs().amax(dim=0).clamp(min=1.0)
        scaled = features / scale
        ridge = torch.eye(features.shape[1], dtype=torch.float64) * 1e-3
        target = torch.tensor(own, dtype=torch.float64)
        return torch.linalg.solve(scaled.T @ scaled + ridge, scaled.T @ target) / scale


def _site_features(before: int, after: int) -> Tensor:
    return torch.tensor([1.0, before, before * before, before - after], dtype=torch.float64)


def _schedules(method: Method, depth: int, patches: int) -> list[dict[int, int]]:
    """Schedules with many and with few sites, at which a method's own time is measured."""
    every = range(min(1, depth - 1), depth)
    middle = range(depth // 4, max(depth // 4 + 1, 3 * depth // 4))
    plans = [(every, 0.85), (middle, 0.75), (middle[::2], 0.7), (middle[:1], 0.6), (middle[-1:], 0.5)]
    found = []
    for blocks, share in plans:
        counts, current = {}, patches
        for block in blocks:
            kept = max(1, method.fewest(current), round(share * current))
            if kept < current:
                counts[block] = current = kept
        if counts:
            found.append(counts)
    return found
