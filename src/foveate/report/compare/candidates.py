"""The candidates of a comparison: every method at every budget that fits the model, and why others do not."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from torch import Tensor, nn

from foveate.adapters import copy_reducible, copy_unreduced, inspect, reducer_of
from foveate.costs import ModelShape, Plan, count, unreduced
from foveate.data.preprocessing import Preprocessing
from foveate.evaluation.speed import free_slice
from foveate.methods.base import Method
from foveate.methods.mixture import Mixture
from foveate.methods.options import method_text, parse
from foveate.methods.registry import all_methods
from foveate.methods.validation import shown
from foveate.reductions import Reduction
from foveate.report.compare.comparison import EXACT_LAST_BLOCK, UNREDUCED, Refused
from foveate.report.compare.descent import further
from foveate.schedules import Budget, Keep, PlanError
from foveate.storage import load

DEFAULT_BUDGETS = (0.8, 0.65, 0.5)
NO_TOKEN_GOES = "The exact last block alone meets this budget, so no token would be removed."


@dataclass(frozen=True)
class Candidate:
    """One way to run the model, ready to be measured. It shares its weights with the unreduced model."""

    method: str
    label: str
    kind: str
    budget: float | None
    model: nn.Module
    python: str

    @property
    def key(self) -> str:
        """A unique name, which stays the same in a resumed run."""
        return self.label if self.budget is None else f"{self.method} {self.budget:g}"

    @property
    def reduction(self) -> Reduction:
        """The reduction of the model."""
        return inspect(self.model).reduction

    @property
    def counts(self) -> tuple[int, ...]:
        """Patch tokens after each block."""
        reducer = reducer_of(self.model)
        return unreduced(inspect(self.model).shape()).counts if reducer is None else reducer.plan.counts


@dataclass(frozen=True)
class Candidates:
    """The unreduced model, everything to compare with it, and what cannot be compared."""

    all: tuple[Candidate, ...]
    refused: tuple[Refused, ...]


def default_methods() -> list[str]:
    """Return the names of all methods that work on a pretrained model without training. Mixtures are made of them."""
    return [name for name, cls in all_methods().items() if cls.training_free and cls is not Mixture]


def read_methods(given: str | Method | Iterable[str | Method] | None) -> list[Method]:
    """Return methods from ``name:option=value`` texts or instances; None or ``all``: every training-free method.

    Raises:
        ValueError: If a method is unknown or needs training.
        TypeError: If one is neither a text nor a method.
    """
    if given is not None and (isinstance(given, Tensor) or not isinstance(given, Iterable | Method | type)):
        raise TypeError(f"methods must be names such as 'ToMe' or instances such as fv.ToMe(), got {shown(given)}.")
    texts = [given] if isinstance(given, str | Method | type) else list(given if given is not None else ())
    words = [t.strip().lower() == "all" if isinstance(t, str) else False for t in texts]
    if any(words) and not all(words):
        raise ValueError("'all' stands for every training-free method. Leave out the other methods, or 'all'.")
    texts = [] if any(words) else texts
    found = [text if isinstance(text, Method) else _parsed(text) for text in texts or default_methods()]
    for method in found:
        if not method.training_free:
            raise ValueError(
                f"{method.name} does not work on a pretrained model without training. Train it, save it with fv.save, "
                "and pass that folder as a checkpoint."
            )
    return list(dict.fromkeys(found))


def read_budgets(given: float | Sequence[float] | None) -> tuple[float, ...]:
    """Return the budgets in descending order, without duplicates; the default ones for None.

    Raises:
        ValueError: If one is not between 0 and 1, or there are none.
    """
    if given is None:
        return DEFAULT_BUDGETS
    if isinstance(given, str | Tensor) or not isinstance(given, int | float | Iterable):
        raise ValueError(f"budgets must be shares of the MACs such as (0.8, 0.5), got {shown(given)}.")
    budgets = [given] if isinstance(given, int | float) else list(given)
    for budget in budgets:
        number = isinstance(budget, int | float) and not isinstance(budget, bool)
        if not number or not 0 < budget < 1:
            hint = f" For {budget:g} % write {budget / 100:g}." if number and 1 < budget <= 100 else ""
            raise ValueError(
                f"A budget is a share of the MACs and must be above 0 and below 1, got {shown(budget)}.{hint}"
            )
    if not budgets:
        raise ValueError("budgets is empty. Pass at least one, e.g. 0.65.")
    return tuple(sorted({float(budget) for budget in budgets}, reverse=True))


def find_candidates(
    model: nn.Module,
    methods: Sequence[Method],
    budgets: Sequence[float],
    checkpoints: Sequence[str | Path] = (),
    extra: Sequence[Candidate] = (),
    holds: Callable[[Candidate], bool] | None = None,
) -> Candidates:
    """Return everything to measure on ``model``, which does not change.

    Args:
        model: The unreduced model.
        methods: Methods to try at every budget.
        budgets: Shares of the MACs. At least one method must reach each of them, except for the default budgets.
        checkpoints: Folders of ``fv.save`` with reduced models.
        extra: More candidates.
        holds: Whether a candidate keeps most decisions; every method goes on to smaller budgets while it does.

    Raises:
        ValueError: If no method reaches a budget, or a checkpoint is not reduced.
    """
    shape = inspect(model).shape()
    exact = not shape.head_reads_patches and shape.num_prefix > 0
    found: list[Candidate] = [Candidate(UNREDUCED, "Unreduced", "none", None, model, "")]
    refused: list[Refused] = []
    met: set[float | None] = set()
    if exact:
        found.append(_exact_last_block(model))
    for method in methods:
        made = [_reduced(model, shape, method, exact, budget) for budget in budgets]
        made += [] if holds is None else further(partial(_reduced, model, shape, method, exact), made, holds)
        # once: a method that does not fit the model is refused at every budget
        refused += dict.fromkeys(r for r in made if isinstance(r, Refused))
        met |= {c.budget for c in made if isinstance(c, Candidate)}
        found += distinct([c for c in made if isinstance(c, Candidate)])
    missed = [budget for budget in budgets if budget not in met]
    if missed and (tuple(budgets) != DEFAULT_BUDGETS or len(missed) == len(budgets)):
        raise ValueError(_unmet_budget_text(missed[0], shape, methods, exact, refused))
    learned = [_checkpoint(model, folder, name) for folder, name in _short_names(checkpoints).items()]
    found += [*(c for c in learned if isinstance(c, Candidate)), *extra]
    refused += [r for r in learned if isinstance(r, Refused)]
    return Candidates(tuple(found), tuple(refused))


def with_shared_weights(model: nn.Module) -> nn.Module:
    """Copy the modules of a model but share its parameters and buffers, so that the copy needs no memory."""
    shared = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    return copy.deepcopy(model, shared)


def free_slice_of(candidate: Candidate) -> nn.Module | None:
    """Return the model that drops tokens blindly to the same counts; None if no token is removed."""
    if not reduces(candidate.model):
        return None
    return free_slice(candidate.model).apply_(copy_unreduced(candidate.model))


def reduces(model: nn.Module) -> bool:
    """Return whether ``model`` removes any token."""
    reducer = reducer_of(model)
    return reducer is not None and reducer.removes_tokens


def label_of(method: Method) -> str:
    """Return the display name of a method, with its options."""
    options = method_text(method).partition(":")[2]
    notes = [*(["baseline"] if method.baseline else []), *([options] if options else [])]
    return f"{method.name} ({', '.join(notes)})" if notes else method.name


def _parsed(text: object) -> Method:
    if not isinstance(text, str):
        hint = f" Write {text.__name__}()." if isinstance(text, type) else ""
        raise TypeError(f"A method must be a name such as 'ToMe' or an instance such as fv.ToMe(), got {text!r}.{hint}")
    return parse(text)


def _exact_last_block(model: nn.Module) -> Candidate:
    reduction = Reduction(exact_last_block=True)
    reduced = reduction.apply_(copy_reducible(model))
    return Candidate(EXACT_LAST_BLOCK, "Exact last block", "none", None, reduced, reduction.code())


def _reduced(model: nn.Module, shape: ModelShape, method: Method, exact: bool, budget: float) -> Candidate | Refused:
    label, text = label_of(method), method_text(method)
    reduction = Reduction(method, Budget(budget), exact)
    try:
        reduced = reduction.apply_(copy_reducible(model))
    except PlanError as error:
        return Refused(text, label, budget, _unreachable(shape, method, budget, exact) or str(error))
    except (ValueError, TypeError) as error:
        return Refused(text, label, None, str(error))
    if not reduces(reduced):
        return Refused(text, label, budget, NO_TOKEN_GOES)
    return Candidate(text, label, method.kind, budget, reduced, reduction.code())


def _unreachable(shape: ModelShape, method: Method, budget: float, exact: bool) -> str:
    """Return why the method cannot reach ``budget``; empty if the budget is not the problem."""
    least = smallest_budget(shape, method, exact)
    if least is not None and budget < least:
        return f"{type(method).__name__} cannot go below {least:.3f} of the MACs on this model."
    untouched = Plan(method.sites(shape.depth), shape.num_patches, (shape.num_patches,) * shape.depth, exact)
    return NO_TOKEN_GOES if count(shape, untouched, None, 0).macs < budget * _unreduced_macs(shape) else ""


def _unreduced_macs(shape: ModelShape) -> int:
    return count(shape, unreduced(shape), None, 0).macs


def smallest_budget(shape: ModelShape, method: Method, exact: bool) -> float | None:
    """Return the smallest share of the MACs that the method can reach, rounded up; None if it takes no schedule."""
    try:
        counts = method.spread(1 - 1e-6, shape.depth, shape.num_patches)
        counts = Keep(counts).counts(method, shape.depth, shape.num_patches)
    except PlanError:
        return None
    least = count(shape, Plan(method.sites(shape.depth), shape.num_patches, counts, exact), method, 0).macs
    return math.ceil(1000 * least / _unreduced_macs(shape)) / 1000


def _unmet_budget_text(
    budget: float, shape: ModelShape, methods: Sequence[Method], exact: bool, refused: Sequence[Refused]
) -> str:
    reached = {label_of(method): smallest_budget(shape, method, exact) for method in methods}
    known = {label: least for label, least in reached.items() if least is not None}
    if not known or min(known.values()) <= budget:
        reasons = " ".join(dict.fromkeys(r.reason for r in refused)) or "No methods were given."
        return f"No method can run this model at {budget:g} of the MACs. {reasons}"
    label = min(known, key=lambda name: known[name])
    return (
        f"No method reaches {budget:g} of the MACs on this model; the smallest is {known[label]:.3f}, with {label}. "
        "Use a larger budget."
    )


def _short_names(folders: Sequence[str | Path]) -> dict[Path, str]:
    """Name each folder by the last parts of its path, e.g. `run/best`, with more parts if two names would be equal."""
    places = {Path(folder).resolve(): Path(folder) for folder in folders}
    length = 2
    while len({place.parts[-length:] for place in places}) < len(places):
        length += 1
    return {folder: "/".join(place.parts[-length:]) for place, folder in places.items()}


def _checkpoint(model: nn.Module, folder: Path, name: str) -> Candidate | Refused:
    """Load a reduced model that ``fv.save`` wrote."""
    saved = load(folder)
    used = inspect(saved).reduction.method
    if used is None:
        raise ValueError(
            f"The model in {folder} is not reduced, so there is nothing to compare. Reduce it before saving."
        )
    method, label = method_text(used), f"{label_of(used)}, {name}"
    wrong = _misfit(model, saved)
    if wrong:
        return Refused(method, label, None, wrong)
    saved = saved.eval().to(next(model.parameters()).device)
    return Candidate(method, label, "learned", None, saved, f"import foveate as fv\nmodel = fv.load({str(folder)!r})")


def _misfit(model: nn.Module, saved: nn.Module) -> str:
    """Return why ``saved`` cannot be compared with ``model``; empty if it can."""
    sizes = [inspect(m).image_size for m in (model, saved)]
    if sizes[0] != sizes[1]:
        return f"It takes images of {_size_text(sizes[1])}, but the model takes {_size_text(sizes[0])}."
    colors = [(found.mean, found.std) for found in map(Preprocessing.of, (model, saved))]
    if colors[0] != colors[1]:
        return f"It normalizes colors with mean and std {colors[1]}, but the model with {colors[0]}."
    classes = [inspect(m).num_classes for m in (model, saved)]
    return "" if classes[0] == classes[1] else f"It predicts {classes[1]} classes, but the model {classes[0]}."


def given_candidate(model: nn.Module) -> Candidate:
    """Return the candidate for a model that was already reduced when it was passed in."""
    method = inspect(model).reduction.method
    text = EXACT_LAST_BLOCK if method is None else method_text(method)
    label = "Exact last block" if method is None else label_of(method)
    code = "# The model as passed in.\nmodel(images)"
    return Candidate(text, f"{label}, as given", "learned", None, model, code)


def _size_text(size: Sequence[int]) -> str:
    return "x".join(map(str, size))


def distinct(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Keep one candidate of those with equal counts."""
    by_counts: dict[tuple[int, ...], Candidate] = {}
    for candidate in candidates:
        by_counts.setdefault(candidate.counts, candidate)
    return list(by_counts.values())
