"""``fv.check_method``: the laws that every method must satisfy, also for methods of other packages.

Each law runs on two small models, one that predicts from a class token and one that averages its patch tokens.
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from foveate.adapters import inspect
from foveate.api import cost, features, restore_, trace
from foveate.methods.base import AVAILABLE, Method, Need
from foveate.methods.validation import shown
from foveate.models.by_name import load_model
from foveate.reductions import Reduction
from foveate.schedules import Keep, KeepRate, PlanError, Schedule

SIZE, BATCH, BLOCKS = 32, 3, (1, 2)
SHAPE = {"img_size": SIZE, "patch_size": 4, "embed_dim": 32, "depth": 4, "num_heads": 2, "num_classes": 7}
HEADS: dict[str, dict[str, Any]] = {
    "class token": {},
    "mean of patches": {"class_token": False, "global_pool": "avg"},
}


class BrokenMethod(AssertionError):
    """A method breaks a law that every method must satisfy; the message names each broken law."""


@dataclass(frozen=True)
class Case:
    """A method on one model."""

    method: Method
    plain: nn.Module
    images: Tensor

    @property
    def schedule(self) -> Schedule | None:
        family = inspect(self.plain)
        own = self.method.own_counts(len(family.blocks), family.grid)
        return KeepRate(0.6, blocks=BLOCKS) if own is None else None

    def reduced(self, schedule: Schedule | None = None) -> nn.Module:
        """A new model reduced by the method."""
        with _seeded():
            return Reduction(self.method, schedule or self.schedule).apply_(copy.deepcopy(self.plain))


def check_method(method: type[Method] | Method) -> None:
    """Check that a method satisfies the laws of every method.

    Call it in the tests of a package that adds a method.

    Args:
        method: a class that can be built without arguments, or an instance.

    Raises:
        BrokenMethod: if a law is broken. The message lists every broken law and what was found.
        TypeError: if ``method`` is not a method.
    """
    instance = method() if isinstance(method, type) and issubclass(method, Method) else method
    if not isinstance(instance, Method):
        raise TypeError(f"check_method takes a Method class or instance; got {shown(method)}.")
    broken = []
    for head, options in HEADS.items():
        if instance.needs_class_token and options:
            continue
        case = Case(instance, _model(options), _images())
        broken += [f"{law} ({head}): {found}" for law, check in LAWS.items() if (found := _broken(check, case))]
    if broken:
        raise BrokenMethod(f"{type(instance).__name__} breaks {len(broken)} laws:\n- " + "\n- ".join(broken))


def _broken(check: Callable[[Case], str], case: Case) -> str:
    """What is wrong, including an exception that the method raises; empty if nothing is."""
    try:
        with torch.no_grad():
            return check(case)
    except Exception as error:  # a third party's code may raise anything
        return f"{type(error).__name__}: {error}"


def _empty_schedule_changes_nothing(case: Case) -> str:
    expected = case.plain(case.images)
    same = torch.equal(case.reduced(Keep({}))(case.images), expected)
    return "" if same else "outputs differ under Keep({})"


def _counts_are_as_planned(case: Case) -> str:
    model = case.reduced()
    planned = cost(model).tokens
    family, found = inspect(model), trace(model, case.images)
    kept = tuple(family.num_prefix + count for count in found.counts)
    return "" if kept == planned else f"planned {planned} tokens after each block, kept {kept}"


def _prefix_tokens_are_untouched(case: Case) -> str:
    seen: list[bool] = []
    Case(_watched(case.method, seen), case.plain, case.images).reduced()(case.images)
    return "" if seen and all(seen) else "combine changed a prefix token" if seen else "the method never acted"


def _watched(method: Method, seen: list[bool]) -> Method:
    """A copy that notes at every call of ``combine`` whether prefix tokens stay the same."""

    class Watched(type(method)):  # type: ignore[misc]
        def in_block(self, index: int, depth: int) -> Method:
            own = super().in_block(index, depth)
            return self if own is self else _watched(own, seen)

        def combine(self, view: Any, assignment: Any) -> Tensor:
            out = super().combine(view, assignment)
            seen.append(torch.equal(out[:, : view.prefix], view.tokens[:, : view.prefix]))
            return out

    watched = copy.copy(method)
    object.__setattr__(watched, "__class__", Watched)
    return watched


def _image_does_not_depend_on_its_batch(case: Case) -> str:
    model = case.reduced()
    alone = torch.cat([model(image.unsqueeze(0)) for image in case.images])
    return (
        ""
        if torch.allclose(model(case.images), alone, rtol=1e-4, atol=1e-5)
        else "outputs change with the rest of the batch"
    )


def _results_are_repeatable(case: Case) -> str:
    model = case.reduced()
    return "" if torch.equal(model(case.images), model(case.images)) else "two calls give different outputs"


def _macs_are_exact(case: Case) -> str:
    model = case.reduced()
    with FlopCounterMode(display=False) as counter:
        model(case.images[:1])
    counted, stated = counter.get_total_flops() // 2, cost(model).macs
    return "" if counted == stated else f"torch counts {counted} MACs, macs() gives {stated}"


def _features_cover_the_grid(case: Case) -> str:
    found = features(case.reduced(), case.images)
    rows, columns = inspect(case.plain).grid
    if found.shape[-2:] != (rows, columns):
        return f"features of shape {tuple(found.shape)} for a grid of {rows} x {columns}"
    return "" if bool(found.isfinite().all()) else "features are not finite"


def _gradients_are_finite(case: Case) -> str:
    model = case.reduced().train()
    with torch.enable_grad(), _seeded():
        model(case.images).square().mean().backward()
    broken = [n for n, p in model.named_parameters() if p.grad is not None and not bool(p.grad.isfinite().all())]
    return f"gradients of {broken[0]} are not finite" if broken else ""


def _restoring_gives_the_model_back(case: Case) -> str:
    model = case.reduced()
    model(case.images)
    return "" if torch.equal(restore_(model)(case.images), case.plain(case.images)) else "the restored model differs"


def _copies_give_the_same_outputs(case: Case) -> str:
    model = case.reduced()
    expected = model(case.images)
    for name, other in (("deepcopy", copy.deepcopy(model)), ("pickle", pickle.loads(pickle.dumps(model)))):
        if not torch.equal(other(case.images), expected):
            return f"the outputs of a {name} differ"
    return ""


def _budgets_can_be_met(case: Case) -> str:
    if case.schedule is None:
        return ""
    counts = [case.method.spread(strength, 12, 196) for strength in (0.0, 0.3, 0.6, 0.9)]
    if set(counts[0]) != {196}:
        return "spread(0, ...) must keep every token"
    falling = [all(a >= b for a, b in zip(weak, strong, strict=True)) for weak, strong in pairwise(counts)]
    if not all(falling):
        return "spread keeps more tokens at a larger strength"
    try:
        Keep(counts[-1]).counts(case.method, 12, 196)
    except PlanError as error:
        return f"spread gives counts that the method cannot follow: {error}"
    return ""


def _written_forms_read_back(case: Case) -> str:
    reduction = Reduction(case.method, case.schedule)
    if Reduction.from_dict(reduction.to_dict()) != reduction or Reduction.parse(reduction.text) != reduction:
        return "to_dict or text does not read back as the same value. Is the class registered, with plain options?"
    return ""


def _needs_are_available(case: Case) -> str:
    family = inspect(case.plain)
    parts = [case.method.in_block(block, len(family.blocks)) for block in range(len(family.blocks))]
    missing = frozenset[Need]().union(*(part.needs(family.has_cls) - AVAILABLE[part.site] for part in parts))
    sites = [str(site) for site, offered in AVAILABLE.items() if missing & offered]
    return (
        f"the method needs {', '.join(sorted(missing))}, which exist only at {' and '.join(sites)}" if missing else ""
    )


LAWS: dict[str, Callable[[Case], str]] = {
    "scores it needs exist at its site": _needs_are_available,
    "an empty schedule changes nothing": _empty_schedule_changes_nothing,
    "counts are as planned": _counts_are_as_planned,
    "prefix tokens are untouched": _prefix_tokens_are_untouched,
    "an image's result does not depend on its batch": _image_does_not_depend_on_its_batch,
    "results are repeatable": _results_are_repeatable,
    "costs are exact": _macs_are_exact,
    "dense features cover the patch grid": _features_cover_the_grid,
    "gradients are finite": _gradients_are_finite,
    "restoring gives the model back": _restoring_gives_the_model_back,
    "copies give the same outputs": _copies_give_the_same_outputs,
    "budgets can be met": _budgets_can_be_met,
    "written forms read back": _written_forms_read_back,
}
"""Every law in words, and its check, which returns what is wrong or an empty string."""


def _model(options: dict[str, Any]) -> nn.Module:
    with _seeded():
        model = load_model("vit_tiny_patch16_224", options=SHAPE | options)
        for parameter in model.parameters():  # away from regular initial values, under which mistakes cancel out
            parameter.data.add_(0.1 * torch.randn_like(parameter))
    return model.eval()


def _images() -> Tensor:
    return torch.randn(BATCH, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(5))


@contextmanager
def _seeded() -> Iterator[None]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield
