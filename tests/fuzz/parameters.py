"""What a spoiled call is, and what its arguments may be without an error."""

from __future__ import annotations

import dataclasses
import math
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

import foveate as fv
from foveate.reductions import method_code

from .values import HOSTILE, Accepts


@dataclass(frozen=True)
class Parameter:
    """An argument: a good expression, and what else a call may take without an error."""

    good: str
    accepts: Accepts = lambda value: False
    also: frozenset[str] = frozenset()
    """Expressions that are good as well."""
    required: bool = True
    given: bool = False
    """Whether the call always has it, because its default takes long."""

    def allows(self, expression: str, value: Any) -> bool:
        if expression == self.good or expression in self.also:
            return True
        try:
            return bool(self.accepts(value))
        except Exception:  # an array that is neither true nor false
            return False


@dataclass(frozen=True)
class Target:
    """A call, and how its result is used: ``wrap`` may use up what the call returns."""

    call: str
    parameters: Mapping[str, Parameter]
    wrap: str = "{}"
    weight: float = 1.0
    needs_files: bool = False
    hostile: tuple[str, ...] = field(default=HOSTILE)


# -- what is good

CLASSIFIERS = frozenset(
    {"model", "shared_weights()", "nan_model()", "half_model()", "torchvision_model()", "mean_model()"}
)
MODELS = CLASSIFIERS | {"embedding_model()", "segmenter()"}
ANY_MODEL = MODELS | {"reduced_model()", "meta_model()"}
PICTURES = frozenset(
    {"torch.zeros(2, 3, 16, 16)", "images"} | {f"torch.full((2, 3, 16, 16), float('{x}'))" for x in ("nan", "inf")}
)


def whole(least: float = -math.inf, most: float = math.inf) -> Accepts:
    return lambda value: isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def number(least: float, most: float) -> Accepts:
    return lambda value: isinstance(value, int | float) and not isinstance(value, bool) and least < value <= most


def truth(value: Any) -> bool:
    return isinstance(value, bool)


def anything(value: Any) -> bool:
    return True


def is_path(value: Any) -> bool:
    return isinstance(value, str | Path)


def is_schedule(value: Any) -> bool:
    return isinstance(value, fv.Schedule) or number(0, 1)(value) or value in ("0.5", "1", None)


def is_method(value: Any) -> bool:
    return isinstance(value, fv.Method) or (isinstance(value, str) and value == "tome")


def is_blocks(value: Any) -> bool:
    if whole(0)(value) or value is None:
        return True
    items = list(value) if isinstance(value, list | tuple | range) else None
    return items is not None and all(map(whole(0), items))


def a_model(good: str = "model", also: frozenset[str] = ANY_MODEL) -> Parameter:
    return Parameter(good, also=also)


def optional(good: str, accepts: Accepts = lambda value: False, **rest: Any) -> Parameter:
    return Parameter(good, accepts, required=False, **rest)


EXACT = optional("False", truth)
UNIT = optional("None", lambda value: value is None)
METHOD = Parameter("fv.ToMe()", is_method)
SCHEDULE = optional("fv.KeepRate(0.6)", is_schedule)
WHOLE_METHOD = Parameter("fv.ToMe()", lambda value: is_method(value) or isinstance(value, fv.Reduction))


def is_size(value: Any) -> bool:
    if not isinstance(value, tuple | list):
        return value is None
    return len(value) == 3 and value[0] == 3 and all(map(whole(1), value))


def options_of(method: type[fv.Method]) -> dict[str, Parameter]:
    hints = typing.get_type_hints(method)
    return {f.name: optional(_literal(f.default), _fits(f.name, hints[f.name])) for f in dataclasses.fields(method)}


def _literal(value: Any) -> str:
    if isinstance(value, fv.Method):
        return method_code(value)
    return repr(value.value if isinstance(value, Enum) else value)


def _fits(name: str, hint: Any) -> Accepts:
    if typing.get_origin(hint) is typing.Literal:
        return lambda value: isinstance(value, int | str) and value in typing.get_args(hint)
    if hint == tuple[int, ...]:
        return is_blocks
    if hint is fv.Method:
        return is_method
    seeds = (-(2**63), 2**64 - 1)
    kinds: dict[Any, Accepts] = {bool: truth, int: whole(*(seeds if name == "seed" else (0, 100)))}
    kinds[float] = lambda value: number(-1e301, 1e301)(value)
    return kinds.get(hint, lambda value: False)
