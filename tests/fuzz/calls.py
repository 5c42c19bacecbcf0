"""Calls of everything that ``fv`` offers, with wrong values, orders, and missing or unknown arguments."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn

import foveate as fv

from .judging import Case, Wrong, check_unchanged, contents, fault_of, nothing_half_written
from .materials import Materials
from .targets import TARGETS, Target
from .values import SIZE, evaluated, images, is_as_made, tiny_model

AREA = "calls"
NOT_OURS = {("progress", "int")}
"""Values that only the caller's own function refuses."""


@dataclass(frozen=True)
class Spoiled:
    """The arguments of one call as expressions, and what is unlike a good call beside their values."""

    arguments: tuple[tuple[str, str], ...]
    """(name or nothing, expression) in order."""
    structure: str = ""
    """Why no value could make it right; empty if only values are odd."""


def draw(number: random.Random, materials: Materials) -> Case:
    """One call, spoiled at random."""
    target = number.choices(TARGETS, [t.weight for t in TARGETS])[0]
    return case_of(target, _spoil(target, number), materials)


def _spoil(target: Target, number: random.Random) -> Spoiled:
    values = {n: p.good for n, p in target.parameters.items() if p.required or p.given or number.random() < 0.3}
    kind = number.choices(("one", "two", "missing", "unknown", "swapped", "more"), (62, 12, 6, 7, 9, 4))[0]
    names = list(target.parameters)
    required = [name for name, p in target.parameters.items() if p.required]
    if kind == "missing" and required:
        del values[number.choice(required)]
        return Spoiled(_named(values), "an argument is missing")
    if kind == "unknown":
        return Spoiled((*_named(values), ("nonsense", "1")), "a keyword is unknown")
    if kind == "more":
        return Spoiled(
            (*(("", values.get(n, p.good)) for n, p in target.parameters.items()), ("", "1"), ("", "2")), "too many"
        )
    if kind == "swapped" and len(values) > 1:
        one, other = number.sample(list(values), 2)
        values[one], values[other] = values[other], values[one]
        return Spoiled(_named(values))
    for name in number.sample(names, min(len(names), 2 if kind == "two" else 1)):
        values[name] = number.choice([e for e in target.hostile if (name, e) not in NOT_OURS])
    return Spoiled(_named({name: values[name] for name in names if name in values}))


def _named(values: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(values.items())


def case_of(target: Target, spoiled: Spoiled, materials: Materials, must_return: bool = False) -> Case:
    written = ", ".join(f"{name}={value}" if name else value for name, value in spoiled.arguments)
    call = target.wrap.format(f"{target.call}({written})")

    def allowed(names: dict[str, Any]) -> bool:
        if spoiled.structure:
            return False
        return all(target.parameters[n].allows(e, evaluated(e, **names)) for n, e in spoiled.arguments)

    return expression_case(target.call, call, allowed, materials, target.needs_files, must_return)


def expression_case(
    target: str,
    call: str,
    allowed: Callable[[dict[str, Any]], bool],
    materials: Materials,
    needs_files: bool = True,
    must_return: bool = False,
) -> Case:
    """A case that evaluates ``call``; ``allowed`` tells whether it may return."""

    def run(folder: Path) -> None:
        files = materials.copied_to(folder, call) if needs_files else None
        names: dict[str, Any] = {
            "model": tiny_model(),
            "images": images(),
            "files": files,
            "run_on": run_on,
            "entered": entered,
            "predicted": predicted,
        }
        may_return = allowed({**names, "model": tiny_model()})
        before = contents(folder)
        if must_return:
            try:
                evaluated(call, **names)
            except Exception as error:
                raise Wrong(f"a good call fails\n{type(error).__name__}: {error}") from error
            return
        with _model_is_kept(names["model"], before, folder), nothing_half_written(folder):
            evaluated(call, **names)
            if not may_return:
                raise Wrong("accepted without a word")

    return Case(AREA, target, call, run)


@contextmanager
def _model_is_kept(model: nn.Module, before: dict[str, str], folder: Path) -> Iterator[None]:
    """Raise ``Wrong`` where an error of a call has changed the model."""
    try:
        yield
    except Wrong:
        raise
    except Exception as error:
        if not fault_of(error):
            check_unchanged(before, folder)
            if not is_as_made(model) and not _was_reduced_by_the_case(model):
                raise Wrong("the model is changed after an error") from error
        raise


def _was_reduced_by_the_case(model: nn.Module) -> bool:
    """Whether an earlier call of the same case reduced it, which a later error need not undo."""
    if not fv.is_reduced(model):
        return False
    fv.restore_(model)
    return is_as_made(model)


def run_on(model: nn.Module) -> Tensor:
    """Use a model, on its own device and in its own precision."""
    reference = next(model.parameters())
    channels = fv.inspect(model).image_size
    with torch.no_grad():
        return model(torch.zeros(2, *channels, device=reference.device, dtype=reference.dtype))


def predicted(predictor: Any) -> Any:
    """Use a predictor on one picture."""
    return predictor({"image": [Image.new("RGB", (20, 20))]})


def entered(context: Any) -> None:
    with context as model:
        run_on(model)
    if fv.is_reduced(model):
        raise Wrong("the model is still reduced after a with block")


assert SIZE == 16, "expressions in values.py write the size out"
