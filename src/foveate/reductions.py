"""``Reduction``, the value that describes how a model is reduced. Everything that needs to know takes this value."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Literal, TypeVar

from torch import nn

from foveate.costs import ModelShape, Plan, make_plan
from foveate.methods.base import Method
from foveate.methods.options import build, changed_options, method_text
from foveate.methods.options import describe as method_to_dict
from foveate.methods.options import parse as parse_method
from foveate.methods.validation import shown
from foveate.schedules import Schedule, schedule_from_dict, schedule_to_dict
from foveate.schedules_text import as_schedule, read_schedule, schedule_code, schedule_text, schedule_words

UnitQK = Literal["fixed", "learned"]
"""How normalized queries and keys are scaled: by 1, or by a value learned in each block."""

VERSION = 2
"""Version of the stored form. foveate 0.1 wrote version 1, without a number."""
KEYS = ("method", "schedule", "exact_last_block", "unit_qk")
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

    def __post_init__(self) -> None:
        method, schedule = self.method, self.schedule
        object.__setattr__(self, "method", parse_method(method) if isinstance(method, str) else method)
        object.__setattr__(self, "schedule", as_schedule(schedule))
        if isinstance(self.method, type) or not isinstance(self.method, Method | None):
            raise TypeError(
                f"method must be an instance such as ToMe(), or a name such as 'tome'; got {shown(self.method)}."
            )
        if isinstance(self.schedule, type) or not isinstance(self.schedule, Schedule | None):
            raise TypeError(f"schedule must be a Keep, KeepRate, RemovePerBlock or Budget; got {shown(self.schedule)}.")
        if self.method is None and self.schedule is not None:
            raise ValueError(f"{self.schedule!r} needs a method, such as ToMe().")
        if not isinstance(self.exact_last_block, bool):
            raise TypeError(f"exact_last_block must be True or False, got {shown(self.exact_last_block)}.")
        if not isinstance(self.unit_qk, str | None) or self.unit_qk not in (None, "fixed", "learned"):
            raise ValueError(f"unit_qk must be 'fixed', 'learned' or None; got {shown(self.unit_qk)}.")

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
        return make_plan(shape, self.method, self.schedule, self.exact_last_block)

    def with_schedule(self, schedule: Schedule | None) -> Reduction:
        """The same reduction with another schedule."""
        return replace(self, schedule=schedule)

    def to_dict(self) -> dict[str, Any]:
        """Convert to plain data, ready for JSON; ``from_dict`` is the inverse."""
        return {
            "version": VERSION,
            "method": None if self.method is None else method_to_dict(self.method),
            "schedule": None if self.schedule is None else schedule_to_dict(self.schedule),
            "exact_last_block": self.exact_last_block,
            "unit_qk": self.unit_qk,
        }

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
            data.get("exact_last_block", False),
            data.get("unit_qk"),
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
        exact, unit_qk = "--exact-last-block" in words, None
        words = [word for word in words if word != "--exact-last-block"]
        if "--unit-qk" in words:
            unit_qk = _pop_option("--unit-qk", words)
        return Reduction(method, read_schedule(words, text), exact, unit_qk)  # type: ignore[arg-type]

    @property
    def text(self) -> str:
        """The command line form; ``parse`` is the inverse. Empty for the identity."""
        parts = [] if self.method is None else [method_text(self.method)]
        parts += [] if self.schedule is None else [schedule_text(self.schedule)]
        parts += ["--exact-last-block"] if self.exact_last_block else []
        return " ".join([*parts, *([f"--unit-qk {self.unit_qk}"] if self.unit_qk else [])])

    def code(self) -> str:
        """Python code that applies the reduction to ``model``; empty for the identity."""
        if self.is_identity:
            return ""
        imports = ["import foveate as fv"]
        arguments = [f"{name}={getattr(self, name)!r}" for name in KEYS[2:] if getattr(self, name)]
        if self.method is None:
            return "\n".join([*imports, f"fv.Reduction({', '.join(arguments)}).apply_(model)"])
        module = type(self.method).__module__
        ours = module.partition(".")[0] == "foveate"
        imports += [] if ours else [f"from {module} import {type(self.method).__qualname__}"]
        method = f"{'fv.' if ours else ''}{method_code(self.method)}"
        schedule = [] if self.schedule is None else [schedule_code(self.schedule)]
        return "\n".join([*imports, f"fv.reduce_({', '.join(['model', method, *schedule, *arguments])})"])

    @property
    def schedule_words(self) -> str:
        """Everything but the method, in a few words: ``budget 0.5, exact last block``."""
        parts = [] if self.method is None else [schedule_words(self.schedule)]
        parts += ["exact last block"] if self.exact_last_block else []
        return ", ".join([*parts, *([f"unit q and k ({self.unit_qk})"] if self.unit_qk else [])])

    def __str__(self) -> str:
        """The reduction in words, for tables: ``ToMe, budget 0.5, exact last block``."""
        method = "unreduced" if self.method is None else method_text(self.method)
        return ", ".join(filter(None, [method, self.schedule_words]))


def as_reduction(
    method: Method | str | Reduction,
    schedule: Schedule | float | str | None = None,
    exact_last_block: bool = False,
    unit_qk: UnitQK | None = None,
) -> Reduction:
    """Turn the arguments of ``reduce_`` into a ``Reduction``; return a ``Reduction`` unchanged.

    Raises:
        ValueError: if other arguments are given with a ``Reduction``.
    """
    if not isinstance(method, Reduction):
        return Reduction(method, schedule, exact_last_block, unit_qk)  # type: ignore[arg-type]
    if schedule is not None or exact_last_block or unit_qk is not None:
        raise ValueError(f"{method!r} is a complete reduction. Leave out the other arguments, or pass only its method.")
    return method


def method_code(method: Method) -> str:
    """The method as Python code: ``EViT(fuse=False)``."""
    plain = {name: value.value if isinstance(value, Enum) else value for name, value in changed_options(method)}
    options = ", ".join(f"{name}={value!r}" for name, value in plain.items())
    return f"{type(method).__qualname__}({options})"


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
    unknown = sorted(map(str, data.keys() - {"version", *KEYS}))
    if unknown:
        raise ValueError(f"The stored reduction has unknown keys: {', '.join(unknown)}. Known: {', '.join(KEYS)}.")


def _pop_option(option: str, words: list[str]) -> str:
    """Remove ``option`` and its value from ``words`` and return the value."""
    place = words.index(option)
    if place + 1 == len(words):
        raise ValueError(f"{option} needs a value.")
    _, value = words.pop(place), words.pop(place)
    return value
