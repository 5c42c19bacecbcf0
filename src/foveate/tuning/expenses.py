"""What a block costs with some number of tokens: in multiply-accumulates, or in seconds on this machine."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from foveate.adapters import copy_reducible, inspect
from foveate.costs import ModelShape, Plan, block_macs, count, unreduced
from foveate.evaluation.timing import timed
from foveate.methods.base import Method
from foveate.reductions import Reduction
from foveate.schedules import Keep


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
        plan = Plan(method.site, n, (before,) * block + (after,) * (depth - block), self.exact)
        if block == 0 and before != n:
            plan = replace(plan, num_patches=before)
        return float(sum(block_macs(self.shape, self.shape.blocks[block], plan, method, block)))

    def fixed(self) -> float:
        return float(self.shape.num_patches * self.shape.stem_macs_per_patch + self.shape.head_macs)

    def whole(self) -> float:
        return float(count(self.shape, unreduced(self.shape), None, 0).macs)


class Seconds(Expense):
    """Seconds of one batch on this machine, from times of single blocks.

    The two halves of a block are timed at a few numbers of tokens and interpolated by a quadratic, as attention is one.
    A method's own time is what a block with a reduction takes beyond its halves, at a few pairs of counts.
    """

    SHARES = (1.0, 0.75, 0.5, 0.3, 0.15)
    """Shares of the patches at which blocks are timed."""

    def __init__(
        self, model: nn.Module, methods: Sequence[Method], batch_size: int, exact_last_block: bool, rounds: int = 7
    ) -> None:
        self.model, self.batch_size, self.rounds = model, batch_size, rounds
        family = inspect(model)
        self.patches, self.prefix = family.shape().num_patches, family.num_prefix
        self.depth = len(family.blocks)
        self._halves = self._timed_halves()
        self._own = {method: self._timed_method(method) for method in methods}
        self._whole = self._time(lambda: self.model(self._images()))
        blocks = self.depth * sum(_at(fit, self.patches) for fit in self._halves)
        self._rest = max(0.0, self._whole - blocks)
        self._last = self._timed_last(blocks) if exact_last_block else None

    def of_block(self, method: Method, block: int, before: int, after: int) -> float:
        if self._last is not None and block == self.depth - 1:
            return self._last * before / self.patches  # keys and values of all tokens, queries of the prefix only
        attention, mlp = self._halves
        halves = _at(attention, before) + _at(mlp, after)
        return halves + (self._own_time(method, before, after) if after < before else 0.0)

    def fixed(self) -> float:
        return self._rest

    def whole(self) -> float:
        return self._whole

    def _own_time(self, method: Method, before: int, after: int) -> float:
        known = self._own[method]
        features = torch.tensor([1.0, before, before * before, before - after], dtype=torch.float64)
        return max(0.0, float(features @ known))

    def _images(self) -> Tensor:
        reference = next(self.model.parameters())
        shape = (self.batch_size, *inspect(self.model).image_size)
        return torch.zeros(shape, device=reference.device, dtype=reference.dtype)

    def _tokens(self, patches: int) -> Tensor:
        reference, width = next(self.model.parameters()), inspect(self.model).shape().blocks[0].dim
        generator = torch.Generator().manual_seed(0)
        made = torch.randn(self.batch_size, self.prefix + patches, width, generator=generator)
        return made.to(reference.device, reference.dtype)

    def _time(self, work: Callable[[], Any]) -> float:
        device = next(self.model.parameters()).device
        with torch.inference_mode():
            timed(work, device)
            return median(timed(work, device)[1] for _ in range(self.rounds))

    def _timed_halves(self) -> tuple[Tensor, Tensor]:
        pieces = inspect(self.model).pieces()[self.depth // 2]
        counts = [max(1, round(share * self.patches)) for share in self.SHARES]
        attention, mlp = [], []
        for patches in counts:
            x = self._tokens(patches)
            whole = self._time(partial(pieces.whole_in_pieces, x))
            mlp.append(self._time(partial(pieces.mlp, x)))
            attention.append(max(0.0, whole - mlp[-1]))
        return _quadratic(counts, attention), _quadratic(counts, mlp)

    def _timed_method(self, method: Method) -> Tensor:
        """Coefficients of 1, n, n^2 and removed tokens, fitted to the time of one reduction inside the model."""
        rows, times = [], []
        for share in (0.9, 0.7, 0.55):
            keep = max(method.fewest(self.patches), round(share * self.patches))
            for sites in ((2,), (2, 4)):
                blocks = [min(site, self.depth - 1) for site in sites]
                counts = {block: max(1, round(keep * share**number)) for number, block in enumerate(blocks)}
                model = Reduction(method, Keep(counts)).apply_(copy_reducible(self.model))
                measured = self._time(partial(model, self._images()))
                plan = inspect(model).reducer.plan  # type: ignore[union-attr]
                rows.append(self._features(plan.counts))
                times.append(measured - self._halves_of(plan.counts))
        unreduced_rest = self._time(lambda: self.model(self._images())) - self._halves_of((self.patches,) * self.depth)
        own = torch.tensor(times, dtype=torch.float64) - unreduced_rest
        features = torch.stack(rows)
        scale = features.abs().amax(dim=0).clamp(min=1.0)
        ridge = torch.eye(features.shape[1], dtype=torch.float64) * 1e-3
        scaled = features / scale
        return torch.linalg.solve(scaled.T @ scaled + ridge, scaled.T @ own) / scale

    def _timed_last(self, blocks: float) -> float:
        """The last block if it is computed for prefix tokens only."""
        exact = Reduction(exact_last_block=True).apply_(copy_reducible(self.model))
        others = self._rest + blocks * (self.depth - 1) / self.depth
        return max(0.0, self._time(partial(exact, self._images())) - others)

    def _features(self, counts: Sequence[int]) -> Tensor:
        total = torch.zeros(4, dtype=torch.float64)
        for before, after in zip((self.patches, *counts[:-1]), counts, strict=True):
            if after < before:
                total += torch.tensor([1.0, before, before * before, before - after], dtype=torch.float64)
        return total

    def _halves_of(self, counts: Sequence[int]) -> float:
        attention, mlp = self._halves
        before = (self.patches, *counts[:-1])
        return sum(_at(attention, b) + _at(mlp, a) for b, a in zip(before, counts, strict=True))


def _quadratic(counts: Sequence[int], times: Sequence[float]) -> Tensor:
    """Coefficients of 1, n and n^2 that fit the times, relative errors weighed alike."""
    n = torch.tensor(counts, dtype=torch.float64)
    seconds = torch.tensor(times, dtype=torch.float64).clamp(min=1e-9)
    features = torch.stack([torch.ones_like(n), n, n * n], dim=1) / seconds.unsqueeze(1)
    return torch.linalg.lstsq(features, torch.ones(len(counts), 1, dtype=torch.float64)).solution.squeeze(1)


def _at(coefficients: Tensor, n: int) -> float:
    return max(0.0, float(coefficients @ torch.tensor([1.0, n, n * n], dtype=torch.float64)))
