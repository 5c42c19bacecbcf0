"""``Reduction``, the value that describes how a model is reduced. Everything that needs to know takes this value."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Literal, TypedDict, TypeVar, Unpack, get_args

from torch import nn

from foveate.costs import ModelShape, Output, Plan
from foveate.methods.base import Method
from foveate.methods.options import build, changed_options, method_text, methods_in
from foveate.methods.options import describe as method_to_dict
from foveate.methods.options import parse as parse_method
from foveate.methods.validation import shown
from foveate.plans import make_plan
from foveate.schedules import Schedule, schedule_from_dict, schedule_to_dict
from foveate.schedules_text import (
    as_schedule,
    parse_blocks,
    read_schedule,
    schedule_code,
    schedule_text,
    schedule_words,
)

UnitQK = Literal["fixed", "learned"]
"""How normalized queries and keys are scaled: by 1, or by a value learned in each block."""

Positions = Literal["representative", "mean"]
"""Where a token that stands for several patches is: at the one with the most weight, or at the mean of all."""

VERSION = 2
"""Version of the stored form. foveate 0.1 wrote version 1, without a number."""
OWN_COUNTS = "own"
"""Kind of schedule in version 1 for a method that fixes its own counts."""

Model = TypeVar("Model", bound=nn.Module)


@dataclass(frozen=True)
class Reduction:
    """How a model keeps fewer tokens. ``Reduction()`` is the identity, which leaves a model unchanged.

    Methods and schedules have short forms: ``Reduction("tome", 0.5)`` is ``Reduction(ToMe(), Budget(0.5))``.
    """

    method: Method | None = None
    """How tokens are chosen; None keeps all tokens."""
    schedule: Schedule | None = None
    """How many tokens are left after each block; None if the method fixes its own counts."""
    exact_last_block: bool = False
    """Compute the last block for prefix tokens only, which is exact if the head reads nothing else."""
    unit_qk: UnitQK | None = None
    """Normalize queries and keys, with a scale of 1 or a learned scale. The model then has to be trained."""
    output: Output | None = None
    """What leaves the encoder: the tokens that are left (``"tokens"``), or one feature for every patch, so that heads
    written for the unreduced model fit. ``"grid"`` gives each patch its token's features, ``"grid-residual"`` adds what
    the patch had of its own when it was merged, ``"grid-attention"`` lets every patch attend to the remaining tokens in
    the last block. None: tokens for a model by itself, the grid for an encoder inside a larger model."""
    merge_unmerge: tuple[int, int] | None = None
    """First and last block of the range in which tokens are reduced; after it every patch has its own token again."""
    positions: Positions | None = None
    """Position of a merged token, in models whose blocks read positions: that of its heaviest patch
    (``"representative"``), or the mean of its patches (``"mean"``). None: the mean if positions are rotary, which
    exist between patches too; otherwise the representative."""

    def __post_init__(self) -> None:
        method, schedule = self.method, self.schedule
        object.__setattr__(self, "method", parse_method(method) if isinstance(method, str) else method)
        object.__setattr__(self, "schedule", as_schedule(schedule))
        if isinstance(self.method, type) or not isinstance(self.method, Method | None):
            raise TypeError(
                f"method must be an instance such as ToMe(), or a name such as 'tome'; got {shown(self.method)}."
            )
        if isinstance(self.schedule, type) or not isinstance(self.schedule, Schedule | None):
            raise TypeError(
                f"schedule must be a Keep, KeepRate, RemovePerBlock, Budget or Adaptive; got {shown(self.schedule)}."
            )
        if self.method is None and self.schedule is not None:
            raise ValueError(f"{self.schedule!r} needs a method, such as ToMe().")
        if not isinstance(self.exact_last_block, bool):
            raise TypeError(f"exact_last_block must be True or False, got {shown(self.exact_last_block)}.")
        if not isinstance(self.unit_qk, str | None) or self.unit_qk not in (None, "fixed", "learned"):
            raise ValueError(f"unit_qk must be 'fixed', 'learned' or None; got {shown(self.unit_qk)}.")
        self._check_output()

    def _check_output(self) -> None:
        for name, kind, more in (("output", Output, (None,)), ("positions", Positions, (None,))):
            value = getattr(self, name)
            if value not in (known := (*get_args(kind), *more)) or not isinstance(value, str | None):
                raise ValueError(f"{name} must be one of {', '.join(map(repr, known))}; got {shown(value)}.")
        if self.exact_last_block and self.output not in (None, "tokens"):
            raise ValueError(f"exact_last_block leaves no patch tokens, but output={self.output!r} needs them.")
        if self.merge_unmerge is None:
            return
        span = self.merge_unmerge
        numbers = tuple(span) if isinstance(span, list | tuple) else ()
        if len(numbers) != 2 or not all(type(number) is int for number in numbers) or not 0 <= numbers[0] <= numbers[1]:
            raise ValueError(f"merge_unmerge must be the first and the last block, such as (2, 8); got {shown(span)}.")
        object.__setattr__(self, "merge_unmerge", numbers)

    @property
    def is_identity(self) -> bool:
        """Whether it changes nothing."""
        return self == Reduction()

    def apply_(self, model: Model) -> Model:
        """Reduce ``model`` in place and return it. The identity leaves it unchanged.

        Raises:
            UnsupportedModel: if foveate does not support the model.
            ValueError: if the model is already reduced or cannot follow the schedule. It is then unchanged.
        """
        from foveate.adapters import attach_  # adapters build on this value

        return model if self.is_identity else attach_(model, self)

    def plan(self, shape: ModelShape) -> Plan:
        """Resolve the counts after each block for a model of this shape."""
        if not isinstance(shape, ModelShape):
            raise TypeError(f"shape must be a ModelShape, as from fv.inspect(model).shape(); got {shown(shape)}.")
        output = self.output or "tokens"
        return make_plan(shape, self.method, self.schedule, self.exact_last_block, output, self.merge_unmerge)

    def with_schedule(self, schedule: Schedule | None) -> Reduction:
        """The same reduction with another schedule."""
        return replace(self, schedule=schedule)

    def to_dict(self) -> dict[str, Any]:
        """Convert to plain data, ready for JSON; ``from_dict`` is the inverse."""
        return {
            "version": VERSION,
            "method": None if self.method is None else method_to_dict(self.method),
            "schedule": None if self.schedule is None else schedule_to_dict(self.schedule),
            **{name: list(value) if isinstance(value, tuple) else value for name, value in self._options()},
        }

    def _options(self, changed: bool = False) -> list[tuple[str, Any]]:
        """Names and values of everything but method and schedule; ``changed`` leaves out defaults."""
        named = [(name, getattr(self, name)) for name in OPTIONS]
        return [(name, value) for name, value in named if not changed or value != getattr(Reduction, name)]

    @staticmethod
    def from_dict(data: Mapping[str, Any] | None) -> Reduction:
        """Read the output of ``to_dict``. None, which foveate 0.1 wrote for an unreduced model, is the identity.

        Raises:
            ValueError: if the version is newer, a key is unknown, or the method is not installed.
        """
        if data is None:
            return Reduction()
        if not isinstance(data, Mapping):
            raise ValueError(f"A stored reduction must be a mapping, got {shown(data, 80)}.")
        _check_stored(data)
        method, schedule = data.get("method"), data.get("schedule")
        if isinstance(schedule, Mapping) and schedule.get("kind") == OWN_COUNTS:
            schedule = None
        return Reduction(
            None if method is None else method_from_dict(method),
            None if schedule is None else schedule_from_dict(schedule),
            **{name: data[name] for name in OPTIONS if name in data},
        )

    @staticmethod
    def parse(text: str) -> Reduction:
        """Read the command line form: ``evit:fuse=false --keep-rate 0.7 --blocks 3,6,9 --exact-last-block``.

        An empty text is the identity.
        """
        if not isinstance(text, str):
            raise TypeError(f"text must be a string such as 'tome --budget 0.5', got {type(text).__name__}.")
        words = shlex.split(text)
        method = words.pop(0) if words and not words[0].startswith("--") else None
        options = {name: _pop_option(name, words) for name in OPTIONS if _flag(name) in words}
        return Reduction(method, read_schedule(words, text), **options)  # type: ignore[arg-type]

    @property
    def text(self) -> str:
        """The command line form; ``parse`` is the inverse. Empty for the identity."""
        parts = [] if self.method is None else [method_text(self.method)]
        parts += [] if self.schedule is None else [schedule_text(self.schedule)]
        for name, value in self._options(changed=True):
            shown_value = ",".join(map(str, value)) if isinstance(value, tuple) else value
            parts.append(_flag(name) if value is True else f"{_flag(name)} {shown_value}")
        return " ".join(parts)

    def code(self) -> str:
        """Python code that applies the reduction to ``model``; empty for the identity."""
        if self.is_identity:
            return ""
        imports = ["import foveate as fv"]
        arguments = [f"{name}={value!r}" for name, value in self._options(changed=True)]
        if self.method is None:
            return "\n".join([*imports, f"fv.Reduction({', '.join(arguments)}).apply_(model)"])
        imports += [
            f"from {type(part).__module__} import {type(part).__qualname__}"
            for part in methods_in(self.method)
            if not _is_ours(part)
        ]
        schedule = [] if self.schedule is None else [schedule_code(self.schedule)]
        return "\n".join(
            [*imports, f"fv.reduce_({', '.join(['model', method_code(self.method), *schedule, *arguments])})"]
        )

    @property
    def schedule_words(self) -> str:
        """Everything but the method, in a few words: ``budget 0.5, exact last block``."""
        parts = [] if self.method is None else [schedule_words(self.schedule)]
        parts += ["exact last block"] if self.exact_last_block else []
        parts += [f"unit q and k ({self.unit_qk})"] if self.unit_qk else []
        parts += [f"output {self.output}"] if self.output else []
        parts += ["blocks {} to {}".format(*self.merge_unmerge)] if self.merge_unmerge else []
        return ", ".join([*parts, *([f"{self.positions} positions"] if self.positions else [])])

    def __str__(self) -> str:
        """The reduction in words, for tables: ``ToMe, budget 0.5, exact last block``."""
        method = "unreduced" if self.method is None else method_text(self.method)
        return ", ".join(filter(None, [method, self.schedule_words]))


class ReductionOptions(TypedDict, total=False):
    """The fields of ``Reduction`` beside method and schedule, as keyword arguments of other functions."""

    exact_last_block: bool
    unit_qk: UnitQK | None
    output: Output | None
    merge_unmerge: tuple[int, int] | None
    positions: Positions | None


OPTIONS = tuple(ReductionOptions.__annotations__)


def as_reduction(
    method: Method | str | Reduction,
    schedule: Schedule | float | str | None = None,
    **options: Unpack[ReductionOptions],
) -> Reduction:
    """Turn the arguments of ``reduce_`` into a ``Reduction``; return a ``Reduction`` unchanged.

    Raises:
        ValueError: if other arguments are given with a ``Reduction``.
    """
    if not isinstance(method, Reduction):
        return Reduction(method, schedule, **options)  # type: ignore[arg-type]
    if schedule is not None or any(value != getattr(Reduction, name, None) for name, value in options.items()):
        raise ValueError(f"{method!r} is a complete reduction. Leave out the other arguments, or pass only its method.")
    return method


def method_code(method: Method) -> str:
    """The method as Python code: ``fv.EViT(fuse=False)``."""
    options = ", ".join(f"{name}={_value_code(value)}" for name, value in changed_options(method))
    return f"{'fv.' if _is_ours(method) else ''}{type(method).__qualname__}({options})"


def _value_code(value: object) -> str:
    return method_code(value) if isinstance(value, Method) else repr(value.value if isinstance(value, Enum) else value)


def _is_ours(method: Method) -> bool:
    return type(method).__module__.partition(".")[0] == "foveate"


def method_from_dict(data: object) -> Method:
    """Read the output of ``method_to_dict``."""
    if (
        not isinstance(data, Mapping)
        or not isinstance(data.get("options"), Mapping)
        or set(data) != {"name", "options"}
    ):
        raise ValueError(f"A stored method needs exactly a name and options, got {data!r:.120}.")
    return build(str(data["name"]), dict(data["options"]))


def _check_stored(data: Mapping[str, Any]) -> None:
    version = data.get("version", 1)
    if isinstance(version, bool) or not isinstance(version, int) or version > VERSION:
        raise ValueError(
            f"This reduction is stored in version {version!r}; this foveate reads up to {VERSION}. Upgrade foveate."
        )
    keys = ("method", "schedule", *OPTIONS)
    unknown = sorted(map(str, data.keys() - {"version", *keys}))
    if unknown:
        raise ValueError(f"The stored reduction has unknown keys: {', '.join(unknown)}. Known: {', '.join(keys)}.")


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _pop_option(name: str, words: list[str]) -> Any:
    """Remove an option, and its value unless it is a switch, from ``words`` and return the value."""
    place = words.index(_flag(name))
    words.pop(place)
    if name == "exact_last_block":
        return True
    if place == len(words):
        raise ValueError(f"{_flag(name)} needs a value.")
    value = words.pop(place)
    return parse_blocks(value) if name == "merge_unmerge" else value
